"""Local geometry and neighbourhood quality from nearest neighbours (paper, appendix "Evaluation Metrics").

**Ties.** On a lattice (spots, or cells placed at spots) the k nearest neighbours are not unique. Every
function here gives the expectation over all ways of breaking the ties at random, so that no score depends on
the order of the cells; without ties it is the paper's formula. Two distances tie when they are equal in
float32.

**Scale.** Predicted distances are multiplied by ``scale``, by default the least-squares factor over all
pairs.

**Rows.** ``rows`` restricts the average over points i to some of them; neighbours are always sought among all
points.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import KDTree
from scipy.spatial.distance import cdist

from spatialgears.errors import InputError
from spatialgears.metrics.distances import least_squares_scale
from spatialgears.metrics.points import canonical, check_pair, check_points, check_size

Points = NDArray[np.float64]
Rows = NDArray[np.integer]

#: Entries of a (rows, points) block held at once.
BLOCK = 4_000_000


@dataclass(frozen=True)
class Neighbours:
    """Neighbours of a block of m points, candidates w wide so that all ties at rank k are among them."""

    rows: Rows  #: (m,) the points
    index: NDArray[np.integer]  #: (m, w) candidates, by rising distance
    distance: NDArray[np.float32]  #: (m, w)
    weight: NDArray[np.float64]  #: (m, w) chance of being among the k nearest; rows sum to k
    ring: NDArray[np.float64]  #: (m, w) chance of being the k-th nearest; rows sum to 1
    radius: NDArray[np.float32]  #: (m,) distance of the k-th nearest


def neighbour_blocks(points: Points, k: int, rows: Rows) -> Iterator[Neighbours]:
    """The k nearest neighbours of ``rows`` among all ``points``, block by block, with ties in full."""
    tree, step = KDTree(points), max(1, BLOCK // len(points))
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        width = min(k + 2, len(points))
        while True:  # widen until the last candidate lies beyond the k-th; the point itself takes one column
            found, index = tree.query(points[block], k=width)
            distance = found.astype(np.float32)
            radius = distance[:, k]
            if width == len(points) or bool((distance[:, -1] > radius).all()):
                break
            width = min(2 * width, len(points))
        other = index != block[:, None]
        inside = other & (distance < radius[:, None])
        tied = other & (distance == radius[:, None])
        ring = tied / tied.sum(axis=1, keepdims=True)
        weight = inside + (k - inside.sum(axis=1, keepdims=True)) * ring
        yield Neighbours(block, index, distance, weight, ring, radius)


def knn_distances(points: ArrayLike, *, k: int = 20, rows: Rows | None = None) -> NDArray[np.float64]:
    """Distances (m, k) from all points, or ``rows``, to their k nearest others, in units of ``points``.

    Parameters
    ----------
    points
        Coordinates (n, 2).
    k
        Neighbours of each.
    rows
        Points to look at; all by default.

    Returns
    -------
    ndarray (m, k)
        Nearest first.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> line = np.column_stack([np.arange(6.0), np.zeros(6)])
    >>> sg.metrics.knn_distances(line, k=2)[0].tolist()
    [1.0, 2.0]
    """
    array = check_points(points)
    check_size(len(array), k)
    queried = array if rows is None else array[rows]
    return KDTree(array).query(queried, k=range(2, k + 2))[0]


def neighbourhood_radius(points: ArrayLike, *, k: int = 20, rows: Rows | None = None) -> float:
    """R_k: the median over points of the distance to the k-th nearest neighbour, in units of ``points``.

    Parameters
    ----------
    points
        Coordinates (n, 2).
    k
        Neighbours of each.
    rows
        Points to look at; all by default.

    Returns
    -------
    float
        The radius.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> line = np.column_stack([np.arange(6.0), np.zeros(6)])
    >>> sg.metrics.neighbourhood_radius(line, k=1)
    1.0
    """
    radius = float(np.median(knn_distances(points, k=k, rows=rows)[:, -1]))
    if radius == 0:
        raise InputError(
            f"More than half of the points share their place with {k} others: neighbourhoods have no size.",
            "Give a larger k, or score against truth with a finer resolution.",
        )
    return radius


def _prepare(
    coords: ArrayLike, truth: ArrayLike, k: int, rows: Rows | None, scale: float | None
) -> tuple[Points, Points, Rows, float]:
    predicted, true = (canonical(points) for points in check_pair(coords, truth))
    check_size(len(true), k)
    scale = least_squares_scale(predicted, true) if scale is None else scale
    return predicted, true, np.arange(len(true)) if rows is None else rows, scale


def _predicted(coords: Points, block: Neighbours, scale: float) -> NDArray[np.float64]:
    """Scaled predicted distances (m, w) of the candidate pairs."""
    return scale * np.linalg.norm(coords[block.index] - coords[block.rows][:, None], axis=2)


def cal_error(
    coords: ArrayLike, truth: ArrayLike, *, k: int = 20, scale: float | None = None, rows: Rows | None = None
) -> float:
    """CalErr(k): mean of ``|r̂_i / r_i - 1|`` for the distance to the k-th true neighbour; 0 is best.

    Points whose k-th true neighbour lies at distance 0 have no ratio and are left out.

    Parameters
    ----------
    coords, truth
        Predicted and true coordinates (n, 2).
    k, scale, rows
        See the module's notes.

    Returns
    -------
    float
        The error.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> truth = np.random.default_rng(0).normal(size=(100, 2))
    >>> round(sg.metrics.cal_error(3 * truth[:, ::-1], truth), 6)  # mirrored and scaled
    0.0
    """
    predicted, true, rows, scale = _prepare(coords, truth, k, rows, scale)
    total = count = 0.0
    for block in neighbour_blocks(true, k, rows):
        apart = block.radius > 0
        ratio = _predicted(predicted, block, scale)[apart] / block.radius[apart, None]
        total += float((block.ring[apart] * np.abs(ratio - 1)).sum())
        count += int(apart.sum())
    return total / count if count else float("nan")


def _squared_errors(
    coords: ArrayLike, truth: ArrayLike, k: int, rows: Rows | None, scale: float | None
) -> tuple[float, float, float]:
    """Means over the true kNN pairs E_k of squared errors and squared true distances; and R_k."""
    predicted, true, rows, scale = _prepare(coords, truth, k, rows, scale)
    error, length, radii = 0.0, 0.0, []
    for block in neighbour_blocks(true, k, rows):
        error += float((block.weight * (_predicted(predicted, block, scale) - block.distance) ** 2).sum())
        length += float((block.weight * block.distance.astype(np.float64) ** 2).sum())
        radii.append(block.radius)
    pairs = k * len(rows)
    return error / pairs, length / pairs, float(np.median(np.concatenate(radii)))


def lrmse(
    coords: ArrayLike, truth: ArrayLike, *, k: int = 20, scale: float | None = None, rows: Rows | None = None
) -> float:
    """LRMSE(k): root mean squared distance error over true kNN pairs in units of R_k (NaN if that is 0).

    Parameters
    ----------
    coords, truth
        Predicted and true coordinates (n, 2).
    k, scale, rows
        See the module's notes.

    Returns
    -------
    float
        The error.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> truth = np.random.default_rng(0).normal(size=(100, 2))
    >>> round(sg.metrics.lrmse(3 * truth[:, ::-1], truth), 6)  # mirrored and scaled
    0.0
    """
    error, _, radius = _squared_errors(coords, truth, k, rows, scale)
    return float(np.sqrt(error)) / radius if radius else float("nan")


def local_stress(
    coords: ArrayLike, truth: ArrayLike, *, k: int = 20, scale: float | None = None, rows: Rows | None = None
) -> float:
    """Stress-1 over the true kNN pairs only (paper, stitching table, without a formula); 0 is best.

    Parameters
    ----------
    coords, truth
        Predicted and true coordinates (n, 2).
    k, scale, rows
        See the module's notes.

    Returns
    -------
    float
        The error.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> truth = np.random.default_rng(0).normal(size=(100, 2))
    >>> round(sg.metrics.local_stress(3 * truth[:, ::-1], truth), 6)  # mirrored and scaled
    0.0
    """
    error, length, _ = _squared_errors(coords, truth, k, rows, scale)
    return float(np.sqrt(error / length)) if length else float("nan")


def trustworthiness(coords: ArrayLike, truth: ArrayLike, *, k: int = 20, rows: Rows | None = None) -> float:
    """Trust@k: are predicted neighbours true ones? 1 is best.

    Predicted neighbours that are not among the k nearest in truth cost their true rank less k. The normaliser
    is the paper's for k < n / 2, and the largest possible cost beyond, where the paper's would turn negative.

    Parameters
    ----------
    coords, truth
        Predicted and true coordinates (n, 2).
    k, rows
        See the module's notes.

    Returns
    -------
    float
        The score.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> truth = np.random.default_rng(0).normal(size=(100, 2))
    >>> round(sg.metrics.trustworthiness(3 * truth[:, ::-1], truth), 6)  # mirrored and scaled
    1.0
    """
    predicted, true = check_pair(coords, truth)
    check_size(len(true), k)
    rows = np.arange(len(true)) if rows is None else rows
    cost = sum(_rank_cost(block, true, k) for block in neighbour_blocks(predicted, k, rows))
    n = len(true)
    worst = k * (2 * n - 3 * k - 1) / 2 if k < n / 2 else (n - k) * (n - k - 1) / 2
    return 1 - cost / (len(rows) * worst)


def continuity(coords: ArrayLike, truth: ArrayLike, *, k: int = 20, rows: Rows | None = None) -> float:
    """Cont@k: are true neighbours kept in the prediction? 1 is best. Trust@k with the roles exchanged.

    Parameters
    ----------
    coords, truth
        Predicted and true coordinates (n, 2).
    k, rows
        See the module's notes.

    Returns
    -------
    float
        The score.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> truth = np.random.default_rng(0).normal(size=(100, 2))
    >>> round(sg.metrics.continuity(3 * truth[:, ::-1], truth), 6)  # mirrored and scaled
    1.0
    """
    return trustworthiness(truth, coords, k=k, rows=rows)


def _rank_cost(block: Neighbours, points: Points, k: int) -> float:
    """Sum over neighbours of the expected max(rank - k, 0) of the pair among distances in ``points``."""
    m, n = len(block.rows), len(points)
    distance = cdist(points[block.rows], points).astype(np.float32)  # (m, n)
    distance[np.arange(m), block.rows] = np.inf
    row, column = np.nonzero(block.weight)
    value = distance[row, block.index[row, column]]
    distance.sort(axis=1)
    # Row number above, bits of the non-negative distance below: all rows become one sorted list to search.
    high = np.arange(m, dtype=np.uint64) << np.uint64(32)
    ladder = (high[:, None] | distance.view(np.uint32)).ravel()
    wanted = high[row] | value.view(np.uint32)
    nearer = ladder.searchsorted(wanted, "left") - row * n  # tied ranks are nearer + 1 ... upto
    upto = ladder.searchsorted(wanted, "right") - row * n
    low, top = np.maximum(nearer - k, 0), np.maximum(upto - k, 0)
    expected = (top * (top + 1) - low * (low + 1)) / (2 * (upto - nearer))
    return float((block.weight[row, column] * expected).sum())
