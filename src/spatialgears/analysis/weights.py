"""The sparse matrix of cells and spots that label transfer, imputation and abundance rest on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from spatialgears.analysis import lookup
from spatialgears.analysis.choice import choose
from spatialgears.analysis.evidence import Evidence, Settings, chunks, gather
from spatialgears.errors import InputError

if TYPE_CHECKING:
    from anndata import AnnData

#: Most entries of the matrix, about 250 MB; beyond that, the smallest of every cell are left out.
ENTRIES = 30_000_000
FEWEST = 50  # spots that a cell keeps at least
NEGLIGIBLE = 0.1  # of an equal share: smaller weights are left out


def spot_weights(
    cells: AnnData,
    slide: AnnData,
    *,
    place: float | None = None,
    likeness: float | None = None,
    basis: str | None = None,
    layer: str | None = None,
    spatial_key: str = "spatial",
    outside: str | None = lookup.OUTSIDE,
    seed: int = 0,
) -> sparse.csr_matrix:
    """For each cell, weights of the spots of a slide, from its position and its similarity to the spots.

    The weight of a spot is ``exp(likeness * cosine - place * distance^2 / (2 spread^2))``, with the cosine of expression in the
    shared genes, and the spread of the cell's position from its 50% radius. A cell is averaged with similar cells first.
    Kept-out genes choose the two strengths: predicted from the cells by the weights, they should follow the slide.

    Parameters
    ----------
    cells
        Cells with coordinates in ``obsm["X_gears"]``, as a run writes them to ``cells.h5ad``.
    slide
        Spots with ``obsm[spatial_key]``; the model need not have been fitted on it.
    place, likeness
        Strengths of position and similarity. 0: not used. 1 for ``place``: as the radii say. None: chosen by kept-out genes.
    basis
        Key of ``cells.obsm`` with coordinates on this slide, from :func:`spatialgears.tl.register`. None: cells are registered.
    layer
        Where counts are read in both; default ``X``.
    spatial_key
        Key of the spots' coordinates.
    outside
        Column of ``cells.obs`` that marks cells outside the slides' range: their rows are empty. None: all cells count.
        Without the column ``"gears_outside"``, all do.
    seed
        The same seed gives the same weights.

    Returns
    -------
    csr_matrix (cells, spots)
        Float32. A row sums to one for a cell on the slide, to less the further off it the cell lies, and to zero for a cell
        that is marked outside.

    Notes
    -----
    Time is linear in cells and in spots. Weights are computed for some cells at a time, and a cell keeps only the spots that
    matter: at most 30 million entries in all, and at least 50 for a cell.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> tissue = sg.datasets.simulate_tissue(n_cells=400, n_genes=60, spots=80)
    >>> cells = tissue.cells
    >>> cells.obsm["X_gears"] = sg.metrics.canonical(tissue.truth.obsm["spatial"])  # or rec.to_adata(cells)
    >>> cells.obs["gears_radius50"] = 0.1
    >>> weights = sg.tl.spot_weights(cells, tissue.slides[0])
    >>> weights.shape == (400, tissue.slides[0].n_obs), bool(weights.sum(1).max() < 1.001)
    (True, True)
    """
    evidence, settings = weigh(
        cells, slide, place=place, likeness=likeness, basis=basis, layer=layer, spatial_key=spatial_key, outside=outside,
        seed=seed,
    )  # fmt: skip
    return matrix(evidence, settings, seed=seed)


def weigh(
    cells: AnnData,
    slide: AnnData,
    *,
    place: float | None,
    likeness: float | None,
    basis: str | None,
    layer: str | None,
    spatial_key: str,
    outside: str | None,
    seed: int,
    averaged: bool = False,
    genes: bool = False,
) -> tuple[Evidence, Settings]:
    """The evidence, and the strengths of position and similarity: for single cells, or for an average over them."""
    for name, value in (("place", place), ("likeness", likeness)):
        if value is not None and not 0 <= value < np.inf:
            raise InputError(
                f"{name} must not be negative, found {value}.", "None chooses it by kept-out genes."
            )
    evidence = gather(
        cells, slide, basis=basis, places=place != 0, layer=layer, spatial_key=spatial_key, outside=outside,
        genes=genes, seed=seed,
    )  # fmt: skip
    return evidence, choose(
        evidence, place=place, likeness=likeness, averaged=averaged, genes=genes, seed=seed
    )


def matrix(evidence: Evidence, settings: Settings, *, seed: int) -> sparse.csr_matrix:
    """All weights (N, M), without negligible ones."""
    n_cells, n_spots = len(evidence.kept), len(evidence.coords)
    most = min(max(ENTRIES // n_cells, FEWEST), n_spots)
    share, parts, lengths = evidence.on_slide(settings), [], np.zeros(n_cells, np.int64)
    for rows, weights in chunks(evidence, settings, seed=seed):
        least = np.full(len(rows), NEGLIGIBLE / n_spots, np.float32)
        if most < n_spots:
            least = np.maximum(least, np.partition(weights, n_spots - most, axis=1)[:, n_spots - most])
        weights[weights < least[:, None]] = 0
        weights *= (share[rows] / weights.sum(1))[:, None]
        parts.append(sparse.csr_matrix(weights))
        lengths[rows] = np.diff(parts[-1].indptr)
    stacked = sparse.vstack(parts, format="csr")
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return sparse.csr_matrix((stacked.data, stacked.indices, ends), (n_cells, n_spots))
