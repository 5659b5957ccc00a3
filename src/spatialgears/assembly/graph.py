"""Step 1 of section 3.5: the locality graph on which patches are random walks."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.neighbors import NearestNeighbors

#: The paper's appendix: neighbours of a cell, and overlap of neighbour sets that an edge must exceed.
NEIGHBORS, JACCARD = 50, 0.2
#: Up to this many points the search is exact: 20,000 points in 128 dimensions take about 5 s on one core.
EXACT_POINTS = 20_000
_ROWS = 4096


@dataclass(frozen=True)
class LocalityGraph:
    """Symmetric graph of robust expression neighbours."""

    adjacency: sparse.csr_matrix  # (N, N) CSR of zeros and ones
    #: Cells that lost all their edges to the filter and were joined to their nearest neighbour instead.
    isolated: int


def nearest(points: NDArray[Any], k: int, *, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The k nearest others of each point, nearest first: index and distance, each (N, min(k, N - 1)).

    Exact up to ``EXACT_POINTS`` points, O(N^2 dimension) in time and linear in memory; above that PyNNDescent, about
    O(N log N).
    """
    points = np.ascontiguousarray(points, np.float32)
    k = min(k + 1, len(points))  # the point itself is among them
    if len(points) <= EXACT_POINTS:
        distance, index = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(points).kneighbors(points)
    else:
        index, distance = _approximate(points, k, seed=seed)
    return without_self(index, distance)


def _approximate(points: NDArray[Any], k: int, *, seed: int) -> tuple[NDArray, NDArray]:
    from pynndescent import NNDescent

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numba's notes on its own caches and thread layers
        graph = NNDescent(points, n_neighbors=max(k, 15), random_state=seed % 2**32, n_jobs=1)
        found, distance = graph.neighbor_graph
    return found[:, :k], distance[:, :k]


def without_self(
    index: NDArray[Any], distance: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Drop row i's entry i from (N, k + 1) neighbours, or the farthest where duplicates pushed i out."""
    own = index == np.arange(len(index))[:, None]
    own[~own.any(1), -1] = True
    kept = ~own
    shape = (len(index), index.shape[1] - 1)
    return index[kept].reshape(shape).astype(np.int64), distance[kept].reshape(shape).astype(np.float32)


def locality_graph(
    points: NDArray[Any], *, k: int = NEIGHBORS, jaccard: float = JACCARD, seed: int = 0
) -> LocalityGraph:
    """Mutual kNN graph of (N, h) points, of edges whose neighbour sets overlap by more than ``jaccard``.

    Time: the neighbour search plus O(N k^2) for the overlaps, as sparse products over blocks of rows;
    memory O(N k) plus one block.
    """
    n_cells = len(points)
    if n_cells < 2:
        return LocalityGraph(sparse.csr_matrix((n_cells, n_cells), dtype=np.float32), n_cells)
    index, _ = nearest(points, k, seed=seed)
    k = index.shape[1]
    pointers = np.arange(n_cells + 1) * k
    directed = sparse.csr_matrix(
        (np.ones(n_cells * k, np.float32), index.ravel(), pointers), (n_cells, n_cells)
    )
    mutual = directed.multiply(directed.T).tocsr()
    reverse = directed.T.tocsr()  # (neighbour, cell), so directed @ reverse counts shared neighbours
    blocks = []
    for start in range(0, n_cells, _ROWS):
        rows = slice(start, start + _ROWS)
        shared = (directed[rows] @ reverse).multiply(mutual[rows]).tocsr()
        shared.data = (shared.data / (2 * k - shared.data) > jaccard).astype(np.float32)
        shared.eliminate_zeros()
        blocks.append(shared)
    robust = sparse.vstack(blocks, format="csr")
    alone = np.flatnonzero(np.diff(robust.indptr) == 0)
    ties = sparse.csr_matrix((np.ones(len(alone), np.float32), (alone, index[alone, 0])), (n_cells, n_cells))
    adjacency = (robust + ties + ties.T).tocsr()
    adjacency.data[:] = 1
    adjacency.sort_indices()
    return LocalityGraph(adjacency, len(alone))
