"""One row of the paper's table: every geometry metric of one layout against the truth."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from spatialgears.errors import InputError
from spatialgears.metrics import distances, edges
from spatialgears.metrics.distribution import swd, w1_knn
from spatialgears.metrics.neighbourhoods import (
    cal_error,
    continuity,
    local_stress,
    lrmse,
    neighbourhood_radius,
    trustworthiness,
)
from spatialgears.metrics.points import MAX_PAIRED_POINTS, canonical, check_pair, check_size, condensed

#: Neighbourhood sizes of the multiscale LRMSE.
LRMSE_K = (10, 20, 50, 100)


def evaluate(
    coords: ArrayLike,
    truth: ArrayLike,
    *,
    k: int = 20,
    max_exact: int = 12_000,
    projections: int = 64,
    seed: int = 0,
) -> dict[str, float]:
    """Score predicted coordinates against true ones (paper, appendix "Evaluation Metrics").

    Conventions: both sides are centred and scaled to unit RMS radius; predicted distances are multiplied by
    the least-squares factor before every metric that compares magnitudes (but ``scale_error`` and
    ``stress1_unscaled``); Shell F1 takes 10 quantile shells of the truth and the mean over the nearest 5
    (``shell_f1_radius``: 5 shells, each R_k wide); SWD follows an orthogonal Procrustes alignment. Scores do
    not depend on position, rotation, reflection or scale of the prediction, nor on the order of the cells.

    Up to ``max_exact`` points all pairs count. Above, the same quantities are estimated from ``max_exact``
    points drawn with ``seed``: pairs among them, and their neighbours among *all* points (for Trust and Cont,
    those of ``max_exact ** 2 / n`` of them). Time and memory are then about those of ``max_exact`` points.
    The estimates are unbiased to within their noise, but ``scale_error``, an absolute value, which a sample
    makes too large where it is close to 0. SWD always uses all points.

    Parameters
    ----------
    coords, truth
        Predicted and true coordinates (n, 2), rows in the same order; at least ``k + 2`` points.
    k
        Neighbourhood size of the local metrics.
    max_exact
        Largest number of points scored exactly.
    projections
        Directions of the SWD.
    seed
        Seed of the SWD directions and of the sample.

    Returns
    -------
    ``spearman``, ``pearson``, ``stress1``, ``stress1_unscaled``, ``scale_error``, ``edge_auc``, ``bap``,
    ``shell_f1``, ``shell_f1_radius``, ``cal_error``, ``lrmse_10``, ``lrmse_20``, ``lrmse_50``, ``lrmse_100``
    (NaN with too few points), ``local_stress``, ``trust``, ``cont``, ``swd``, ``w1_knn``, ``n``
    (points given) and ``sampled`` (0 or 1).

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> truth = np.random.default_rng(0).normal(size=(100, 2))
    >>> scores = sg.metrics.evaluate(truth[:, ::-1], truth)
    >>> round(scores["spearman"], 6), round(scores["trust"], 6)
    (1.0, 1.0)
    """
    predicted, true = (canonical(points) for points in check_pair(coords, truth))
    check_size(len(true), k)
    if not k + 2 <= max_exact <= MAX_PAIRED_POINTS:
        raise InputError(f"max_exact must lie between k + 2 and {MAX_PAIRED_POINTS}, found {max_exact}.")
    n = len(true)
    sampled = n > max_exact
    rows = np.random.default_rng([seed, 1]).choice(n, max_exact, replace=False) if sampled else np.arange(n)
    ranked = rows[: max(1, max_exact**2 // n)]
    d, g = condensed(predicted[rows]), condensed(true[rows])
    scale = distances.least_squares_scale(d, g)
    radius = neighbourhood_radius(true, k=k, rows=rows)
    rates = edges.near_pair_rates(d, g, radius)
    row = {
        "spearman": distances.spearman(d, g),
        "pearson": distances.pearson(d, g),
        "stress1": distances.stress1(d, g, scale=scale),
        "stress1_unscaled": distances.stress1(d, g, scale=1.0),
        "scale_error": distances.scale_error(d, g),
        "edge_auc": edges.area_under_roc(rates),
        "bap": edges.balanced_average_precision(rates),
        "shell_f1": edges.shell_f1(d, g, scale=scale),
        "shell_f1_radius": edges.shell_f1(d, g, shells="radius", radius=radius, scale=scale),
        "cal_error": cal_error(predicted, true, k=k, scale=scale, rows=rows),
    }
    del d, g
    for size in LRMSE_K:
        value = lrmse(predicted, true, k=size, scale=scale, rows=rows) if size + 2 <= n else float("nan")
        row[f"lrmse_{size}"] = value
    return row | {
        "local_stress": local_stress(predicted, true, k=k, scale=scale, rows=rows),
        "trust": trustworthiness(predicted, true, k=k, rows=ranked),
        "cont": continuity(predicted, true, k=k, rows=ranked),
        "swd": swd(predicted, true, projections=projections, seed=seed),
        "w1_knn": w1_knn(predicted, true, k=k, scale=scale, rows=rows),
        "n": float(n),
        "sampled": float(sampled),
    }
