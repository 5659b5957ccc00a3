"""Expression over the reconstruction: smoothed by the uncertainty of positions, and its agreement with the slide."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import ndimage, sparse, stats

from spatialgears.analysis import lookup
from spatialgears.errors import InputError
from spatialgears.expression.panel import morans_i

if TYPE_CHECKING:
    from anndata import AnnData

logger = logging.getLogger(__name__)

PIXELS = 200  # along the longer side of the tissue
LEVELS = 8  # widths of the blur; every cell takes the nearest


def spatial_expression(
    adata: AnnData,
    genes: str | Sequence[str] | None = None,
    *,
    slide: AnnData | None = None,
    radius: str | None = "gears_radius50",
    n_neighbors: int = 6,
    layer: str | None = None,
    basis: str = "X_gears",
    spatial_key: str = "spatial",
    outside: str | None = lookup.OUTSIDE,
    copy: bool = False,
) -> AnnData | None:
    """Smooth genes over the reconstruction, and compare their Moran's I with the slide's.

    A cell's expression is spread over where the cell may lie, a round Gaussian with the cell's own 50% radius; the
    value at a position is the mean over all cells, weighted so. Uncertain positions blur patterns.

    Genes that are patterned on the slide should be patterned in the reconstruction, and others should not: the
    agreement of Moran's I over genes is a check of the whole method that needs no labels and no truth.

    Parameters
    ----------
    adata
        Cells with coordinates in ``obsm[basis]`` and radii in ``obs``.
    genes
        One gene or many to smooth; None: none, only Moran's I.
    slide
        Spots with ``obsm[spatial_key]``, to compare with.
    radius
        Column of ``obs`` with the 50% radius of each cell; None: coordinates are taken as exact, up to 1/200 of the tissue.
    n_neighbors
        Neighbours for Moran's I.
    layer
        Where expression is read in both; default ``X``. Counts are normalised and logged.
    basis, spatial_key
        Keys of the coordinates.
    outside
        Column of ``obs`` that marks cells outside the slides' range: they neither
        give nor get a value.
        None: all cells count. Without the column ``"gears_outside"``, all do.
    copy
        Write into a copy and return it.

    Returns
    -------
    ``None``, or the copy. Writes

    ``obsm["gears_expression"]``
        DataFrame (cells, genes), smoothed log-normalised expression at each cell's place (if ``genes``); missing
        for cells left out.
    ``uns["gears_moran"]["table"]``
        Moran's I of each gene: ``reconstruction`` and, with ``slide``, ``slide`` (genes in both).
    ``uns["gears_moran"]["agreement"]``
        Spearman correlation of the two over the genes (with ``slide``).

    Notes
    -----
    Coordinates come from expression, so Moran's I in the reconstruction is higher than chance for any gene that was
    used; only the order of the genes is informative. Time is linear in cells and in genes: 3 s for
    100,000 cells, 10 genes smoothed and Moran's I of 1,000.

    Examples
    --------
    >>> import spatialgears as sg
    >>> tissue = sg.datasets.simulate_tissue(n_cells=800, n_genes=60, spots=200)
    >>> cells = tissue.cells
    >>> cells.obsm["X_gears"] = sg.metrics.canonical(tissue.truth.obsm["spatial"])  # or rec.to_adata(cells)
    >>> cells.obs["gears_radius50"] = 0.1
    >>> sg.tl.spatial_expression(cells, list(cells.var_names[:2]), slide=tissue.slides[0])
    >>> cells.obsm["gears_expression"].shape, cells.uns["gears_moran"]["agreement"] > 0.5
    ((800, 2), True)
    """
    if genes is None and slide is None:
        raise InputError(
            "Nothing was asked for.", "Name genes to smooth, or give slide= to compare Moran's I with."
        )
    kept = lookup.counted(adata, outside)
    coords = lookup.places(adata, basis)[kept]
    logged = lookup.log_expression(adata, layer=layer)[kept]
    names = lookup.gene_names(adata, layer, "adata")
    smoothed = None
    if genes is not None:
        columns = lookup.gene_columns(adata, genes, layer=layer, name="adata")
        values = np.full((adata.n_obs, len(columns)), np.nan, np.float32)
        spread = np.zeros(len(coords)) if radius is None else lookup.spreads(adata, radius, kept)
        values[kept] = smooth(coords, spread, logged[:, columns])
        smoothed = pd.DataFrame(values, adata.obs_names, names[columns])
        names_of_moran = names[columns]
    if slide is not None:
        names_of_moran = _shared_names(names, lookup.gene_names(slide, layer, "slide"))
    moran = _moran(logged, coords, names, names_of_moran, n_neighbors=n_neighbors)
    table = pd.DataFrame({"reconstruction": moran}, index=pd.Index(names_of_moran, name="gene"))
    found: dict[str, object] = {"table": table, "n_neighbors": n_neighbors, "n_outside": int((~kept).sum())}
    if slide is not None:
        spots, measured = lookup.places(slide, spatial_key, "slide"), lookup.gene_names(slide, layer, "slide")
        logged = lookup.log_expression(slide, layer=layer, name="slide")
        table["slide"] = _moran(logged, spots, measured, names_of_moran, n_neighbors=n_neighbors)
        found["agreement"] = np.nan
        if (table.nunique() > 1).all():
            found["agreement"] = float(stats.spearmanr(table["reconstruction"], table["slide"]).statistic)
        logger.info("Moran's I of %d genes: Spearman %.2f with the slide", len(table), found["agreement"])
    adata = lookup.target(adata, copy)
    if smoothed is not None:
        adata.obsm["gears_expression"] = smoothed
    adata.uns["gears_moran"] = found
    return adata if copy else None


def smooth(
    coords: NDArray[np.float64], spread: NDArray[np.float64], values: sparse.csr_matrix
) -> NDArray[np.float32]:
    """Kernel mean (n, G) of the values at every point, each value spread by its own standard deviation (n,).

    Values are summed on a grid, once for each of a few widths, and blurred there: O(n + pixels) per gene. A width
    below one pixel counts as one pixel, 1/200 of the tissue.
    """
    low, extent = coords.min(0), float(np.ptp(coords, axis=0).max())
    if extent == 0:
        raise InputError("All cells lie at one point.", "Check the places.")
    pixel = extent / (PIXELS - 1)
    margin = 2
    place = (coords - low) / pixel + margin  # (n, 2), in pixels
    shape = tuple(int(side) + 2 + margin for side in place.max(0))
    level, widths = _levels(np.maximum(spread / pixel, 1.0))
    nearest = np.rint(place).astype(np.int64)
    pixel_of = np.ravel_multi_index((nearest[:, 0], nearest[:, 1]), shape)

    def field(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        total = np.zeros(shape)
        for i, width in enumerate(widths):
            mine = level == i
            image = np.bincount(pixel_of[mine], weights[mine], minlength=total.size).reshape(shape)
            total += ndimage.gaussian_filter(image, width, mode="constant", truncate=3)
        return ndimage.map_coordinates(total, place.T, order=1, mode="nearest")

    mass = np.maximum(field(np.ones(len(coords))), 1e-300)
    values = values.tocsc()
    columns = [
        field(values[:, [g]].toarray().ravel().astype(np.float64)) / mass for g in range(values.shape[1])
    ]
    return np.column_stack(columns).astype(np.float32)


def _levels(width: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """A few widths in geometric steps, and the one nearest to each cell's (n,)."""
    low, high = np.log(width.min()), np.log(width.max())
    if high - low < 1e-6:
        return np.zeros(len(width), np.int64), np.exp([low])
    step = (high - low) / (LEVELS - 1)
    return np.rint((np.log(width) - low) / step).astype(np.int64), np.exp(low + step * np.arange(LEVELS))


def _moran(
    logged: sparse.csr_matrix,
    coords: NDArray[np.float64],
    names: NDArray,
    genes: NDArray,
    *,
    n_neighbors: int,
) -> NDArray[np.float64]:
    """Moran's I of the named genes; of those that share a name, the first."""
    first = pd.Series(np.arange(len(names)), names)
    first = first[~first.index.duplicated()]
    return morans_i(logged[:, first[genes].to_numpy()], coords, n_neighbors=n_neighbors, raw=False)


def _shared_names(cells: NDArray, spots: NDArray) -> NDArray:
    shared = pd.Index(cells).unique().intersection(pd.Index(spots).unique(), sort=False)
    if len(shared) < 3:
        raise InputError(
            f"adata and slide share {len(shared)} genes. adata has {lookup.listed(cells, 4)}; slide has "
            f"{lookup.listed(spots, 4)}.",
            "Use the same kind of gene names in both.",
        )
    return np.asarray(shared)
