"""Where distances are distorted: the paper's heatmap (Figure "Qualitative reconstruction", bottom)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import cdist

from spatialgears.metrics.distances import least_squares_scale
from spatialgears.metrics.neighbourhoods import BLOCK
from spatialgears.metrics.points import canonical, check_pair, check_points


def morton_order(points: ArrayLike) -> NDArray[np.intp]:
    """Order of the points (n, 2) along the Morton (Z) curve: near in the order means near in the plane.

    Parameters
    ----------
    points
        Coordinates (n, 2).

    Returns
    -------
    ndarray (n,)
        Positions of the points, first to last.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> corners = np.array([[0.0, 0.0], [1.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    >>> sg.metrics.morton_order(corners).tolist()
    [0, 2, 3, 1]
    """
    array = check_points(points)
    low, span = array.min(axis=0), np.ptp(array, axis=0).max()
    cell = ((array - low) * (65535 / (span or 1.0))).astype(np.uint64)  # 16 bits per axis
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        # spread the bits, leaving gaps for the other axis
        cell = (cell | (cell << np.uint64(shift))) & np.uint64(mask)
    return np.argsort(cell[:, 0] | (cell[:, 1] << np.uint64(1)), kind="stable")


def distortion_matrix(
    coords: ArrayLike, truth: ArrayLike, *, blocks: int = 200, eps: float = 1e-3, scale: float | None = None
) -> NDArray[np.float64]:
    """Block means of E_ij = ``|log((D̂_ij + eps) / (D_ij + eps))|``, cells in Morton order of the truth.

    Parameters
    ----------
    coords, truth
        Predicted and true coordinates (n, 2).
    blocks
        Rows and columns of the result (no more than there are points).
    eps
        Keeps coincident points finite, in units of the RMS radius.
    scale
        Factor on the predicted distances; by default the least-squares one over all pairs.

    Returns
    -------
    A symmetric array (blocks, blocks); 0 is undistorted, 0.69 is off by a factor of two.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> truth = np.random.default_rng(0).normal(size=(100, 2))
    >>> sg.metrics.distortion_matrix(truth[:, ::-1], truth, blocks=4).shape
    (4, 4)
    """
    predicted, true = (canonical(points) for points in check_pair(coords, truth))
    scale = least_squares_scale(predicted, true) if scale is None else scale
    order = morton_order(true)
    predicted, true, n = scale * predicted[order], true[order], len(true)
    blocks = min(blocks, n)
    edges = np.arange(blocks + 1) * n // blocks
    columns = np.empty((n, blocks))  # sums over the columns of each block
    step = max(1, BLOCK // n)
    for start in range(0, n, step):
        rows = slice(start, start + step)
        ratio = (cdist(predicted[rows], predicted) + eps) / (cdist(true[rows], true) + eps)
        columns[rows] = np.add.reduceat(np.abs(np.log(ratio)), edges[:-1], axis=1)
    size = np.diff(edges)
    return np.add.reduceat(columns, edges[:-1], axis=0) / np.outer(size, size)
