from __future__ import annotations

import numpy as np
import pytest

from spatialgears.datasets.anatomy import CELL_TYPES, DOMAINS, FIELDS, Anatomy, Warp, Waves


@pytest.fixture(scope="module")
def anatomy() -> Anatomy:
    return Anatomy.draw(np.random.default_rng(0))


@pytest.fixture(scope="module")
def points() -> np.ndarray:
    return np.random.default_rng(1).uniform(-2.5, 2.5, (8000, 2))


def test_a_field_has_unit_variance_and_is_smooth(points):
    field = Waves.draw(np.random.default_rng(2), 0.5)
    values, beside = field(points, 0.0), field(points + 0.005, 0.0)
    assert values.std() == pytest.approx(1, abs=0.1)
    assert np.abs(values - beside).max() < 0.3


def test_memberships_and_probabilities_sum_to_one(anatomy, points):
    site = anatomy.at(points[anatomy.inside(points, 0.1)], 0.1)
    assert site.domains.shape[1] == len(DOMAINS) and site.types.shape[1] == len(CELL_TYPES)
    assert site.fields.shape[1] == len(FIELDS) and np.isfinite(site.fields).all()
    for shares in (site.domains, site.types):
        assert shares.min() >= -1e-12
        np.testing.assert_allclose(shares.sum(1), 1)
    assert set(site.domains.argmax(1)) == set(range(len(DOMAINS)))


def test_graded_programmes_have_about_unit_spread(anatomy, points):
    spread = anatomy.at(points[anatomy.inside(points, 0.0)], 0.0).fields.std(0)
    assert (spread > 0.5).all() and (spread < 1.7).all()


def test_there_is_a_lumen_and_an_outside(anatomy):
    across = np.column_stack([np.zeros(400), np.linspace(-1.5, 1.5, 400)])
    inside = anatomy.inside(across, 0.0).astype(int)
    assert np.abs(np.diff(inside)).sum() >= 4  # outside, wall, lumen, wall, outside
    assert inside[0] == inside[-1] == 0


def test_neighbouring_sections_resemble_each_other_more_than_distant_ones(anatomy, points):
    def differ(z):
        both = points[anatomy.inside(points, 0.0) & anatomy.inside(points, z)]
        return (anatomy.at(both, 0.0).domains.argmax(1) != anatomy.at(both, z).domains.argmax(1)).mean()

    assert 0 < differ(0.05) < differ(0.5)


def test_another_individual_and_another_slide_keep_the_plan(anatomy, points):
    rng = np.random.default_rng(3)
    for other in (anatomy.relative(rng), anatomy.deformed(rng, 0.05)):
        both = points[anatomy.inside(points, 0.0) & other.inside(points, 0.0)]
        same = anatomy.at(both, 0.0).domains.argmax(1) == other.at(both, 0.0).domains.argmax(1)
        assert 0.3 < same.mean() < 0.98
    assert (np.diff(anatomy.relative(rng).borders) > 0).all()


def test_no_deformation_is_no_change(anatomy, points):
    flat = anatomy.deformed(np.random.default_rng(4), 0.0)
    np.testing.assert_array_equal(flat.inside(points, 0.0), anatomy.inside(points, 0.0))


def test_a_warp_has_the_size_asked_for(points):
    moved = Warp.draw(np.random.default_rng(5), 0.7, size=0.05)(points, 0.0)
    assert moved.std() == pytest.approx(0.05, rel=0.15)
