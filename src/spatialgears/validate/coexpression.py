"""Agreement of co-expression: gene-gene correlations of two sets of profiles, compared with what noise allows.

Correlations between genes need neither positions nor matched cells, and do not change with the scale of a gene. They differ
where tissue, platform or processing differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

GENES = 300  # best detected genes whose correlations are compared
OBSERVATIONS = 2000  # of each slide, and of the cells
FEWEST = 10  # genes that are worth comparing
RELIABLE = 0.05  # reliability between halves of the data below which correlations are noise


def best_detected(
    slides: Sequence[sparse.csr_matrix], cells: sparse.csr_matrix, most: int = GENES
) -> NDArray[np.int64]:
    """Columns of the genes seen most often in slides and cells, whichever is less; at most ``most``, sorted."""
    detected = np.minimum(sum(slide.getnnz(axis=0) for slide in slides), cells.getnnz(axis=0))
    return np.sort(np.argsort(-detected, kind="stable")[: min(most, int((detected > 1).sum()))])


def standardised(
    matrix: sparse.csr_matrix, genes: NDArray[np.int64], *, scale: bool, log: bool, seed: int = 0
) -> NDArray[np.float64]:
    """Some profiles (n, g), scaled to one depth and log-transformed if asked, their genes standardised."""
    rng = np.random.default_rng(seed)
    some = matrix[np.sort(rng.permutation(matrix.shape[0])[:OBSERVATIONS])]
    x = some[:, genes].toarray().astype(np.float64)
    if scale:
        depth = np.asarray(some.sum(axis=1), dtype=np.float64).ravel()
        x *= (np.median(depth) / np.maximum(depth, 1))[:, None]
    return _standard(np.log1p(x) if log else x)


@dataclass(frozen=True, eq=False)
class Correlations:
    """Co-expression of genes in some profiles, to be compared with others."""

    values: NDArray[np.floating]  # (g, g) correlations between genes
    #: The share of their variance that is not noise, from how far two halves of the profiles agree.
    reliability: float

    @classmethod
    def of(cls, profiles: NDArray[np.float64], rng: np.random.Generator) -> Correlations:
        """Of standardised profiles (n, g), which are split into halves at random; next to nothing is noise."""
        enough = len(profiles) >= 4 and profiles.shape[1] >= FEWEST
        reliability = _reliability(profiles, rng) if enough else 0.0
        return cls(profiles.T @ profiles / max(len(profiles), 1), reliability)

    def among(self, some: NDArray[np.int64]) -> Correlations:
        """Those between some of the genes."""
        return Correlations(self.values[np.ix_(some, some)], self.reliability)

    @property
    def noise(self) -> bool:
        """Whether the correlations are little more than noise."""
        return self.reliability < RELIABLE

    def agreement(self, other: Correlations) -> float | None:
        """Their correlation with others of the same genes, over what noise allows; None for noise or few genes."""
        if len(self.values) < FEWEST or self.noise or other.noise:
            return None
        return float(
            np.clip(
                _pair_correlation(self.values, other.values) / np.sqrt(self.reliability * other.reliability),
                -1,
                1,
            )
        )


def agreement(spots: NDArray[np.float64], cells: NDArray[np.float64], *, seed: int = 0) -> float | None:
    """:meth:`Correlations.agreement` of standardised profiles (n, g) and (m, g)."""
    rng = np.random.default_rng(seed)
    first, second = (Correlations.of(profiles, rng) for profiles in (spots, cells))
    return first.agreement(second)


def agreement_by_gene(spots: NDArray[np.float64], cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cosine (g,) between how each gene correlates with the others in two sets of standardised profiles."""
    a, b = (x.T @ x / len(x) for x in (spots, cells))
    for matrix in (a, b):
        np.fill_diagonal(matrix, 0)
    norm = np.sqrt((a**2).sum(1) * (b**2).sum(1))
    return (a * b).sum(1) / np.maximum(norm, 1e-12)


def _standard(x: NDArray[np.float64]) -> NDArray[np.float64]:
    x = x - x.mean(0)
    return x / np.maximum(x.std(0), 1e-12)


def _pair_correlation(a: NDArray[np.floating], b: NDArray[np.floating]) -> float:
    """Correlation, over all pairs of genes, of their correlations ``a`` and ``b`` (g, g)."""
    pairs = np.triu_indices(len(a), 1)
    both = a[pairs], b[pairs]
    return float(np.corrcoef(*both)[0, 1]) if min(map(np.ptp, both)) > 0 else 0.0


def _reliability(x: NDArray[np.float64], rng: np.random.Generator) -> float:
    """The share of the correlations' variance that is not noise: agreement of halves, for the whole (Spearman-Brown)."""
    halves = (_standard(x[half]) for half in np.array_split(rng.permutation(len(x)), 2))
    agree = _pair_correlation(*(half.T @ half for half in halves))
    return 2 * agree / (1 + agree) if agree > 0 else 0.0
