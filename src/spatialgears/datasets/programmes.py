"""Genes of a simulated tissue: which programme each follows, what a cell expresses, and how it is counted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from spatialgears.datasets.anatomy import CELL_TYPES, DOMAINS, FIELDS

#: Share of the genes that follow each kind of programme; the others follow none.
PROGRAMMES = {"marker": 0.28, "gradient": 0.24, "domain": 0.14, "patch": 0.08, "cell state": 0.10}
#: States that have nothing to do with place: cell cycle (two phases), stress of dissociation, metabolism.
STATES = ("G1/S", "G2/M", "stress", "metabolism")

_N_AXES = 5  # the first fields are axes and morphogens, the others patches
#: How strongly each type follows the graded programmes: parenchyma fully, wandering cells hardly.
_RESPONSE = {"endothelial": 0.5, "smooth muscle": 0.5, "fibroblast": 0.8, "macrophage": 0.25, "T cell": 0.15}
_SIZE = {"T cell": 0.45, "macrophage": 1.2, "endothelial": 0.6, "follicular": 0.6, "progenitor": 1.4}


@dataclass(frozen=True)
class Genes:
    """Log-linear model of expression: log mean = base + type + domains + response x (fields) + states."""

    names: np.ndarray  # (G,)
    programme: np.ndarray  # (G,) one of PROGRAMMES or "housekeeping"
    base: np.ndarray  # (G,)
    by_type: np.ndarray  # (types, G)
    by_domain: np.ndarray  # (domains, G)
    by_field: np.ndarray  # (fields, G)
    by_state: np.ndarray  # (states, G)
    dispersion: np.ndarray  # (G,) of a single cell

    @classmethod
    def draw(cls, rng: np.random.Generator, n_genes: int, *, dispersion: float) -> Genes:
        """Random genes; every kind of programme has some, whatever the number of genes."""
        bounds = np.rint(np.cumsum([0, *PROGRAMMES.values()]) * n_genes).astype(int)
        kind = np.full(n_genes, "housekeeping", dtype="<U12")
        for name, start, stop in zip(PROGRAMMES, bounds[:-1], bounds[1:], strict=True):
            kind[start:stop] = name
        kind = rng.permutation(kind)
        types, domains = len(CELL_TYPES), len(DOMAINS)
        by_field = np.zeros((len(FIELDS), n_genes))
        by_field[:_N_AXES] = _loadings(rng, kind == "gradient", _N_AXES, low=0.5, high=1.1, signed=True)
        by_field[_N_AXES:] = _loadings(
            rng, kind == "patch", len(FIELDS) - _N_AXES, low=0.5, high=1.1, signed=True
        )
        by_type = _loadings(rng, kind == "marker", types, low=0.8, high=2.2)
        by_type += rng.normal(scale=0.15, size=by_type.shape)  # every gene differs a little between types
        return cls(
            names=np.array([f"Gene{i:0{len(str(n_genes))}d}" for i in range(1, n_genes + 1)]),
            programme=kind,
            base=rng.normal(scale=1.0, size=n_genes) - 0.8 * (kind == "marker"),
            by_type=by_type,
            by_domain=_loadings(rng, kind == "domain", domains, low=0.8, high=1.8),
            by_field=by_field,
            by_state=_loadings(rng, kind == "cell state", len(STATES), low=0.5, high=1.0),
            dispersion=dispersion * np.exp(rng.normal(scale=0.4, size=n_genes)),
        )

    def shifted(self, rng: np.random.Generator, shift: float) -> Genes:
        """The genes as another platform sees them: other capture, and programmes that show more or less."""
        size = self.by_type.shape[1]
        gain = 1 + 0.25 * shift * rng.normal(size=size)
        return replace(
            self,
            base=self.base + 0.5 * shift * rng.normal(size=size),
            by_type=self.by_type + 0.15 * shift * rng.normal(size=self.by_type.shape),
            by_domain=self.by_domain * gain,
            by_field=self.by_field * gain,
        )

    def means(
        self, cell_type: np.ndarray, domains: np.ndarray, fields: np.ndarray, states: np.ndarray
    ) -> np.ndarray:
        """RNA a cell holds (n, G), in units of an average cell's total."""
        response = np.array([_RESPONSE.get(name, 1.0) for name in CELL_TYPES])[cell_type]
        drivers = np.column_stack(
            [np.eye(len(CELL_TYPES))[cell_type], domains, response[:, None] * fields, states]
        )
        effects = np.vstack([self.base + self.by_type, self.by_domain, self.by_field, self.by_state])
        mean = np.exp(drivers.astype(np.float32) @ effects.astype(np.float32))  # (n, G)
        size = np.array([_SIZE.get(name, 1.0) for name in CELL_TYPES], dtype=np.float32)[cell_type]
        return mean * (size / mean.sum(1))[:, None]


def draw_states(rng: np.random.Generator, n: int, *, stress: float) -> np.ndarray:
    """Activity of each state (n, states): a cycle, a stress of given mean, and a free factor."""
    phase = rng.uniform(0, 2 * np.pi, n)
    cycling = rng.random(n) < 0.35
    return np.column_stack(
        [
            cycling * 1.5 * np.maximum(np.cos(phase), 0),
            cycling * 1.5 * np.maximum(-np.cos(phase), 0),
            stress + 0.5 * rng.normal(size=n),
            0.7 * rng.normal(size=n),
        ]
    )


def count(
    rng: np.random.Generator, mean: np.ndarray, *, dispersion: np.ndarray | float, dropout: float = 0.0
) -> sparse.csr_matrix:
    """Negative-binomial counts (gamma-Poisson) of the given mean, CSR of int32.

    ``dropout`` is the chance that a gene of low mean is lost altogether; it fades as the mean grows.
    """
    mean = mean.astype(np.float32)
    shape = np.broadcast_to(1 / np.maximum(dispersion, 1e-6), mean.shape).astype(np.float32)
    rate = rng.standard_gamma(shape, dtype=np.float32)
    rate *= mean / shape
    if dropout:
        rate *= rng.random(mean.shape, dtype=np.float32) >= dropout * np.exp(-mean / 4)
    return sparse.csr_matrix(rng.poisson(rate).astype(np.int32))


def _loadings(
    rng: np.random.Generator,
    chosen: np.ndarray,
    n_programmes: int,
    *,
    low: float,
    high: float,
    signed: bool = False,
) -> np.ndarray:
    """(programmes, G): each chosen gene follows one programme, a third of them a second one."""
    loadings = np.zeros((n_programmes, len(chosen)))
    gene = np.flatnonzero(chosen)
    first = rng.permutation(np.arange(len(gene)) % n_programmes)  # every programme has its genes
    second = (first + rng.integers(1, n_programmes, len(gene))) % n_programmes
    size = rng.uniform(low, high, (2, len(gene))) * (rng.choice([-1, 1], (2, len(gene))) if signed else 1)
    loadings[first, gene] = size[0]
    loadings[second, gene] = size[1] * (rng.random(len(gene)) < 1 / 3)
    return loadings
