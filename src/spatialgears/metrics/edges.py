"""Local geometry from pairs: near against far, and shells of distance (paper, appendix "Evaluation Metrics").

A pair is *near* when its true distance is at most R_k, the median over points of the distance to the k-th
true neighbour (k = 20). As in :mod:`spatialgears.metrics.distances`, arguments are coordinates or condensed
distances.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spatialgears.errors import InputError
from spatialgears.metrics.distances import least_squares_scale
from spatialgears.metrics.neighbourhoods import neighbourhood_radius
from spatialgears.metrics.points import as_distances, canonical

Distances = NDArray[np.float32]


class Rates(NamedTuple):
    """True and false positive rates just before and at each distinct distance of a near pair, each (m,)."""

    tpr_before: NDArray[np.float64]
    fpr_before: NDArray[np.float64]
    tpr: NDArray[np.float64]
    fpr: NDArray[np.float64]


def near_pair_rates(d: Distances, g: Distances, radius: float) -> Rates:
    """Rates of calling a pair near when its predicted distance is below a threshold, from one sort of ``d``.

    Only at the distances of near pairs does the true positive rate change, so these thresholds hold all of
    ROC and precision-recall; equal distances share one threshold.
    """
    positive = np.sort(d[g <= np.float32(radius)])
    near, far = positive.size, d.size - positive.size
    if not near or not far:
        raise InputError(
            f"Near and far pairs are both needed; at radius {radius:.4g}, {near} are near and {far} far.",
            "Give a k well below the number of points, or another radius.",
        )
    every = np.sort(d)
    threshold = np.unique(positive)
    tp_before, tp = (positive.searchsorted(threshold, side) for side in ("left", "right"))
    all_before, all_after = (every.searchsorted(threshold, side) for side in ("left", "right"))
    return Rates(tp_before / near, (all_before - tp_before) / far, tp / near, (all_after - tp) / far)


def roc_vertices(rates: Rates) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The corners (fpr, tpr) of the ROC curve, from (0, 0) to (1, 1)."""
    fpr = np.stack([rates.fpr_before, rates.fpr], axis=1).ravel()  # (m, 2) -> (2 m,)
    tpr = np.stack([rates.tpr_before, rates.tpr], axis=1).ravel()
    return np.concatenate([[0.0], fpr, [1.0]]), np.concatenate([[0.0], tpr, [1.0]])


def area_under_roc(rates: Rates) -> float:
    """Area under the ROC curve by trapezia, which counts tied pairs half."""
    fpr, tpr = roc_vertices(rates)
    return float((np.diff(fpr) * (tpr[1:] + tpr[:-1])).sum() / 2)


def balanced_average_precision(rates: Rates) -> float:
    """Average precision where near pairs together weigh as much as far pairs together."""
    precision = rates.tpr / (rates.tpr + rates.fpr)
    return float((np.diff(rates.tpr, prepend=0.0) * precision).sum())


def _rates(coords: ArrayLike, truth: ArrayLike, k: int, radius: float | None) -> Rates:
    d, g = as_distances(coords, truth)
    return near_pair_rates(d, g, _radius(truth, k, radius))


def _radius(truth: ArrayLike, k: int, radius: float | None) -> float:
    if radius is not None:
        return radius
    if np.ndim(truth) == 1:
        raise InputError(
            "R_k cannot be read from condensed true distances.", "Give true coordinates, or radius=."
        )
    return neighbourhood_radius(canonical(truth), k=k)


def edge_auc(coords: ArrayLike, truth: ArrayLike, *, k: int = 20, radius: float | None = None) -> float:
    """Edge ROC-AUC: how well predicted distance tells near pairs from far ones; 1 is best, 0.5 is chance.

    Parameters
    ----------
    coords, truth
        Predicted and true coordinates (n, 2), or condensed distances.
    k
        Neighbourhood size that defines near, as R_k of the truth.
    radius
        The near radius itself, instead of R_k, in the units of the true distances (canonical for
        coordinates).

    Returns
    -------
    float
        The area under the curve.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> truth = np.random.default_rng(0).normal(size=(100, 2))
    >>> round(sg.metrics.edge_auc(3 * truth[:, ::-1], truth), 6)  # mirrored and scaled
    1.0
    """
    return area_under_roc(_rates(coords, truth, k, radius))


def balanced_ap(coords: ArrayLike, truth: ArrayLike, *, k: int = 20, radius: float | None = None) -> float:
    """Balanced average precision for near against far pairs, each class of total weight one; 1 is best.

    Parameters
    ----------
    coords, truth, k, radius
        As for :func:`edge_auc`.

    Returns
    -------
    float
        The average precision.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> truth = np.random.default_rng(0).normal(size=(100, 2))
    >>> round(sg.metrics.balanced_ap(3 * truth[:, ::-1], truth), 6)  # mirrored and scaled
    1.0
    """
    return balanced_average_precision(_rates(coords, truth, k, radius))


def edge_roc(
    coords: ArrayLike, truth: ArrayLike, *, k: int = 20, radius: float | None = None, points: int | None = 500
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The edge ROC curve, for a figure.

    Parameters
    ----------
    coords, truth, k, radius
        As for :func:`edge_auc`.
    points
        Return at most so many corners, evenly spaced along the exact curve; ``None`` returns all.

    Returns
    -------
    False and true positive rates, both rising from 0 to 1.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> truth = np.random.default_rng(0).normal(size=(100, 2))
    >>> false, true = sg.metrics.edge_roc(truth[:, ::-1], truth)
    >>> float(true[-1])
    1.0
    """
    fpr, tpr = roc_vertices(_rates(coords, truth, k, radius))
    if points is None or points >= fpr.size:
        return fpr, tpr
    kept = np.linspace(0, fpr.size - 1, points).round().astype(int)
    return fpr[kept], tpr[kept]


def shell_f1(
    coords: ArrayLike,
    truth: ArrayLike,
    *,
    shells: Literal["quantile", "radius"] = "quantile",
    count: int = 5,
    quantiles: int = 10,
    k: int = 20,
    radius: float | None = None,
    scale: float | None = None,
) -> float:
    """Shell F1 (macro): are pairs found in the right shell of distance? 1 is best.

    Shell s holds the pairs with r_{s-1} < D <= r_s, the first also those at distance 0; F1 per shell, then
    the mean over the nearest ``count`` shells.

    Parameters
    ----------
    coords, truth
        Predicted and true coordinates (n, 2), or condensed distances.
    shells
        ``"quantile"``: r_s are the quantiles s / ``quantiles`` of the true distances. ``"radius"``: r_s = s
        R_k.
    count
        Number of shells, nearest first, in the mean.
    quantiles
        Number of quantile shells the truth is cut into.
    k, radius
        For ``shells="radius"``, as for :func:`edge_auc`.
    scale
        Factor on the predicted distances; by default the least-squares one.

    Returns
    -------
    float
        The mean F1.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> truth = np.random.default_rng(0).normal(size=(100, 2))
    >>> round(sg.metrics.shell_f1(3 * truth[:, ::-1], truth), 6)  # mirrored and scaled
    1.0
    """
    d, g = as_distances(coords, truth)
    scale = least_squares_scale(d, g) if scale is None else scale
    d = np.float32(scale) * d
    if shells == "radius":
        edges = np.arange(1, count + 1) * _radius(truth, k, radius)
    elif shells == "quantile" and 0 < count <= quantiles:
        edges = np.quantile(g, np.arange(1, count + 1) / quantiles)
    else:
        raise InputError(
            f"shells must be 'quantile' or 'radius', with 0 < count <= quantiles; "
            f"found {shells!r}, count {count}, quantiles {quantiles}."
        )
    below, scores = -np.inf, []
    for edge in edges.astype(np.float32):
        true, found = (g > below) & (g <= edge), (d > below) & (d <= edge)
        size = np.count_nonzero(true) + np.count_nonzero(found)
        scores.append(2 * np.count_nonzero(true & found) / size if size else 0.0)
        below = edge
    return float(np.mean(scores))
