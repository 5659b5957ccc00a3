"""Distances of a layout: between given pairs, to the k nearest cells, or between all cells if memory allows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.spatial import KDTree
from scipy.spatial.distance import pdist, squareform

from spatialgears.assembly.graph import without_self
from spatialgears.errors import InputError


def pair_distances(coords: NDArray[Any], pairs: ArrayLike) -> NDArray[np.float64]:
    """Distances (M,) between the cells of each row of ``pairs`` (M, 2); O(M)."""
    coords, pairs = np.asarray(coords, np.float64), np.asarray(pairs)
    if not pairs.size:
        return np.empty(0)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        raise InputError(
            f"Expected pairs of cells as whole numbers, a row for each (M, 2), found {pairs.dtype} of shape {pairs.shape}.",
            "For two lists of cells, np.column_stack([first, second]).",
        )
    if pairs.min() < 0 or pairs.max() >= len(coords):
        raise InputError(
            f"Cells are counted from 0 to {len(coords) - 1:,}, found {pairs.min():,} to {pairs.max():,}.",
            "Give the cells' rows.",
        )
    first, second = pairs.T
    return np.sqrt(((coords[first] - coords[second]) ** 2).sum(1))


def nearest_cells(coords: NDArray[Any], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Index and distance, each (N, min(k, N - 1)), of every cell's nearest others; O(N k log N)."""
    coords = np.asarray(coords, np.float64)
    reach = min(k + 1, len(coords))
    distance, index = KDTree(coords).query(coords, k=np.arange(1, reach + 1))
    return without_self(index, distance)


def neighbour_matrix(coords: NDArray[Any], k: int) -> sparse.csr_matrix:
    """The distances to the k nearest cells as an (N, N) CSR matrix, k stored entries per row (zeros kept)."""
    index, distance = nearest_cells(coords, k)
    n_cells, k = index.shape
    return sparse.csr_matrix(
        (distance.ravel(), index.ravel(), np.arange(n_cells + 1) * k), (n_cells, n_cells)
    )


def dense_distances(coords: NDArray[Any], *, memory_gb: float = 4.0) -> NDArray[np.float32]:
    """All (N, N) distances in single precision, refused when they would not fit in ``memory_gb``."""
    n_cells = len(coords)
    needed = n_cells**2 * 16 / 1e9  # the condensed and square forms in double precision, then the result
    if needed > memory_gb:
        raise InputError(
            f"All distances between {n_cells:,} cells need {needed:,.1f} GB; {memory_gb:g} GB are allowed.",
            "Ask for the k nearest or for given pairs, which need no matrix, or raise memory_gb.",
        )
    return squareform(pdist(np.asarray(coords, np.float64))).astype(np.float32)
