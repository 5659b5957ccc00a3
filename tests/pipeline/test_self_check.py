from __future__ import annotations

import re

import numpy as np
import pytest
from scipy import sparse

from spatialgears.metrics.wording import MAIN
from spatialgears.model import GEARS
from spatialgears.pipeline.self_check import (
    HIGHER_IS_BETTER,
    SelfCheck,
    judge,
    p_value,
    score,
    trusted,
    warnings,
)
from spatialgears.validate.donors import Donors

FLAT, SPATIAL = np.full(60, 0.02), np.full(60, 0.5)


@pytest.fixture
def truth():
    return np.random.default_rng(0).uniform(-1, 1, size=(120, 2))


def check(
    spearman: float,
    reference: float | None = None,
    *,
    p_value: float = 0.001,
    title: str = "Held-out slide 1",
) -> SelfCheck:
    simple = {} if reference is None else {"spearman": reference}
    return SelfCheck(title, {"spearman": spearman}, simple, p_value=p_value)


def test_levels():
    assert [judge(value) for value in (0.9, 0.6, 0.3, 0.1, -0.5, float("nan"))] == [
        "good",
        "fair",
        "weak",
        "none",
        "none",
        "none",
    ]


def test_good_places_in_any_pose(truth):
    turn = np.array([[0.0, 1.0], [1.0, 0.0]])
    found = score("Held-out spots", truth @ turn + 3, truth)
    assert found.verdict == "good" and found.words == (
        "Good, for spots: near ones stay near, and long distances are about right. This rests on 120 spots."
    )
    assert found.reference == {} and found.model["spearman"] == pytest.approx(1)


def test_shuffled_places_have_no_signal(truth):
    found = score("Held-out spots", np.random.default_rng(1).permutation(truth), truth)
    assert found.verdict == "none" and "Do not use the coordinates" in found.words


def test_outline_only_is_weak(truth):
    noisy = truth + np.random.default_rng(1).normal(scale=0.75, size=truth.shape)
    found = score("Held-out spots", noisy, truth)
    assert found.verdict == "weak" and "only in outline" in found.words


def test_neighbours_right_but_not_long_distances(truth):
    """A strip of tissue that is rolled up until its ends lie side by side."""
    strip = truth * [3, 0.2]
    angle, radius = 1.5 * strip[:, 0], 1 + 0.1 * strip[:, 0] + strip[:, 1]
    rolled = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    found = score("Held-out spots", rolled, strip)
    assert found.words.startswith(
        "Weak, for spots: near ones mostly stay near; do not rely on long distances."
    )


def test_the_reference_is_told_beside(truth):
    noisy = truth + np.random.default_rng(1).normal(scale=0.3, size=truth.shape)
    for predicted, simple, words in (
        (truth, noisy, "The model is better than a simple"),
        (noisy, truth, "The model is worse than a simple"),
        (noisy, noisy, "is within the error"),
    ):
        assert words in score("t", predicted, truth, reference=simple).words


@pytest.mark.parametrize(
    ("checks", "found"),
    [
        ([], False),
        ([check(0.8), check(0.6)], True),
        ([check(0.8), check(0.4)], False),
        ([check(0.8, p_value=0.1)], False),
    ],
)
def test_trust_needs_all_checks_to_be_fair(checks, found):
    assert trusted(checks) == found


def test_a_gain_within_its_error_is_none(truth):
    """Two layouts that err alike, many times: the difference keeps to its standard error."""
    rng = np.random.default_rng(0)
    ratio = []
    for _ in range(60):
        places, simple = truth[:50] + rng.normal(scale=0.6, size=(2, 50, 2))
        found = score("t", places, truth[:50], reference=simple)
        gain = found.model["spearman"] - found.reference["spearman"]
        ratio.append(gain / found.gain_error)
        assert ("within the error" in found.words) == (abs(gain) <= max(0.01, 2 * found.gain_error))
    assert 0.7 < np.std(ratio) < 1.3


def test_words_say_on_how_many_metrics_the_model_is_ahead(truth):
    """A table in which one column is bold throughout must not stand under "about as good"."""
    noisy, less = truth + np.random.default_rng(1).normal(size=(2, 120, 2)) * [[[0.31]], [[0.3]]]
    words = score("t", noisy, truth, reference=less).words
    ahead = int(re.search(r"the model is ahead on (\d+) of 10 metrics\.", words).group(1))
    assert 0 < ahead < 10
    assert "ahead on 10 of 10 metrics" in score("t", truth, truth, reference=noisy).words
    assert {name: row[1] for name, row in MAIN.items()} == HIGHER_IS_BETTER


def test_few_spots(truth):
    assert score("t", truth[:10], truth[:10]).verdict == "good"


def test_few_spots_that_chance_may_have_placed_are_no_signal():
    rng = np.random.default_rng(3)
    truth = rng.uniform(-1, 1, (12, 2))
    found = [score("t", truth + rng.normal(scale=1.2, size=truth.shape), truth) for _ in range(40)]
    lucky = [one for one in found if one.model["spearman"] >= 0.2 and one.p_value > 0.001]
    assert lucky and {one.verdict for one in lucky} == {"none"}
    assert all("chance reaches with so few spots" in one.words for one in lucky)


def test_the_test_for_chance_keeps_its_level(truth):
    """Places that know nothing of the truth: P is uniform, so few are small and many are large."""
    rng = np.random.default_rng(0)
    found = [p_value(rng.normal(size=(40, 2)), truth[:40], seed=i) for i in range(60)]
    assert 0.35 < np.mean(found) < 0.65 and np.mean(np.array(found) <= 0.05) < 0.15
    assert p_value(truth @ [[0.0, -2.0], [2.0, 0.0]], truth) == 0.001
    assert p_value(np.full_like(truth, np.nan), truth) == p_value(np.zeros_like(truth), truth) == 1.0


def test_for_json(truth):
    found = score("t", truth, truth, reference=truth).to_dict()
    assert SelfCheck(**found).to_dict() == found


def test_nothing_to_warn_of():
    quiet = {"outside": np.zeros(10, bool), "unfilled": 0.1, "radius90": np.full(10, 0.6)}
    quiet |= {"donors": Donors(("a", "b")), "morans_i": SPATIAL}
    assert warnings([check(0.9, 0.91)], **quiet) == []
    assert warnings([check(0.9)], **quiet | {"outside": np.arange(100) < 9}) == []


@pytest.mark.parametrize(
    ("checks", "given", "words"),
    [
        ([check(0.9), check(0.05)], {}, "No spatial signal"),
        ([check(0.9), check(float("nan"))], {}, "No spatial signal"),
        ([check(0.9), check(0.6, p_value=0.02)], {}, "No spatial signal"),
        ([], {}, "No self-check: no spots are held out"),
        ([check(0.3)], {}, "Weak self-check: held-out distances correlate only 0.30"),
        ([check(0.8, 0.9), check(0.8, 0.85)], {}, "reference places held-out spots better"),
        ([check(0.9)], {"morans_i": FLAT}, "Moran's I of only 0.02"),
        ([check(0.9)], {"outside": np.arange(10) < 3}, "Strong domain shift: 30% of the cells"),
        ([check(0.9)], {"outside": np.arange(100) < 12}, "Strong domain shift: 12% of the cells"),
        (
            [check(0.9)],
            {"radius90": np.full(10, 1.5)},
            "Wide radii: the 90% radius of a typical cell is 1.50",
        ),
        (
            [check(0.9, title="Held-out spots")],
            {"donors": Donors(("a", "b"))},
            "No slide is held out as a whole",
        ),
        (
            [check(0.9, title="Held-out spots")],
            {"donors": Donors(("a",))},
            "There is one slide: how well cells of another",
        ),
        (
            [check(0.9)],
            {"morans_i": np.r_[np.full(9, 0.9), np.zeros(5)]},
            "Only 9 genes vary over the slides",
        ),
        ([check(0.9)], {"unfilled": 0.4}, "Composition mismatch: no cell was placed near 40%"),
        ([check(0.9)], {"unfilled": 0.4}, "give gears run or gears reconstruct --set assembly.spacing=0."),
        ([check(0.9)], {"donors": Donors(("a", "a"), stated=True)}, "All slides are of one donor (a)"),
        ([check(0.9)], {"unfilled": 0.4, "spaced": False}, "this is expected, as assembly.spacing is 0."),
    ],
)
def test_each_situation_is_named(checks, given, words):
    (found,) = warnings(checks, **({"morans_i": SPATIAL, "donors": Donors(("a", "b"))} | given))
    assert words in found


def test_expression_without_places_is_told(small_config, small_tissue):
    """Spots in random order: expression tells nothing of where they lie."""
    rng = np.random.default_rng(0)
    slides = [one.copy() for one in small_tissue.slides]
    for slide in slides:
        slide.X = sparse.csr_matrix(slide.X.toarray()[rng.permutation(slide.n_obs)])
    config = small_config.with_values(["assembly.samples=0"])
    model = GEARS(config).fit(slides, small_tissue.cells)
    assert {one.verdict for one in model.checks_ if one.title.startswith("Held-out slide")} <= {
        "none",
        "weak",
    }
    assert model.checks_[0].verdict in ("none", "not checked")
    found = warnings(model.fitted_.checks, morans_i=model.panel_.morans_i)
    assert any("No spatial signal" in one or "Weak self-check" in one for one in found)
    assert any("Weak spatial signal" in one for one in found)


def test_it_is_told_in_one_line(truth):
    assert (
        repr(score("Held-out spots", truth, truth, reference=truth)) == "Held-out spots: good, Spearman 1.00"
    )
