"""Inputs of the networks: fresh random views of spots for training, and features of cells computed on demand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from spatialgears.config import Config
from spatialgears.expression.encoder import Encoder
from spatialgears.expression.normalise import Standardiser
from spatialgears.expression.other_genes import OtherGenes
from spatialgears.expression.panel import Panel
from spatialgears.expression.pull import Pull
from spatialgears.expression.signal import Signal
from spatialgears.expression.views import SpotViews, cell_features
from spatialgears.geometry.features import Features
from spatialgears.runtime.seeds import numpy_rng, torch_rng

#: Cells among which similar ones are found, the fewest cells that are averaged, and how many are averaged with each.
AVERAGED_AMONG, FEWEST_AVERAGED, CELLS_AVERAGED = 4000, 100, 20
SPOTS_AVERAGED = 5  # spots that are averaged: there are fewer of them than of cells
DENSE_CELLS = 4096  # profiles with all their genes at once, where only their embedding is wanted


@dataclass(frozen=True, eq=False)
class SpotFeatures:
    """Random views of the spots of all slides."""

    views: SpotViews  # thinned, normalised, standardised, weighted expression
    signal: Signal | None  # the spatial signal that the generators see of it; None: all genes
    encoder: Encoder | None  # stage A's encoder, where its embedding is used
    embedding_only: bool  # whether the generators see the embedding alone, as in the paper

    def seen(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """What the generators see (..., f) of a fresh view of the spots ``index`` (...,): all that training needs."""
        if self._constant is not None:
            return self._constant[index]
        if self._bank is not None:
            return self._bank[torch.randint(len(self._bank), index.shape, generator=generator), index]
        x = self.views.draw(index, generator)
        if self.embedding_only:
            assert self.encoder is not None
            return self.encoder.embed(x)
        return x if self.signal is None else self.signal.of_spots(x, index)

    def draw(self, index: Tensor, generator: torch.Generator, *, average: float = 0.0) -> Features:
        """A fresh view of the spots ``index`` (...,), with its embedding where that is used.

        ``average`` (0 to 1) moves each view towards the mean of the most similar views, as is done for cells.
        """
        if self.embedding_only:
            return Features(None, self.seen(index, generator))
        x = self.views.draw(index, generator)
        x = Pull.fit(x, average, nearest=SPOTS_AVERAGED)(x) if average else x
        expression = x if self.signal is None else self.signal.of_spots(x, index)
        return Features(expression, None if self.encoder is None else self.encoder.embed(x))

    @property
    def width(self) -> int:
        """f, the features that the generators see."""
        return self.seen(torch.zeros(1, dtype=torch.long), torch_rng(0)).shape[-1]

    @cached_property
    def _bank(self) -> Tensor | None:
        """Coordinates (views, n_spots, k) of precomputed views along the directions of the signal; None without these."""
        if self.signal is None or self.views.bank is None:
            return None
        every = torch.arange(self.views.n_spots)
        return torch.stack([self.signal.of_spots(view, every) for view in self.views.bank])

    @cached_property
    def _constant(self) -> Tensor | None:
        """The embedding of all spots, where every view of a spot is the same: it is computed once."""
        if not self.embedding_only or self.views.thins:
            return None
        assert self.encoder is not None
        parts = torch.arange(self.views.n_spots).split(DENSE_CELLS)
        return torch.cat([self.encoder.embed(self.views.draw(part, torch_rng(0))) for part in parts])


@dataclass(frozen=True, eq=False)
class OtherCounts:
    """Counts of cells in the other genes that a model uses."""

    counts: sparse.csr_matrix  # (n, E)
    genes: NDArray[np.str_]  # (E,) their names
    missing: NDArray[np.bool_]  # (E,) genes that these cells lack

    def __getitem__(self, rows: NDArray[np.int64]) -> OtherCounts:
        """Those of some cells, by position."""
        return replace(self, counts=self.counts[rows])


@dataclass(frozen=True, eq=False)
class CellView:
    """How counts of cells become features; what a fitted model keeps of stage A."""

    panel: Panel  # the genes and their weights
    standardiser: Standardiser  # mean and standard deviation of each gene over the cells of the fit
    raw: bool  # whether values are counts
    axes: Tensor | None  # (G, k) the directions of the spatial signal; None: all genes
    pull: Pull | None  # moves cells a little towards similar spots; None: not at all
    encoder: Encoder | None  # stage A's encoder, where its embedding is used
    #: Predicts the panel from genes that the slides lack; None: they are not used.
    other_genes: OtherGenes | None = None

    def expression(
        self,
        counts: sparse.csr_matrix,
        config: Config,
        *,
        missing: NDArray[np.bool_] | None = None,
        others: OtherCounts | None = None,
    ) -> Tensor:
        """Weighted expression (n, G) of cells with these counts; a ``missing`` gene (G,) is taken as average."""
        standardiser, raw = self.standardiser, self.raw
        x, _ = cell_features(counts, self.panel, config.expression, standardiser=standardiser, raw=raw)
        if self.other_genes is not None and others is not None:
            x = self.other_genes(x, others.counts, others.missing)
        if missing is not None and missing.any():
            x[:, torch.from_numpy(missing)] = 0
        return x

    def features(
        self,
        counts: sparse.csr_matrix,
        config: Config,
        *,
        missing: NDArray[np.bool_] | None = None,
        others: OtherCounts | None = None,
        cell_pull: Pull | None = None,
    ) -> Features:
        """Features of cells with these counts (n, G); ``cell_pull``, if given, moves them towards the mean of similar cells."""
        x = self.expression(counts, config, missing=missing, others=others)
        x = x if cell_pull is None else cell_pull(x)
        embedding = None if self.encoder is None else self.encoder.embed(x)
        if config.geometry.inputs == "embedding":
            return Features(None, embedding)
        moved = x if self.pull is None or cell_pull is not None else self.pull(x)
        return Features(moved if self.axes is None else moved @ self.axes, embedding)


@dataclass(frozen=True, eq=False)
class CellFeatures:
    """Features of cells, computed for those that are asked for: a million dense rows would not fit."""

    view: CellView  # how counts become features
    counts: sparse.csr_matrix  # (N, G) on the model's genes
    config: Config  # the configuration of the fit
    missing: NDArray[np.bool_]  # (G,) genes that these cells lack
    #: Features of spots, appended to those of the cells: few cells are placed together with spots.
    company: Features | None = None
    cell_pull: Pull | None = None  # moves cells towards similar cells; None: not at all
    others: OtherCounts | None = None  # of genes that the slides lack; None: they are not used

    def beside(self, spots: Features) -> CellFeatures:
        """The same, with the features of spots appended to those of the cells."""
        return replace(self, company=spots)

    def as_measured(self) -> CellFeatures:
        """The same cells, not moved towards any spot or cell, nor by genes that spots lack."""
        return replace(self, view=replace(self.view, pull=None), cell_pull=None, others=None)

    def averaged(self, share: float) -> CellFeatures:
        """The same cells, each moved by ``share`` towards the mean of its most similar cells in a random sample."""
        n_cells = self.counts.shape[0]
        if not share or n_cells < FEWEST_AVERAGED:
            return self
        rows = np.sort(numpy_rng(self.config.seed, "alike").permutation(n_cells)[:AVERAGED_AMONG])
        others = None if self.others is None else self.others[rows]
        bank = self.view.expression(self.counts[rows], self.config, missing=self.missing, others=others)
        return replace(self, cell_pull=Pull.fit(bank, share, nearest=CELLS_AVERAGED))

    @property
    def width(self) -> int:
        """Values that one cell needs in memory: its genes."""
        return self.counts.shape[1]

    def __len__(self) -> int:
        return self.counts.shape[0] + (0 if self.company is None else len(self.company))

    def __getitem__(self, rows: Any) -> Features:
        """Features of cells, and of the spots appended to them, by position (n,)."""
        rows, n_cells = np.asarray(rows), self.counts.shape[0]
        if self.company is None:
            return self._of_cells(rows)
        cells = rows < n_cells
        both = Features.cat([self._of_cells(rows[cells]), self.company[rows[~cells] - n_cells]])
        order = np.empty(len(rows), np.int64)
        order[np.concatenate([np.flatnonzero(cells), np.flatnonzero(~cells)])] = np.arange(len(rows))
        return both[order]

    @torch.no_grad()
    def _of_cells(self, rows: NDArray[np.int64]) -> Features:
        if self.config.geometry.inputs == "embedding" and len(rows) > DENSE_CELLS:
            parts = np.array_split(rows, -(-len(rows) // DENSE_CELLS))
            return Features.cat([self._of_cells(part) for part in parts])
        others = None if self.others is None else self.others[rows]
        return self.view.features(
            self.counts[rows], self.config, missing=self.missing, others=others, cell_pull=self.cell_pull
        )
