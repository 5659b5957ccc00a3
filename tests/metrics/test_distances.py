from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist
from scipy.stats import pearsonr, rankdata, spearmanr

from spatialgears.errors import InputError
from spatialgears.metrics import canonical, least_squares_scale, pearson, scale_error, spearman, stress1
from spatialgears.metrics.distances import centred_ranks


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 6), min_size=2, max_size=40))
def test_ranks_are_exact_with_ties(values):
    array = np.array(values, dtype=np.float32) / 3
    expected = 2 * rankdata(array) - (array.size + 1)
    np.testing.assert_array_equal(centred_ranks(array), expected)


def test_negative_zero_ranks_as_zero():
    np.testing.assert_array_equal(centred_ranks(np.array([-0.0, 0.0, 1.0], dtype=np.float32)), [-1, -1, 2])


def test_correlations_are_those_of_scipy(layout):
    coords, truth = layout
    d, g = pdist(coords), pdist(truth)
    assert spearman(coords, truth) == pytest.approx(spearmanr(d, g).statistic, abs=1e-6)
    assert pearson(coords, truth) == pytest.approx(pearsonr(d, g).statistic, abs=1e-6)


def test_spearman_of_a_lattice_has_the_ties_of_exact_arithmetic(lattice):
    squared = pdist(lattice, "sqeuclidean").round()  # integers: ties are exact
    coords = lattice @ np.array([[0.6, 0.8], [-0.8, 0.6]]) * [1.0, 3.0]
    expected = spearmanr(pdist(coords).astype(np.float32), squared).statistic
    assert spearman(coords, lattice) == pytest.approx(expected, abs=1e-6)


def test_a_constant_side_has_no_correlation():
    assert np.isnan(pearson(np.ones(3), [1.0, 2.0, 3.0]))
    assert np.isnan(spearman(np.ones(3), [1.0, 2.0, 3.0]))


def test_scale_minimises_the_squared_error(layout):
    coords, truth = layout
    d, g = pdist(coords), pdist(truth)
    expected = np.linalg.lstsq(d[:, None], g, rcond=None)[0][0]
    assert least_squares_scale(d, g) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(InputError, match="zero"):
        least_squares_scale(np.zeros(3), np.ones(3))


@pytest.mark.parametrize("scale", [None, 1.0])
def test_stress1_is_its_formula(layout, scale):
    coords, truth = (canonical(points) for points in layout)
    factor = least_squares_scale(coords, truth) if scale is None else scale
    error = total = 0.0
    for i in range(len(truth)):
        for j in range(i + 1, len(truth)):
            d, g = np.linalg.norm(coords[i] - coords[j]), np.linalg.norm(truth[i] - truth[j])
            error, total = error + (factor * d - g) ** 2, total + g**2
    assert stress1(*layout, scale=scale) == pytest.approx(np.sqrt(error / total), abs=1e-6)


def test_scaled_stress_does_not_see_scale_and_unscaled_does(layout):
    d, g = (pdist(points) for points in layout)
    assert stress1(3 * d, g) == pytest.approx(stress1(d, g), abs=1e-6)
    assert stress1(3 * g, g, scale=1.0) == pytest.approx(2, abs=1e-6)


def test_scale_error_is_the_median_ratio(layout):
    coords, truth = layout
    d, g = pdist(canonical(coords)), pdist(canonical(truth))
    assert scale_error(coords, truth) == pytest.approx(abs(np.median(d / g) - 1), abs=1e-6)
    assert scale_error(2.5 * g, g) == pytest.approx(1.5, abs=1e-6)
    assert scale_error([2.0, 4.0, 8.0], [0.0, 1.0, 2.0]) == pytest.approx(3)  # the pair at 0 has no ratio
