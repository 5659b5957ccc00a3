"""Random views of profiles: counts thinned to the depth of cells, normalised, standardised, genes weighted.

A spot contains many cells and thousands of counts, a cell has few. Binomial thinning turns a spot's counts into what would
have been counted at a cell's depth, so that training sees profiles as noisy as those of the cells.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from spatialgears.config import ExpressionConfig
from spatialgears.expression.normalise import Matrix, Standardiser, dense, log_normalise
from spatialgears.expression.panel import Panel
from spatialgears.expression.thinning import thin
from spatialgears.runtime.seeds import child_seed

logger = logging.getLogger(__name__)

#: Memory of a bank of precomputed views; larger data are thinned as they are drawn.
BANK_BYTES = 512 * 2**20
MAX_VIEWS, MIN_VIEWS = 48, 4
#: Views of spots that are no deeper than cells keep at least this share of their counts, and views of cells this share.
SPOT_LEAST, CELL_LEAST = 0.3, 0.7
#: The paper's appendix: gene dropout, noise and scale jitter of views that are not thinned.
DROPOUT, NOISE, JITTER = 0.3, 0.015, 0.25


class Views:
    """Views of the profiles of several groups (slides, or batches of cells), concatenated.

    A view is thinned, log-normalised, standardised with the statistics of its group's views, and weighted by gene.
    :class:`SpotViews` and :class:`CellViews` decide how much of each profile is kept.
    """

    def __init__(
        self,
        groups: Sequence[Matrix],
        panel: Panel,
        *,
        config: ExpressionConfig,
        seed: int,
        raw: bool = True,
        bank_bytes: int = BANK_BYTES,
    ) -> None:
        self.config, self.raw, self.thins = config, raw, config.thinning and raw
        self.counts = sp.csr_matrix(sp.vstack([sp.csr_matrix(x) for x in groups]))
        self.depths = np.asarray(self.counts.sum(1, dtype=np.float64)).ravel()
        self.n_genes, self.target = len(panel), panel.target
        edges = np.cumsum([0, *(x.shape[0] for x in groups)])
        self.rows = [slice(int(a), int(b)) for a, b in pairwise(edges)]
        sizes = torch.from_numpy(np.diff(edges))
        self.group = torch.repeat_interleave(torch.arange(len(groups)), sizes)  # (n,)
        self.weights = torch.from_numpy(panel.weights)
        room = bank_bytes // (4 * self.counts.shape[0] * self.n_genes)
        least, most = (MIN_VIEWS, MAX_VIEWS) if self.thins else (1, 1)
        self.bank = self._fill_bank(min(room, most), seed) if room >= least else None
        standardisers = [self._statistics(g, seed) for g in range(len(groups))]
        self.mean = torch.stack([s.mean for s in standardisers])  # (groups, G)
        self.scale = torch.stack([self.weights / s.std for s in standardisers])  # (groups, G)
        if self.bank is not None:
            for g, rows in enumerate(self.rows):
                self.bank[:, rows].sub_(self.mean[g]).mul_(self.scale[g])

    def draw(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """A fresh random view (..., G) of each profile, which ``generator`` alone decides.

        Thinned, or as measured where thinning is off or there are no counts.
        """
        if self.bank is not None:
            return self.bank[torch.randint(len(self.bank), index.shape, generator=generator), index]
        return self._standardised(self._profiles(index.flatten().numpy(), generator), index)

    def draw_pair(self, index: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Two views of each profile, on which the encoder is trained (section 3.1); ``generator`` alone decides them.

        Profiles that are not thinned get the paper's gene dropout, scale jitter and noise instead.
        """
        if self.thins:
            return self.draw(index, generator), self.draw(index, generator)
        profiles = self._normalised(self.counts[index.numpy()])

        def view() -> Tensor:
            if self.raw:
                return self._standardised(self._augmented(dense(profiles), generator), index)
            # zero masks a gene only where its mean is zero, so values of unknown scale are standardised first
            return self._augmented(self._standardised(profiles, index), generator)

        return view(), view()

    def clean(self, index: Tensor | None = None) -> Tensor:
        """The measured profiles (n, G), or those at ascending positions: standardised and weighted, but not thinned.

        The statistics are those of all measured profiles of a group. Only the requested profiles are made dense.
        """
        index = torch.arange(len(self.group)) if index is None else index
        parts = []
        for g, rows in enumerate(self.rows):
            x = self._normalised(self.counts[rows])
            mine = (index[self.group[index] == g] - rows.start).numpy()
            parts.append(self._fit(x)(dense(x[mine])).mul_(self.weights))
        return torch.cat(parts)

    def _keep(self, depths: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The share of counts kept in a view of profiles of these depths (n,)."""
        raise NotImplementedError

    def _thinned(self, rows: np.ndarray | slice, seed: int) -> Matrix:
        rng = np.random.default_rng(seed)
        x = self.counts[rows]
        keep = np.repeat(self._keep(self.depths[rows], rng), np.diff(x.indptr))  # (nnz,)
        kept = sp.csr_matrix((thin(x.data, keep, rng), x.indices, x.indptr), shape=x.shape)
        return log_normalise(kept, self.target)

    def _profiles(self, rows: np.ndarray, generator: torch.Generator) -> Matrix:
        if not self.thins:
            return self._normalised(self.counts[rows])
        return self._thinned(rows, int(torch.randint(2**62, (), generator=generator)))

    def _fill_bank(self, n_views: int, seed: int) -> Tensor:
        bank = torch.empty(n_views, *self.counts.shape)
        for view in range(n_views):
            every, own = slice(None), child_seed(seed, "view", view)
            bank[view] = dense(self._thinned(every, own) if self.thins else self._normalised(self.counts))
        return bank

    def _statistics(self, group: int, seed: int) -> Standardiser:
        if not self.thins:
            return self._fit(self._normalised(self.counts[self.rows[group]]))
        if self.bank is None:
            rows = np.arange(self.rows[group].start, self.rows[group].stop)
            sample = np.tile(rows, 1 + 5000 // len(rows))  # several views of each profile of a small group
            return self._fit(self._thinned(sample, child_seed(seed, "statistics", group)))
        return self._fit(self.bank[:, self.rows[group]])

    def _fit(self, x: Matrix) -> Standardiser:
        if not self.config.standardise:
            return Standardiser.identity(self.n_genes)
        return Standardiser.fit(x, raw=self.raw)

    def _normalised(self, x: Matrix) -> Matrix:
        return log_normalise(x, self.target) if self.raw else x.astype(np.float32)

    def _standardised(self, x: Matrix, index: Tensor) -> Tensor:
        group = self.group[index]  # (...,)
        return dense(x).view(*index.shape, self.n_genes).sub(self.mean[group]).mul_(self.scale[group])

    def _augmented(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The paper's views (section 3.1, appendix): gene dropout, multiplicative scale jitter, noise.

        ``x`` (..., G) holds log-normalised values, whose scale is jittered in linear space, or values of
        unknown scale, which are multiplied as they are.
        """
        factor = 1 + JITTER * (2 * torch.rand(*x.shape[:-1], 1, generator=generator) - 1)
        x = torch.log1p(factor * torch.expm1(x)) if self.raw else factor * x
        x = x * (torch.rand(x.shape, generator=generator) >= DROPOUT)
        return x + NOISE * torch.randn(x.shape, generator=generator)


class SpotViews(Views):
    """Thinned, normalised, per-slide standardised, gene-weighted views of all spots (slides concatenated).

    A view of a spot is thinned to a random one of ``depths``, the total counts of the cells on the panel; values that are
    not ``raw`` counts cannot be. ``bank_bytes`` is memory for precomputed views; data too large for it are thinned as
    they are drawn.
    """

    def __init__(
        self,
        slides: Sequence[Matrix],
        depths: np.ndarray,
        panel: Panel,
        *,
        config: ExpressionConfig,
        seed: int,
        raw: bool = True,
        bank_bytes: int = BANK_BYTES,
    ) -> None:
        self.cell_depths = np.asarray(depths, dtype=np.float64)
        self.cell_depths = self.cell_depths[self.cell_depths > 0]
        if config.thinning and not raw:
            logger.warning(
                "the slides hold normalised values, not counts: spots cannot be thinned to the depth of cells, and are used "
                "as measured. Raw counts give better coordinates."
            )
        super().__init__(slides, panel, config=config, seed=seed, raw=raw, bank_bytes=bank_bytes)

    @property
    def n_spots(self) -> int:
        """Spots of all slides."""
        return self.counts.shape[0]

    def _keep(self, depths: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        keep = np.minimum(rng.choice(self.cell_depths, len(depths)) / np.maximum(depths, 1), 1)
        least = np.minimum(SPOT_LEAST / np.maximum(keep, 1e-12), 1)
        return keep * rng.uniform(least, 1)


class CellViews(Views):
    """The same for cells (batches concatenated), thinned mildly."""

    def _keep(self, depths: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rng.uniform(CELL_LEAST, 1, len(depths))


def cell_standardiser(
    cells: Matrix, panel: Panel, config: ExpressionConfig, *, raw: bool = True
) -> Standardiser:
    """Mean and spread of each gene over the cells (n, G); sparse counts stay sparse."""
    if not config.standardise:
        return Standardiser.identity(len(panel))
    return Standardiser.fit(log_normalise(cells, panel.target) if raw else cells, raw=raw)


def cell_features(
    cells: Matrix,
    panel: Panel,
    config: ExpressionConfig,
    *,
    standardiser: Standardiser | None = None,
    raw: bool = True,
) -> tuple[Tensor, Standardiser]:
    """Features (n, G) of cells for stage C, and the standardiser: log-normalised, standardised as one set, genes weighted.

    A ``standardiser`` that is given holds the statistics of the set the cells belong to; otherwise it is fitted on them.
    """
    x = log_normalise(cells, panel.target) if raw else cells
    if standardiser is None:
        standardiser = cell_standardiser(cells, panel, config, raw=raw)
    return standardiser(dense(x)) * torch.from_numpy(panel.weights), standardiser
