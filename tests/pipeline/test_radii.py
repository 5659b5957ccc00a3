"""Radii that hold for cells: wider where the check on them is poor; the check never narrows them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from spatialgears.pipeline import radii
from spatialgears.pipeline.cell_check import CellCheck, not_checked
from spatialgears.pipeline.place import Placement

CHECK = CellCheck(0.2, 0.01, 0.6, 0.0, 0.8, 50, 500, "weak", "Weak.")
UNKNOWN = not_checked("5 cells are too few.", n_cells=5)


def fitted(*, donors: int = 1, left_out: int = 0, average: float = 0.0, stated: bool = True):
    """A model of slides of some donors; with donors that were left out, radii for the slides' own are half as wide."""
    confidence = SimpleNamespace(quantile=lambda level, own=False: 0.5 if own else 1.0)
    named = SimpleNamespace(count=donors, stated=stated)
    folds = SimpleNamespace(left_out=left_out)
    return SimpleNamespace(donors=named, folds=folds, confidence=confidence, average=average)


def placement(radius50: float) -> Placement:
    radius = np.linspace(0.5, 1.5, 5, dtype=np.float32) * radius50
    nothing = np.zeros((5, 2), np.float32)
    return Placement(nothing, radius, 2 * radius, radius > 9, nothing[None], [], "", {"spacing": 0.0})


def test_the_worse_the_check_the_larger_the_error_it_stands_for():
    errors = [radii.expected_error(replace(CHECK, r=r)) for r in (-0.1, 0.0, 0.2, 0.4, 0.6, 0.8, 0.9)]
    assert errors[0] == errors[1] == radii.LARGEST and errors[-1] == errors[-2] == 0
    assert (np.diff(errors[1:-1]) < 0).all()
    easy, hard = (radii.expected_error(replace(CHECK, reference=one)) for one in (0.8, 0.3))
    assert hard < easy  # genes that direct mapping does not read, either, speak less against the places


@pytest.mark.parametrize("cells_from", ["same-donor", "other-donor", "unknown"])
def test_radii_grow_by_one_factor_to_the_error_of_the_check(cells_from):
    narrow = placement(0.1)
    found = radii.calibrated(narrow, fitted(), CHECK, cells_from=cells_from)
    factor = found.diagnostics["widened"]
    shorter = radii.HELD_OUT if cells_from == "same-donor" else 1
    assert np.median(found.radius50) == pytest.approx(shorter * radii.expected_error(CHECK), rel=1e-5)
    np.testing.assert_allclose(found.radius50, shorter * factor * narrow.radius50, rtol=1e-5)
    np.testing.assert_allclose(found.radius90, factor * narrow.radius90, rtol=1e-5)
    assert found.diagnostics["spacing"] == 0 and "widened" not in narrow.diagnostics
    assert f"check on cells widened them {factor:.1f}-fold" in radii.words(fitted(), found.diagnostics)


@pytest.mark.parametrize("check", [CHECK, replace(CHECK, r=0.79), UNKNOWN])
def test_the_check_never_narrows_radii(check):
    wide = placement(2.0)
    found = radii.calibrated(wide, fitted(left_out=2, donors=2), check, cells_from="unknown")
    assert found.diagnostics["widened"] == 1
    np.testing.assert_array_equal(found.radius50, wide.radius50)


@pytest.mark.parametrize("donors", [1, 2])
def test_of_own_cells_only_the_50_percent_radii_are_shortened(donors):
    wide, model = placement(2.0), fitted(donors=donors, left_out=0)
    own, other = (
        radii.calibrated(wide, model, CHECK, cells_from=whose) for whose in ("same-donor", "other-donor")
    )
    np.testing.assert_allclose(own.radius50, radii.HELD_OUT * wide.radius50, rtol=1e-6)
    np.testing.assert_array_equal(own.radius90, wide.radius90)
    np.testing.assert_array_equal(other.radius50, wide.radius50)


def test_without_a_check_cells_of_another_donor_get_the_fixed_factor():
    narrow = placement(0.1)
    for cells_from, factor in (("same-donor", 1.0), ("other-donor", radii.WIDER), ("unknown", radii.WIDER)):
        found = radii.calibrated(narrow, fitted(), UNKNOWN, cells_from=cells_from)
        np.testing.assert_allclose(found.radius90, factor * narrow.radius90, rtol=1e-6)
        assert ("1.7-fold" in radii.words(fitted(), found.diagnostics)) == (factor > 1)
    left = radii.calibrated(narrow, fitted(donors=2, left_out=2), UNKNOWN, cells_from="unknown")
    np.testing.assert_array_equal(left.radius50, narrow.radius50)


def test_the_slides_own_donors_have_the_radii_of_held_out_spots():
    wide, good = placement(0.1), replace(CHECK, r=0.8)
    own = radii.calibrated(wide, fitted(donors=2, left_out=2), good, cells_from="same-donor")
    np.testing.assert_allclose(own.radius90, wide.radius90 / 2)
    np.testing.assert_allclose(own.radius50, radii.HELD_OUT * wide.radius50 / 2)
    other = radii.calibrated(wide, fitted(donors=2, left_out=2), good, cells_from="other-donor")
    np.testing.assert_allclose(other.radius50, wide.radius50)


def test_radii_that_were_calibrated_for_such_cells_yield_to_the_check_only_if_it_is_weak():
    narrow, model = placement(0.01), fitted(donors=2, left_out=2)
    for verdict, wider in (("good", False), ("fair", False), ("weak", True), ("none", True)):
        found = radii.calibrated(narrow, model, replace(CHECK, verdict=verdict), cells_from="unknown")
        assert (found.diagnostics["widened"] > 1) == wider
        own = radii.calibrated(narrow, fitted(), replace(CHECK, verdict=verdict), cells_from="same-donor")
        assert (own.diagnostics["widened"] > 1) == wider
        for sisters in (fitted(donors=1, left_out=2), fitted(donors=2, left_out=2, stated=False)):
            found = radii.calibrated(narrow, sisters, replace(CHECK, verdict=verdict), cells_from="unknown")
            assert found.diagnostics["widened"] > 1  # no other donor, or perhaps none, was left out


def test_cells_of_another_donor_have_no_narrower_radii_than_the_slides_own():
    sister = fitted(donors=2, left_out=2)  # a left-out slide that was placed better than held-out spots
    sister.confidence = SimpleNamespace(quantile=lambda level, own=False: 1.2 if own else 1.0)
    narrow, good = placement(0.1), replace(CHECK, verdict="good")
    for cells_from in ("same-donor", "other-donor", "unknown"):
        found = radii.calibrated(narrow, sister, good, cells_from=cells_from)
        np.testing.assert_allclose(found.radius90, 1.2 * narrow.radius90, rtol=1e-6)


def test_the_check_widens_radii_of_own_cells_that_differ_from_the_spots():
    narrow, good = placement(0.1), replace(CHECK, verdict="good")
    alike, unlike = (
        radii.calibrated(narrow, fitted(average=average), good, cells_from="same-donor").diagnostics[
            "widened"
        ]
        for average in (0.0, 0.5)
    )
    assert alike == 1 and unlike == pytest.approx(radii.expected_error(good) / 0.1, rel=1e-5)


def test_unknown_radii_stay_unknown():
    nothing = np.full(5, np.nan, np.float32)
    found = radii.calibrated(
        replace(placement(0.1), radius50=nothing, radius90=nothing), fitted(), CHECK, cells_from="same-donor"
    )
    assert np.isnan(found.radius50).all() and found.diagnostics["widened"] == 1
