"""How well coordinates agree with a known depth, for cells whose positions are unknown."""

from __future__ import annotations

import numpy as np
from scipy.spatial import cKDTree
from scipy.spatial.distance import pdist
from scipy.stats import rankdata


def score_depth(
    coords: np.ndarray, depth: np.ndarray, *, k: int = 20, n_directions: int = 180
) -> dict[str, float]:
    """How well coordinates (n, 2) agree with a known depth (n,), in any pose.

    A reconstruction has no fixed orientation, so the axis score is the best over all directions. Random positions in the
    same table show how much this choice alone gives.

    ``depth_axis``: the largest absolute Spearman correlation of depth with the position along one of ``n_directions``.
    ``depth_distance``: the Spearman correlation of differences in depth with predicted distances. ``depth_knn``: the
    share of the ``k`` nearest neighbours that have the same depth, averaged over depths.
    """
    angle = np.pi * np.arange(n_directions) / n_directions
    along = coords @ np.stack([np.cos(angle), np.sin(angle)])  # (n, directions)
    ranks = rankdata(np.column_stack([along, depth]), axis=0)
    ranks -= ranks.mean(0)
    scale = np.sqrt((ranks**2).sum(0))
    axis = np.abs(ranks[:, :-1].T @ ranks[:, -1]) / np.maximum(scale[:-1] * scale[-1], 1e-12)
    distance = np.corrcoef(rankdata(pdist(coords)), rankdata(pdist(depth[:, None])))[0, 1]
    k = min(k, len(coords) - 1)
    neighbours = cKDTree(coords).query(coords, k + 1)[1][:, 1:]
    same = (depth[neighbours] == depth[:, None]).mean(1)
    knn = np.mean([same[depth == value].mean() for value in np.unique(depth)])
    return {"depth_axis": float(axis.max()), "depth_distance": float(distance), "depth_knn": float(knn)}
