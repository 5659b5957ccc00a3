from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from spatialgears.errors import InputError
from spatialgears.metrics.points import (
    MAX_PAIRED_POINTS,
    as_distances,
    canonical,
    check_pair,
    check_points,
    check_size,
    condensed,
)


def test_canonical_is_centred_with_unit_rms_radius_and_keeps_the_shape(layout):
    coords, _ = layout
    before = coords.copy()
    framed = canonical(coords)
    np.testing.assert_allclose(framed.mean(axis=0), 0, atol=1e-12)
    assert np.sqrt((framed**2).sum(axis=1).mean()) == pytest.approx(1)
    ratio = pdist(framed) / pdist(coords)
    np.testing.assert_allclose(ratio, ratio[0])
    np.testing.assert_array_equal(coords, before)


@pytest.mark.parametrize("points", [np.full((5, 2), 3.7), np.full((1, 2), 1e9)])
def test_points_in_one_place_have_no_layout(points):
    with pytest.raises(InputError, match="same place"):
        canonical(points)


@pytest.mark.parametrize("shape", [(5,), (5, 3), (2, 5, 2), (0, 2)])
def test_wrong_shape_is_refused_by_name(shape):
    with pytest.raises(InputError, match=r"truth must have shape \(n, 2\)"):
        check_points(np.zeros(shape), "truth")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_counted(bad):
    points = np.zeros((5, 2))
    points[[1, 3], 0] = bad
    with pytest.raises(InputError, match="2 of 5 rows"):
        check_points(points)


def test_different_numbers_of_cells_are_refused():
    with pytest.raises(InputError, match="5 and 6 rows"):
        check_pair(np.zeros((5, 2)), np.zeros((6, 2)))
    with pytest.raises(InputError, match="3 and 6 pairs"):
        as_distances(np.ones(3), np.ones(6))


def test_neighbourhoods_need_k_and_two_more_points():
    check_size(22, 20)
    with pytest.raises(InputError, match="21 points"):
        check_size(21, 20)
    with pytest.raises(InputError, match="k >= 1"):
        check_size(21, 0)


def test_too_many_pairs_are_refused_with_a_way_out():
    with pytest.raises(InputError, match="evaluate"):
        condensed(np.zeros((MAX_PAIRED_POINTS + 1, 2)))


def test_distances_are_taken_as_they_are_and_coordinates_framed(layout):
    coords, truth = layout
    d, g = as_distances(pdist(coords), truth)
    np.testing.assert_allclose(d, pdist(coords), rtol=1e-6)
    np.testing.assert_allclose(g, pdist(canonical(truth)), rtol=1e-6)


@pytest.mark.parametrize("values", [[1.0, -1.0, 2.0], [1.0, np.nan, 2.0]])
def test_impossible_distances_are_refused(values):
    with pytest.raises(InputError, match="finite"):
        as_distances(np.array(values), np.ones(3))


def test_a_single_pair_is_not_enough():
    with pytest.raises(InputError, match="At least 3 points"):
        as_distances(np.ones(1), np.ones(1))
