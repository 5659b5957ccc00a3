from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score, roc_curve

from spatialgears.errors import InputError
from spatialgears.metrics import (
    balanced_ap,
    canonical,
    edge_auc,
    edge_roc,
    least_squares_scale,
    neighbourhood_radius,
    shell_f1,
)


def labels_and_scores(coords, truth, k):
    """Near pairs by the definition of R_k, and predicted distances in the precision of the metrics."""
    g = pdist(canonical(truth))
    radius = np.median(np.sort(squareform(g), axis=1)[:, k])
    return g.astype(np.float32) <= np.float32(radius), -pdist(canonical(coords)).astype(np.float32)


@pytest.fixture(params=["scattered", "tied"])
def prediction(request, layout):
    """Predictions with and without equal distances."""
    coords, truth = layout
    return (coords if request.param == "scattered" else np.round(canonical(coords) * 2)), truth


@pytest.mark.parametrize("k", [5, 20])
def test_auc_and_balanced_ap_are_those_of_sklearn(prediction, k):
    near, score = labels_and_scores(*prediction, k)
    weight = np.where(near, 1 / near.sum(), 1 / (~near).sum())
    assert edge_auc(*prediction, k=k) == pytest.approx(roc_auc_score(near, score), abs=1e-9)
    expected = average_precision_score(near, score, sample_weight=weight)
    assert balanced_ap(*prediction, k=k) == pytest.approx(expected, abs=1e-9)


def test_auc_is_the_chance_that_a_near_pair_scores_above_a_far_one(prediction):
    near, score = labels_and_scores(*prediction, 5)
    difference = score[near][:, None] - score[~near][None, :]
    expected = (difference > 0).mean() + (difference == 0).mean() / 2
    assert edge_auc(*prediction, k=5) == pytest.approx(expected, abs=1e-9)


def test_roc_is_that_of_sklearn(prediction):
    near, score = labels_and_scores(*prediction, 20)
    fpr, tpr, _ = roc_curve(near, score, drop_intermediate=True)
    ours = edge_roc(*prediction, points=None)
    # Vertical steps make tpr ambiguous at a given fpr: compare the curves along their length instead.
    along = np.linspace(0, 2, 501)
    np.testing.assert_allclose(
        np.interp(along, sum(ours), ours[1]), np.interp(along, fpr + tpr, tpr), atol=1e-9
    )


def test_roc_for_a_figure_is_short_and_has_nearly_the_same_area(layout):
    fpr, tpr = edge_roc(*layout, points=80)
    assert len(fpr) == len(tpr) == 80
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0, 0, 1, 1)
    assert (np.diff(fpr) >= 0).all() and (np.diff(tpr) >= 0).all()
    area = (np.diff(fpr) * (tpr[1:] + tpr[:-1])).sum() / 2
    assert area == pytest.approx(edge_auc(*layout), abs=5e-3)


def test_radius_can_be_given_and_must_be_for_bare_distances(layout):
    coords, truth = layout
    radius = neighbourhood_radius(truth, k=20)
    d, g = pdist(coords), pdist(truth)
    assert edge_auc(d, g, radius=radius) == pytest.approx(edge_auc(coords, truth), abs=1e-6)
    with pytest.raises(InputError, match="radius="):
        edge_auc(d, g)
    with pytest.raises(InputError, match="0 are near"):
        edge_auc(d, g, radius=0.0)


@pytest.mark.parametrize("shells", ["quantile", "radius"])
def test_shell_f1_is_its_formula(layout, shells):
    coords, truth = layout
    g = pdist(canonical(truth))
    d = least_squares_scale(coords, truth) * pdist(canonical(coords))
    if shells == "quantile":
        edges = np.quantile(g, np.linspace(0, 1, 11))[1:6]
    else:
        edges = np.arange(1, 6) * np.median(np.sort(squareform(g), axis=1)[:, 20])
    scores, below = [], 0.0
    for edge in edges:
        true = {p for p in range(len(g)) if below < g[p] <= edge * (1 + 1e-7)}
        found = {p for p in range(len(d)) if below < d[p] <= edge * (1 + 1e-7)}
        precision, recall = len(true & found) / max(len(found), 1), len(true & found) / max(len(true), 1)
        scores.append(2 * precision * recall / (precision + recall) if precision + recall else 0.0)
        below = edge * (1 + 1e-7)
    assert shell_f1(coords, truth, shells=shells) == pytest.approx(np.mean(scores), abs=1e-9)


def test_shell_f1_is_that_of_sklearn_and_takes_unscaled_distances(layout):
    d, g = (pdist(canonical(points)) for points in layout)
    edges = np.quantile(g, [0.25, 0.5, 0.75])
    true, found = np.digitize(g, edges, right=True), np.digitize(d, edges, right=True)
    expected = f1_score(true, found, labels=[0, 1, 2], average="macro")
    assert shell_f1(d, g, count=3, quantiles=4, scale=1.0) == pytest.approx(expected, abs=1e-9)


def test_coincident_pairs_belong_to_the_first_shell():
    g = np.arange(10.0)
    assert shell_f1(g, g, count=1) == 1.0


@pytest.mark.parametrize("options", [{"shells": "rings"}, {"count": 11}, {"count": 0}])
def test_impossible_shells_are_refused(layout, options):
    with pytest.raises(InputError, match="shells must be"):
        shell_f1(*layout, **options)


def test_a_pair_at_the_radius_is_near():
    g = np.array([1.0, 2.0, 3.0, 4.0])
    assert edge_auc([2.0, 1.0, 3.0, 4.0], g, radius=2.0) == 1
    assert edge_auc([1.0, 4.0, 2.0, 3.0], g, radius=2.0) == 0.5
