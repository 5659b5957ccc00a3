from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from spatialgears.errors import InputError
from spatialgears.report import ReportContent, ReportSlide
from spatialgears.report.expression import Expression


def test_only_a_title_and_places_are_needed():
    assert ReportContent("t", np.zeros((2, 2))).genes == {}


def test_content_is_frozen(content):
    with pytest.raises(FrozenInstanceError):
        content.title = "other"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"coords": np.zeros((400, 3))}, r"coords of shape \(n, 2\); found \(400, 3\)"),
        ({"genes": {"Mbp": np.zeros(399)}}, r"400 cells, but genes\['Mbp'\] has shape \(399,\)"),
        ({"obs": {"type": np.zeros((400, 1))}}, r"obs\['type'\]"),
        ({"uncertainty": np.zeros(3)}, "uncertainty"),
        ({"domains": ["a"]}, "domains"),
        ({"names": ["a"]}, "names"),
        ({"slides": [ReportSlide("s", np.zeros(5))]}, "slide 's'"),
        ({"slides": [ReportSlide("s", np.zeros((5, 2)), resembled={"type": ["a"]})]}, "5 spots, but s: type"),
        ({"genes": Expression(["Mbp"], np.ones((399, 1)))}, "400 cells, but genes are of 399"),
        (
            {"slides": [ReportSlide("s", np.zeros((5, 2)), {"Mbp": np.zeros(4)})]},
            r"5 spots, but s: genes\['Mbp'\]",
        ),
    ],
)
def test_lengths_that_disagree_are_named(content, change, words):
    with pytest.raises(InputError, match=words):
        replace(content, **change)
