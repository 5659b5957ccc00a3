from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spatialgears.pipeline.cell_check import CellCheck
from spatialgears.pipeline.self_check import SelfCheck
from spatialgears.report.verdict import numbers, verdict

BY_GENES = CellCheck(0.69, 0.02, 0.85, 0.0, 0.9, 80, 100, "good", "words")
INSIDE = np.zeros(100, dtype=bool)


def check(spearman, *, title="Held-out spots", edge_auc=0.9, p_value=0.0, reference=None):
    scores = {"spearman": spearman, "edge_auc": edge_auc}
    simple = {} if reference is None else {"spearman": reference}
    return SelfCheck(title, scores, simple, "good", "words", p_value)


@pytest.mark.parametrize(
    ("checks", "level", "words"),
    [
        ([check(0.95)], "fair", "were placed well"),
        ([check(0.95, edge_auc=0.6)], "fair", "neighbourhoods cannot"),
        ([check(0.95), check(0.6)], "fair", "0.60"),
        (
            [check(0.95), check(0.3, title="Held-out slide 2")],
            "weak",
            "spots of held-out slides were placed",
        ),
        ([check(0.95), check(0.5, p_value=0.2)], "none", "Do not use this map"),
        ([check(float("nan"))], "none", "no better than by chance"),
        ([], "unknown", "neither cells nor spots could be checked"),
    ],
)
def test_without_a_check_on_cells_the_worst_on_spots_decides_in_one_sentence(checks, level, words):
    for cells in (None, replace(BY_GENES, verdict="not checked")):
        found, sentence = verdict(cells, checks, INSIDE)
        assert found == level and words in sentence
    assert sentence.count(". ") == 0 and sentence.endswith(".")


@pytest.mark.parametrize("level", ["good", "fair", "weak", "none"])
def test_the_cells_decide_whatever_the_spots_say(level):
    for spots in ([], [check(0.95)], [check(0.1)]):
        found, sentence = verdict(replace(BY_GENES, verdict=level), spots, INSIDE)
        assert found == level and "r = 0.69; noise allows 0.90" in sentence
        assert ("Do not use" in sentence) == (level == "none")


def test_cells_that_no_slide_supports_outweigh_good_checks():
    level, sentence = verdict(BY_GENES, [check(0.95)], np.arange(100) < 60)
    assert level == "none" and "60% of the cells" in sentence


def test_numbers_are_in_spot_spacings_and_unknown_ones_are_left_out(small_result):
    placed = replace(
        small_result,
        radius50=np.full(150, 0.2, np.float32),
        radius90=np.full(150, 0.5, np.float32),
        outside=np.arange(150) < 3,
        cell_check=BY_GENES,
    )
    checks = [check(0.9, reference=0.8), check(0.7, reference=0.6)]
    found = dict(numbers(placed, checks, n_spots=[80, 70], spacing=0.1))
    own = replace(placed, diagnostics={"cells_from": "same-donor"})
    one = dict(numbers(own, checks, n_spots=[80, 70], spacing=0.1))
    assert any("cell of the slides' donors lies" in name for name in one.keys() - found.keys())
    assert found["Cells placed"] == "150" and found["Spots on 2 slides"] == "150"
    assert "2.0 spot spacings (90%: 5.0)" in found.values() and "0.70 to 0.90" in found.values()
    assert found["Kept-out genes, r (noise allows)"] == "0.69 (0.90)"
    assert found["The same by a simple reference"] == "0.60 to 0.80"
    assert found["Cells that no slide supports"] == "3 (2.0%)"
    unknown = np.full(150, np.nan, np.float32)
    bare = replace(placed, radius50=unknown, radius90=unknown, outside=INSIDE, cell_check=None)
    assert [name for name, _ in numbers(bare, [], n_spots=[], spacing=None)] == ["Cells placed"]


def test_a_share_of_noise_is_never_good():
    level, words = verdict(replace(BY_GENES, unmatched=0.31), [], INSIDE)
    assert level == "fair" and "about 31% of the cells fit their position no better" in words
    assert verdict(replace(BY_GENES, unmatched=0.1), [], INSIDE)[0] == "good"


def test_batches_that_go_with_place_are_never_good():
    told = ["the cells: .obs['batch'] is confounded with the predicted position (90% of ...)"]
    level, sentence = verdict(replace(BY_GENES, verdict="good"), [check(0.95)], INSIDE, warnings=told)
    assert level == "fair" and "may be technical" in sentence
    assert verdict(replace(BY_GENES, verdict="weak"), [], INSIDE, warnings=told)[0] == "weak"
