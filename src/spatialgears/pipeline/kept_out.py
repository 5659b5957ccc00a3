"""Run the check on cells: place them with some genes masked, then predict the masked genes from the placed cells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from spatialgears.assembly.canonical import principal_plane
from spatialgears.config import Config
from spatialgears.pipeline import cell_check, gene_reading
from spatialgears.pipeline.cell_check import CellCheck
from spatialgears.pipeline.features import OtherCounts
from spatialgears.pipeline.fitted import Fitted
from spatialgears.pipeline.place import slides_among_cells
from spatialgears.runtime.progress import Progress, silent
from spatialgears.runtime.seeds import child_seed, numpy_rng


def check_cells(
    fitted: Fitted,
    counts: sparse.csr_matrix,
    config: Config,
    *,
    missing: NDArray[np.bool_] | None = None,
    others: OtherCounts | None = None,
    progress: Progress = silent,
) -> CellCheck:
    """Check cells with counts (N, G) on the model's genes, of which some (G,) may be ``missing``.

    One pass of the network for each part of the genes, over at most ``MOST_CELLS`` cells; no samples and no radii.
    """
    seed = child_seed(config.seed, "check on cells")
    rows = np.flatnonzero(np.asarray(abs(counts).sum(1)).ravel() > 0)
    rows = np.sort(numpy_rng(seed, "cells").permutation(rows)[: cell_check.MOST_CELLS])
    if len(rows) < cell_check.FEWEST_CELLS:
        why = f"{len(rows):,} cells are too few, at least {cell_check.FEWEST_CELLS} are needed."
        return cell_check.not_checked(why, n_cells=len(rows))
    some, panel = counts[rows], fitted.panel
    slides = [slide.checked for slide in fitted.slides]
    reading = gene_reading.read_kept_out(
        Placer(fitted, some, config, seed, None if others is None else others[rows], progress),
        gene_reading.expression(some, panel, raw=fitted.raw),
        slides,
        panel.morans_i,
        missing=missing,
        seed=seed,
    )
    first = fitted.slides[0]
    found = cell_check.judge(
        reading,
        slides,
        genes=list(panel.genes[gene_reading.most_spatial(panel.morans_i)]),
        coords=first.frame.to_slide(first.coords[first.checked.spots]),
        n_cells=len(rows),
    )
    if found.patterns is None:
        return found
    return replace(found, patterns=replace(found.patterns, slide=fitted.order.index(0)))


class Placer:
    """Places cells with counts (n, G) by a fitted model, without the genes that are masked.

    A masked gene is set to its average, like a missing one. Its counts are removed before normalisation, so that neither
    the expression, nor the embedding used to find similar spots, nor the depth of the cell depends on it.
    """

    def __init__(
        self,
        fitted: Fitted,
        counts: sparse.csr_matrix,
        config: Config,
        seed: int,
        others: OtherCounts | None = None,
        progress: Progress = silent,
    ) -> None:
        self.fitted, self.counts, self.config, self.seed, self.others = fitted, counts, config, seed, others
        self.progress, self.calls = progress, 0

    @torch.no_grad()
    def __call__(self, mask: NDArray[np.bool_]) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
        """Positions of the cells (n, 2), and of the checked spots of each slide (m_i, 2) in the same frame."""
        seen = (self.counts @ sparse.diags((~mask).astype(self.counts.dtype))).tocsr()
        features = self.fitted.features(seen, self.config, missing=mask, others=self.others)
        geometry = self.fitted.network(features[np.arange(len(features))][None])[0]
        coords, _ = principal_plane(geometry.double().numpy())
        laid = slides_among_cells(self.fitted, features, coords, seed=self.seed)
        self.calls += 1
        self.progress("check on cells", self.calls, gene_reading.PARTS, {})
        slides = zip(laid, self.fitted.slides, strict=True)
        return coords, [spots[slide.checked.spots] for spots, slide in slides]
