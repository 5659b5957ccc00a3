"""Distribution of the points and of their spacing (paper, appendix "Evaluation Metrics")."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spatialgears.metrics.distances import least_squares_scale
from spatialgears.metrics.neighbourhoods import knn_distances
from spatialgears.metrics.points import canonical, check_pair, lay_on


def swd(coords: ArrayLike, truth: ArrayLike, *, projections: int = 64, seed: int = 0) -> float:
    """Sliced Wasserstein-1 distance between the two layouts in units of the RMS radius; 0 is best.

    Both are centred and scaled to unit RMS radius and the prediction is turned (and mirrored) onto the truth
    by orthogonal Procrustes; then the mean over random directions of the distance between the sorted
    projections.

    Parameters
    ----------
    coords, truth
        Predicted and true coordinates (n, 2), rows in the same order.
    projections
        Number of directions.
    seed
        Seed of the directions.

    Returns
    -------
    float
        The distance, in RMS radii.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> truth = np.random.default_rng(0).normal(size=(100, 2))
    >>> round(sg.metrics.swd(3 * truth[:, ::-1], truth), 6)  # mirrored and scaled
    0.0
    """
    x, y = (canonical(points) for points in check_pair(coords, truth))
    angle = np.random.default_rng(seed).uniform(0, np.pi, projections)
    directions = np.stack([np.cos(angle), np.sin(angle)])  # (2, projections)
    return float(
        np.abs(np.sort(x @ lay_on(x, y) @ directions, axis=0) - np.sort(y @ directions, axis=0)).mean()
    )


def w1_knn(
    coords: ArrayLike,
    truth: ArrayLike,
    *,
    k: int = 20,
    scale: float | None = None,
    rows: NDArray[np.integer] | None = None,
) -> float:
    """Wasserstein-1 distance between the kNN distances of prediction and truth, in RMS radii; 0 is best.

    Parameters
    ----------
    coords, truth
        Predicted and true coordinates (n, 2).
    k
        Neighbours per point, each side with its own.
    scale
        Factor on the predicted distances; by default the least-squares one over all pairs.
    rows
        Points whose kNN distances are collected; all by default.

    Returns
    -------
    float
        The distance, in RMS radii.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> truth = np.random.default_rng(0).normal(size=(100, 2))
    >>> round(sg.metrics.w1_knn(3 * truth[:, ::-1], truth), 6)  # mirrored and scaled
    0.0
    """
    predicted, true = (canonical(points) for points in check_pair(coords, truth))
    scale = least_squares_scale(predicted, true) if scale is None else scale
    found = scale * np.sort(knn_distances(predicted, k=k, rows=rows), axis=None)
    return float(np.abs(found - np.sort(knn_distances(true, k=k, rows=rows), axis=None)).mean())
