from __future__ import annotations

import pytest

from spatialgears.errors import InputError
from spatialgears.validate import validate_inputs
from spatialgears.validate.donors import Donors, donors_of, whose_cells

NAMES = ["slide 1", "slide 2"]


@pytest.fixture
def slides(small_tissue):
    return [slide.copy() for slide in small_tissue.slides]


def test_each_slide_is_a_donor_of_its_own_unless_something_is_said(slides):
    found = donors_of(slides, None, NAMES)
    assert found.count == 2 and not found.stated and "donor of its own" in found.words
    slides[0].uns["donor"] = "Ann "
    slides[1].obs["donor"] = "Ann"
    assert donors_of(slides, None, NAMES) == Donors(("Ann", "Ann"), stated=True)
    del slides[1].obs["donor"]
    assert donors_of(slides, None, NAMES) == Donors(("Ann", "that of slide 2"), stated=True)
    assert donors_of(slides, ["Bob", "Cy"], NAMES) == Donors(("Bob", "Cy"), stated=True)
    assert donors_of(slides[:1], "Bob", NAMES).words == "one donor (Bob)"


def test_donors_that_do_not_fit_the_slides_are_refused(slides):
    for given in (["Ann"], ["Ann", " "], ["Ann", "Bob", "Cy"]):
        with pytest.raises(InputError, match="donor for each of 2 slides"):
            validate_inputs(slides, donors=given)
    slides[1].obs["donor"] = ["Ann", "Bob"] * (slides[1].n_obs // 2) + ["Ann"] * (slides[1].n_obs % 2)
    with pytest.raises(InputError, match=r"slide 2: .obs\['donor'\] names 2 donors \(Ann, Bob\)"):
        validate_inputs(slides)
    assert validate_inputs(slides, donors=["Ann", "Bob"]).donors.count == 2


def test_slides_of_a_donor_are_left_out_together():
    assert Donors(("b", "a", "b")).left_out == [0, 1, 0]
    assert Donors(("a", "a", "a")).left_out == [0, 1, 2]  # of one donor, slides are


def test_the_question_that_a_left_out_slide_answers():
    assert "another donor is placed" in Donors(("a", "b"), stated=True).question(1)
    assert "another section of this donor is placed, not another donor" in Donors(("a", "a"), True).question(
        0
    )
    assert "No donors were given" in Donors(("a", "b")).question(0)


def test_a_checkpoint_of_other_donors_is_another(slides):
    first, second = (validate_inputs(slides, donors=donors).digest() for donors in (["a", "a"], ["a", "b"]))
    assert first != second


def test_cells_may_say_whose_they_are(small_tissue):
    cells, donors = small_tissue.cells.copy(), Donors(("Ann", "Bob"), stated=True)
    assert whose_cells(cells, donors) == "unknown"
    assert whose_cells(cells, donors, "other-donor") == "other-donor"
    cells.obs["donor"] = ["Ann", "Bob"] * (cells.n_obs // 2)
    assert whose_cells(cells, donors) == "same-donor"
    assert whose_cells(cells, Donors(("Ann",), stated=True)) == "other-donor"
    with pytest.raises(InputError, match="'mine'"):
        whose_cells(cells, donors, "mine")
