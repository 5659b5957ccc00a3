"""Pseudo-Visium: single cells with coordinates, aggregated into the spots of a square or hexagonal grid."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse
from scipy.spatial import cKDTree

from spatialgears.errors import InputError
from spatialgears.validate.counts import to_csr, values_of

Layout = Literal["square", "hex"]


def pseudo_visium(
    cells: AnnData,
    *,
    grid: tuple[int, int] = (30, 40),
    spot_fraction: float = 0.55,
    min_cells: int = 3,
    layout: Layout = "square",
    spatial_key: str = "spatial",
) -> AnnData:
    """Sum the counts of the cells under each spot of a regular grid (section 4.1).

    Spot centres run from the smallest to the largest coordinate of the cells, ends included. ``"square"``:
    spots are squares (rectangles where the two pitches differ) whose sides are ``spot_fraction`` of the
    pitch; with the default values this is the construction of the public pseudo-Visium slide of the mouse
    atlas. ``"hex"``: every second row is shifted by half a pitch, and spots are discs whose diameter is
    ``spot_fraction`` of the distance between neighbouring centres. Cells between the spots are lost, as on
    a real slide.

    Parameters
    ----------
    cells
        Cells x genes, raw counts, with coordinates in ``obsm[spatial_key]``; not modified.
    grid
        Number of spots along the first and the second coordinate.
    spot_fraction
        Width of a spot in units of the pitch, in (0, 1].
    min_cells
        Spots with fewer cells are left out.
    layout
        ``"square"`` or ``"hex"``.
    spatial_key
        Where the coordinates are.

    Returns
    -------
    AnnData
        Spots x genes, CSR, int64 or of the counts' own kind of float, with the spot centres in ``obsm["spatial"]`` and the
        number of cells in ``obs["n_cells"]``. Spot ``ST_i`` is the ``i``-th centre of the grid, the first
        coordinate running fastest.

    Examples
    --------
    >>> import numpy as np
    >>> corners = np.array([[0.0, 0.0], [0.1, 0.0], [1.0, 1.0]])
    >>> spots = pseudo_visium(AnnData(np.eye(3), obsm={"spatial": corners}), grid=(2, 2), min_cells=1)
    >>> spots.obs["n_cells"].to_dict()
    {'ST_0': 2, 'ST_3': 1}
    """
    coords = _checked(cells, grid=grid, spot_fraction=spot_fraction, min_cells=min_cells, key=spatial_key)
    if layout not in get_args(Layout):
        raise InputError(
            f"layout must be one of {', '.join(get_args(Layout))}, found {layout!r}.", "Choose one of them."
        )
    centres, spot = lay_spots(coords, grid=grid, spot_fraction=spot_fraction, layout=layout)
    n_cells = np.bincount(spot[spot >= 0], minlength=len(centres))
    kept = np.flatnonzero(n_cells >= min_cells)
    if not len(kept):
        raise InputError(
            f"No spot of the {grid} grid holds {min_cells} cells (the fullest holds {n_cells.max()}).",
            "Use a coarser grid, a larger spot_fraction or a smaller min_cells.",
        )
    values, _ = values_of(cells, None, "cells")
    in_memory = sparse.issparse(values) or isinstance(values, np.ndarray)
    counts = sparse.csr_matrix(values if in_memory else to_csr(values, np.arange(cells.n_vars)))
    if counts.dtype.kind in "biu":  # sums of narrow integers would not fit
        counts = counts.astype(np.int64)
    return AnnData(
        membership(spot, kept, dtype=counts.dtype) @ counts,
        obs=pd.DataFrame({"n_cells": n_cells[kept]}, index=[f"ST_{i}" for i in kept]),
        var=pd.DataFrame(index=cells.var_names.copy()),
        obsm={"spatial": centres[kept]},
    )


def same_spots(first: AnnData, second: AnnData) -> bool:
    """Whether two slides hold the same spots: names, genes, counts, and coordinates to rounding (1e-12).

    Parameters
    ----------
    first, second
        Slides with ``obsm["spatial"]``; not modified.

    Returns
    -------
    bool
        Whether they do.

    Examples
    --------
    >>> import spatialgears as sg
    >>> slide = sg.datasets.simulate_tissue(n_cells=200, n_genes=60, spots=100).slides[0]
    >>> sg.datasets.same_spots(slide, slide.copy())
    True
    """
    return bool(
        list(first.obs_names) == list(second.obs_names)
        and list(first.var_names) == list(second.var_names)
        and np.allclose(first.obsm["spatial"], second.obsm["spatial"], rtol=1e-12, atol=0)
        and abs(sparse.csr_matrix(first.X) - sparse.csr_matrix(second.X)).sum() == 0
    )


def lay_spots(
    coords: np.ndarray, *, grid: tuple[int, int], spot_fraction: float, layout: Layout
) -> tuple[np.ndarray, np.ndarray]:
    """Centres of the grid laid over the cells (spots, 2), and the spot over each cell, or -1 (n,)."""
    centres = _centres(coords.min(0), coords.max(0), grid, layout)
    width = spot_fraction * _unit(coords, grid, layout)
    norm = np.inf if layout == "square" else 2
    distance, spot = cKDTree(centres / width).query(coords / width, p=norm)  # (n,), in spot widths
    return centres, np.where(distance <= 0.5, spot, -1)


def membership(spot: np.ndarray, kept: np.ndarray, *, dtype: np.dtype | type) -> sparse.csr_matrix:
    """The (kept spots, cells) matrix of zeros and ones that sums cells into spots."""
    cell = np.flatnonzero(np.isin(spot, kept))
    row = np.searchsorted(kept, spot[cell])
    return sparse.csr_matrix((np.ones(len(cell), dtype), (row, cell)), shape=(len(kept), len(spot)))


def _unit(coords: np.ndarray, grid: tuple[int, int], layout: Layout) -> np.ndarray:
    """What ``spot_fraction`` is a fraction of: both pitches (square), or the distance of neighbours (hex)."""
    pitch = np.ptp(coords, axis=0) / (np.asarray(grid) - 1)
    return pitch if layout == "square" else np.full(2, min(pitch[0], np.hypot(pitch[0] / 2, pitch[1])))


def _centres(low: np.ndarray, high: np.ndarray, grid: tuple[int, int], layout: Layout) -> np.ndarray:
    """(spots, 2), row by row; odd rows of the hexagonal grid are shifted and hold one spot fewer."""
    x, y = (np.linspace(low[axis], high[axis], grid[axis]) for axis in (0, 1))
    xx, yy = np.meshgrid(x, y)  # (rows, columns)
    if layout == "square":
        return np.column_stack([xx.ravel(), yy.ravel()])
    xx[1::2] += (x[1] - x[0]) / 2
    inside = np.ones(xx.shape, bool)
    inside[1::2, -1] = False
    return np.column_stack([xx[inside], yy[inside]])


def _checked(
    cells: AnnData, *, grid: tuple[int, int], spot_fraction: float, min_cells: int, key: str
) -> np.ndarray:
    if len(grid) != 2 or min(grid) < 2:
        raise InputError(f"grid must be two numbers of at least 2, found {grid}.", "Example: grid=(30, 40).")
    if not 0 < spot_fraction <= 1:
        raise InputError(f"spot_fraction must lie in (0, 1], found {spot_fraction}.", "Visium has 0.55.")
    if min_cells < 1:
        raise InputError(
            f"min_cells must be at least 1, found {min_cells}.", "Spots without cells hold no counts."
        )
    if key not in cells.obsm:
        raise InputError(
            f'The cells have no obsm["{key}"]; there is {", ".join(cells.obsm) or "nothing in obsm"}.',
            "Give cells that have coordinates, or name the slot with spatial_key=.",
        )
    coords = np.asarray(cells.obsm[key], dtype=np.float64)
    if coords.ndim != 2 or coords.shape[1] != 2 or not np.isfinite(coords).all():
        raise InputError(
            f'obsm["{key}"] must be finite (cells, 2), found shape {coords.shape}.', "Remove such cells."
        )
    if len(coords) < 2 or not np.ptp(coords, axis=0).all():
        raise InputError(
            "The cells lie on one line or point: no grid can be laid over them.", "Check the coordinates."
        )
    return coords
