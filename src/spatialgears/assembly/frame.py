"""A common frame for patches that share anchors: what the paper's local patches lack.

The anchors see every patch, so the median of their distances over patches is robust; classical scaling of it
gives them places, and each patch is laid on these. Its cells' places start the solve, and its distances are
read in that plane.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spatialgears.assembly.patches import Patches
from spatialgears.assembly.solve import triangulate
from spatialgears.assembly.stitch import weighted_median
from spatialgears.metrics.points import lay_on

_MOST = 256  # anchors that are enough to fix a plane


def lay_patches(points: NDArray[Any], patches: Patches) -> NDArray[np.float64]:
    """Geometries (P, n, d) laid on the plane of their anchors, (P, n, 2); O(P n d + P A^2)."""
    anchors = np.sort(patches.anchors[:_MOST])
    where = np.nonzero(np.isin(patches.cells, anchors))[1].reshape(len(points), -1)  # (P, A), rows are sorted
    points = points.astype(np.float64)
    held = np.take_along_axis(points, where[:, :, None], 1)
    middle = held.mean(1, keepdims=True)
    held, points = held - middle, points - middle
    squares = (held**2).sum(-1)
    apart = squares[:, :, None] + squares[:, None] - 2 * held @ np.swapaxes(held, 1, 2)
    plane = triangulate(np.maximum(np.median(apart, axis=0), 0), np.arange(len(anchors)))
    return points @ lay_on(held, plane - plane.mean(0))


def median_places(
    places: NDArray[np.float64], patches: Patches, trust: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(N, 2) the median of a cell's places in its patches, weighted by the trust (P,) in each; one sort."""
    cells = patches.cells.ravel()
    weight = np.repeat(trust, patches.cells.shape[1])
    result = np.empty((patches.n_cells, 2))
    for axis in range(2):
        value = places[:, :, axis].ravel()
        order = np.lexsort((value, cells))
        start = np.flatnonzero(np.diff(cells[order], prepend=-1))
        result[:, axis] = weighted_median(value[order], weight[order], start)
    return result
