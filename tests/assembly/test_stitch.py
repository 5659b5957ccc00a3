from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from spatialgears.assembly import stitch as module
from spatialgears.assembly.measure import Measurements
from spatialgears.assembly.stitch import disagreement, reliability, stitch, weighted_median


def seen(rows: list[tuple[int, int, int, float]], *, n_cells: int, n_patches: int) -> Measurements:
    """Measurements from rows (i, j, patch, distance); a patch holds the cells it measured."""
    rows = sorted(rows)
    i, j, patch, distance = (np.array(column) for column in zip(*rows, strict=True))
    held = np.zeros((n_patches, n_cells), int)
    held[np.tile(patch, 2), np.concatenate([i, j])] = 1
    shared = sparse.csr_matrix(held @ held.T)
    return Measurements(i * n_cells + j, patch, distance.astype(float), n_cells, shared)


def slow_median(values: list[float], weights: list[float]) -> float:
    """The smallest minimiser of sum w |x - m|, or the midpoint where all between two values are minimisers."""
    costs = [sum(w * abs(v - m) for v, w in zip(values, weights, strict=True)) for m in values]
    best = [
        m
        for m, cost in zip(values, costs, strict=True)
        if np.isclose(cost, min(costs), rtol=1e-9, atol=1e-12)
    ]
    return (min(best) + max(best)) / 2


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9)), min_size=1, max_size=9),
        min_size=1,
        max_size=6,
    )
)
def test_weighted_median_is_the_slow_transcription(groups):
    groups = [sorted(group) for group in groups]
    values = np.array([v for group in groups for v, _ in group], float)
    weights = np.array([w for group in groups for _, w in group], float)
    start = np.cumsum([0, *(len(group) for group in groups)])[:-1]
    found = weighted_median(values, weights, start)
    expected = [slow_median([v for v, _ in group], [w for _, w in group]) for group in groups]
    assert np.allclose(found, expected)


def test_weighted_median_of_equal_weights_is_the_median_whatever_their_size():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 8, size=500)
    segment = np.repeat(np.arange(500), sizes)
    values = rng.normal(size=len(segment))
    values = values[np.lexsort((values, segment))]
    start = np.flatnonzero(np.diff(segment, prepend=-1))
    weights = np.repeat(10.0 ** rng.integers(-12, 1, size=500), sizes)
    expected = [np.median(values[segment == s]) for s in range(500)]
    assert np.allclose(weighted_median(values, weights, start), expected)


def random_measurements(
    n_patches: int = 6, *, bad: int | None = None, noise: float = 0.1, share: float = 0.8
) -> Measurements:
    rng = np.random.default_rng(1)
    rows = []
    for i in range(12):
        for j in range(i + 1, 12):
            true = 1 + (i * 7 + j) % 5
            for p in range(n_patches):
                if rng.random() < share:
                    wild = rng.lognormal(0, 2) if p == bad else np.exp(noise * rng.normal())
                    rows.append((i, j, p, true * wild))
    return seen(rows, n_cells=12, n_patches=n_patches)


def test_disagreement_is_the_slow_transcription(monkeypatch):
    m = random_measurements()
    expected = np.zeros((6, 6))
    for p in range(6):
        for q in range(6):
            a, b = (dict(zip(m.pair[m.patch == s], m.distance[m.patch == s], strict=True)) for s in (p, q))
            shared = set(a) & set(b)
            if p != q:
                expected[p, q] = np.mean([abs(np.log(a[s]) - np.log(b[s])) for s in shared])
    assert np.allclose(disagreement(m).toarray(), expected)
    monkeypatch.setattr(module, "LEAST_SHARED", 13)  # more cells than there are
    assert disagreement(m).nnz == 0


@pytest.mark.parametrize("cells", [4, 5])
def test_patches_are_compared_from_five_shared_cells_on_however_many_pairs(cells):
    """Six pairs of four cells say nothing; four pairs of five cells do."""
    pairs = [(i, j) for i in range(4) for j in range(i)] if cells == 4 else [(i, 4) for i in range(4)]
    rows = [(min(pair), max(pair), patch, 1.0 + patch) for pair in pairs for patch in (0, 1)]
    found = disagreement(seen(rows, n_cells=6, n_patches=2))
    expected = np.log(2) if cells == 5 else 0
    assert found.toarray() == pytest.approx(expected * (1 - np.eye(2)))


def test_reliability_is_relative_to_the_median_however_small_disagreement_is():
    small, large = (
        stitch(random_measurements(bad=2, noise=noise, share=1.0)).reliability for noise in (1e-4, 1e-1)
    )
    assert np.median(small) < 0.9 and np.median(large) < 0.9


def test_reliability_falls_with_disagreement_and_is_one_alone():
    trust = reliability(disagreement(random_measurements(bad=2)), 0.1)
    assert (trust > 0).all() and (trust <= 1).all() and trust.argmin() == 2
    assert trust[2] < 0.01 * np.median(trust)
    assert reliability(disagreement(random_measurements(n_patches=1)), 0.0).tolist() == [1.0]


def test_outlier_patch_moves_the_stitched_distances_less_with_reliability(monkeypatch):
    m = random_measurements(6, bad=1, noise=0.02, share=0.35)
    true = 1 + (np.divmod(m.pair, 12)[0] * 7 + m.pair % 12) % 5
    truth = dict(zip(m.pair.tolist(), true.tolist(), strict=True))
    monkeypatch.setattr(module, "MAX_SPREAD", 1e6)
    monkeypatch.setattr(module, "MIN_SUPPORT", 1)
    wrong = {}
    for weighted in (True, False):
        found = stitch(m, weighted=weighted)
        expected = [truth[int(i * 12 + j)] for i, j in zip(found.first, found.second, strict=True)]
        wrong[weighted] = np.mean(np.abs(np.log(found.distance) - np.log(expected)))
        assert (found.reliability == 1).all() != weighted
    assert wrong[True] < 0.5 * wrong[False]


def complete(distance: float = 1.0, *, n: int = 10, n_patches: int = 3) -> list[tuple[int, int, int, float]]:
    return [(i, j, p, distance) for i in range(n) for j in range(i + 1, n) for p in range(n_patches)]


def test_support_and_spread_filter_edges():
    rows = [row for row in complete(n=12) if row[:2] not in ((0, 1), (0, 2))]
    rows += [(0, 1, 0, 1.0)]  # one measurement
    rows += [(0, 2, 0, 1.0), (0, 2, 1, 4.0), (0, 2, 2, 9.0)]  # three that disagree
    found = stitch(seen(rows, n_cells=12, n_patches=3), weighted=False)
    kept = set(zip(found.first.tolist(), found.second.tolist(), strict=True))
    assert (0, 1) not in kept and (0, 2) not in kept and len(kept) == 64
    assert found.dropped == 2 and found.rejoined == 0 and (found.support == 3).all()


def test_confidence_grows_with_support_and_falls_with_spread():
    rows = complete(n_patches=2) + [(0, 1, p, 1.0) for p in (2, 3, 4)]
    rows = [row for row in rows if row[:2] != (2, 3)] + [(2, 3, 0, 1.0), (2, 3, 1, 1.4)]
    found = stitch(seen(rows, n_cells=10, n_patches=5), weighted=False)
    weight = {(i, j): w for i, j, w in zip(found.first, found.second, found.weight, strict=True)}
    assert weight[0, 1] > weight[0, 2] > weight[2, 3] > 0 and max(weight.values()) < 1


def test_unsupported_edges_are_kept_only_where_nothing_else_joins_a_part():
    rows = [*complete(), (3, 10, 0, 2.0), (4, 10, 0, 2.0)]
    found = stitch(seen(rows, n_cells=11, n_patches=3))
    assert found.rejoined == 2 and 10 in found.second
    supported = [(5, 10, 0, 2.0), (5, 10, 1, 2.0)]  # one good edge is enough
    found = stitch(seen([*rows, *supported], n_cells=11, n_patches=3))
    assert found.rejoined == 0 and found.dropped == 2 and (found.support >= 2).all()


def test_one_place_and_zero_distances_are_finite():
    found = stitch(seen(complete(0.0), n_cells=10, n_patches=3))
    assert np.isfinite(found.distance).all() and np.isfinite(found.weight).all() and found.disagreement == 0


@pytest.mark.parametrize("field", ["first", "distance", "weight"])
def test_stitching_takes_no_notice_of_patch_names(field):
    m = random_measurements(bad=3)
    order = np.lexsort((5 - m.patch, m.pair))
    renamed = Measurements(m.pair[order], 5 - m.patch[order], m.distance[order], 12, m.shared[::-1, ::-1])
    assert np.allclose(getattr(stitch(m), field), getattr(stitch(renamed), field))
