from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.manifold import trustworthiness as sklearn_trustworthiness

from spatialgears.errors import InputError
from spatialgears.metrics import (
    cal_error,
    canonical,
    continuity,
    knn_distances,
    least_squares_scale,
    local_stress,
    lrmse,
    neighbourhood_radius,
    neighbourhoods,
    trustworthiness,
)
from spatialgears.metrics.neighbourhoods import neighbour_blocks


def slow_tables(coords, truth):
    """Scaled predicted distances, true distances, and each point's others by true distance."""
    coords, truth = canonical(coords), canonical(truth)
    D, G = least_squares_scale(coords, truth) * cdist(coords, coords), cdist(truth, truth)
    return D, G, [[j for j in np.argsort(G[i]) if j != i] for i in range(len(G))]


def test_radius_is_the_median_distance_to_the_kth_neighbour(layout):
    _, truth = layout
    ordered = np.sort(cdist(truth, truth), axis=1)
    np.testing.assert_allclose(knn_distances(truth, k=7), ordered[:, 1:8])
    assert neighbourhood_radius(truth, k=7) == pytest.approx(np.median(ordered[:, 7]))
    rows = np.array([3, 1, 8])
    assert neighbourhood_radius(truth, k=7, rows=rows) == pytest.approx(np.median(ordered[rows, 7]))


def test_points_piled_up_have_no_radius():
    with pytest.raises(InputError, match="share their place"):
        neighbourhood_radius(np.repeat(np.eye(2), 30, axis=0), k=20)


@pytest.mark.parametrize("k", [5, 20])
def test_cal_error_is_its_formula(layout, k):
    D, G, order = slow_tables(*layout)
    expected = np.mean([abs(D[i, order[i][k - 1]] / G[i, order[i][k - 1]] - 1) for i in range(len(G))])
    assert cal_error(*layout, k=k) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("k", [5, 20, 58])
def test_lrmse_and_local_stress_are_their_formulas(layout, k):
    D, G, order = slow_tables(*layout)
    pairs = [(i, j) for i in range(len(G)) for j in order[i][:k]]
    radius = np.median([G[i, order[i][k - 1]] for i in range(len(G))])
    squares = [(D[p] - G[p]) ** 2 for p in pairs]
    assert lrmse(*layout, k=k) == pytest.approx(np.sqrt(np.mean(squares)) / radius, rel=1e-5)
    expected = np.sqrt(np.sum(squares) / np.sum([G[p] ** 2 for p in pairs]))
    assert local_stress(*layout, k=k) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("metric", [cal_error, lrmse, local_stress])
def test_scale_can_be_given(layout, metric):
    coords, truth = layout
    assert metric(truth, truth, scale=1.0) == pytest.approx(0, abs=1e-6)
    assert metric(coords, truth, scale=least_squares_scale(coords, truth)) == metric(coords, truth)
    assert cal_error(truth, truth, scale=1.5) == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("k", [5, 20])
def test_trust_and_continuity_are_their_formulas(layout, k):
    coords, truth = layout
    n = len(truth)

    def cost(members, ranked):
        total = 0
        member, other = cdist(members, members), cdist(ranked, ranked)
        for i in range(n):
            rank = {j: r for r, j in enumerate([j for j in np.argsort(other[i]) if j != i], start=1)}
            chosen = [j for j in np.argsort(member[i]) if j != i][:k]
            total += sum(rank[j] - k for j in chosen if rank[j] > k)
        return 2 / (n * k * (2 * n - 3 * k - 1)) * total

    assert trustworthiness(coords, truth, k=k) == pytest.approx(1 - cost(coords, truth), abs=1e-12)
    assert continuity(coords, truth, k=k) == pytest.approx(1 - cost(truth, coords), abs=1e-12)
    expected = sklearn_trustworthiness(cdist(truth, truth), coords, n_neighbors=k, metric="precomputed")
    assert trustworthiness(coords, truth, k=k) == pytest.approx(expected, abs=1e-12)


def test_the_worst_layout_scores_zero_where_the_papers_normaliser_turns_negative():
    # Four points on a line, k = 2: in the prediction each point's farthest is among its two nearest.
    truth, coords = (np.array([[x, 0.0] for x in xs]) for xs in ([0, 1, 2.1, 3.3], [1, 3.3, 0, 2.1]))
    assert trustworthiness(coords, truth, k=2) == 0
    assert trustworthiness(truth, truth, k=2) == 1


def test_rows_restrict_the_average_and_blocks_do_not_matter(layout, monkeypatch):
    coords, truth = layout
    halves = [np.arange(0, 60, 2), np.arange(1, 60, 2)]
    for metric in (trustworthiness, continuity, cal_error):
        mean = np.mean([metric(coords, truth, rows=rows) for rows in halves])
        assert mean == pytest.approx(metric(coords, truth), abs=1e-9)
    whole = [metric(coords, truth) for metric in (trustworthiness, cal_error, lrmse)]
    monkeypatch.setattr(neighbourhoods, "BLOCK", 7 * 60)
    assert [m(coords, truth) for m in (trustworthiness, cal_error, lrmse)] == pytest.approx(whole, rel=1e-9)


def test_ties_share_their_chance(lattice):
    corner = next(neighbour_blocks(lattice, 4, np.array([0])))
    # From a corner: 2 at distance 1, 1 at sqrt 2, then 2 at distance 2 for the one place left.
    chance = dict(zip(corner.index[0].tolist(), corner.weight[0], strict=True))
    assert {j: w for j, w in chance.items() if w} == {1: 1, 6: 1, 7: 1, 2: 0.5, 12: 0.5}
    assert corner.ring.sum() == 1
    assert corner.radius[0] == 2


@pytest.mark.parametrize("metric", [trustworthiness, continuity, cal_error, lrmse])
def test_ties_give_the_mean_over_random_ways_to_break_them(lattice, metric):
    rng = np.random.default_rng(3)
    other = np.round(lattice @ [[0.9, 0.5], [-0.5, 0.8]])  # a lattice too, with points on top of each other

    def broken():
        return metric(*(p + 1e-5 * rng.normal(size=p.shape) for p in (other, lattice)), k=6)

    assert metric(other, lattice, k=6) == pytest.approx(np.mean([broken() for _ in range(150)]), rel=0.01)


def test_order_of_the_cells_does_not_matter_on_lattices(lattice):
    rng = np.random.default_rng(4)
    other, shuffle = np.round(lattice @ [[0.9, 0.5], [-0.5, 0.8]]), rng.permutation(len(lattice))
    for metric in (trustworthiness, continuity, cal_error, lrmse, local_stress):
        again = metric(other[shuffle], lattice[shuffle], k=6)
        assert again == pytest.approx(metric(other, lattice, k=6), rel=1e-9)


def test_piles_of_cells_have_undefined_ratios_only_where_they_must():
    rng = np.random.default_rng(5)
    piles = np.repeat(rng.normal(size=(8, 2)), 4, axis=0)
    noisy = piles + 0.1 * rng.normal(size=piles.shape)
    for metric in (cal_error, lrmse, local_stress):
        assert np.isnan(metric(noisy, piles, k=3))
        assert np.isfinite(metric(noisy, piles, k=4))
    assert trustworthiness(piles, noisy, k=3) <= 1
