from __future__ import annotations

import numpy as np
import pytest

from spatialgears.config import Config
from spatialgears.pipeline.likeness import AVERAGE, VIEWS, Likeness
from spatialgears.pipeline.prepare import prepare
from spatialgears.validate import validate_inputs


@pytest.mark.parametrize(
    ("coexpression", "average"), [(None, 0), (0.98, 0), (0.85, 0), (0.8, AVERAGE / 2), (0.63, AVERAGE)]
)
def test_cells_are_averaged_the_more_the_less_alike_they_are(coexpression, average):
    found = Likeness.of(coexpression, Config.preset("default"))
    assert found.average == pytest.approx(average, abs=0.01)
    assert bool(found.words) == (average > 0)


def test_donors_that_are_left_out_decide_how_far():
    config = Config.preset("default")
    found = Likeness.of(0.8, config, left_out=True)
    assert found.by_donors and found.average == AVERAGE and "left-out donors decide" in found.words
    assert Likeness.of(0.9, config, left_out=True) == Likeness()
    assert Likeness.of(0.9, config, left_out=True, other_donor=True).by_donors


def test_cells_said_to_be_of_another_donor_are_averaged_half_as_far_at_least():
    config = Config.preset("default")
    found = Likeness.of(0.9, config, other_donor=True)
    assert found.average == pytest.approx(AVERAGE / 2, abs=0.01) and "another donor" in found.words
    assert Likeness.of(0.6, config, other_donor=True) == Likeness.of(0.6, config)
    assert Likeness.of(None, config, other_donor=True) == Likeness()


def test_a_fit_knows_whose_the_cells_are(small_tissue, small_config):
    config = small_config.with_values(["expression.average=auto"])
    for said, average in (("same-donor", 0), ("other-donor", AVERAGE / 2)):
        inputs = validate_inputs(small_tissue.slides[:1], small_tissue.cells, cells_from=said)
        assert prepare(inputs, config).likeness.average == pytest.approx(average, abs=0.01)


def test_slides_of_intensities_do_not_tell_donors(small_tissue, small_config):
    config = small_config.with_values(["expression.average=auto"])
    slides = [slide.copy() for slide in small_tissue.slides]
    for slide in slides:
        dense = np.asarray(slide.X.todense()) if hasattr(slide.X, "todense") else np.asarray(slide.X)
        slide.X = np.random.default_rng(0).permuted(dense, axis=0) + 0.5  # no co-expression is left
    prepared = prepare(validate_inputs(slides, small_tissue.cells, normalised=True), config)
    assert prepared.matched and prepared.likeness == Likeness()


@pytest.mark.parametrize("preset", ["default", "quick"])
def test_training_is_shorter_where_cells_are_averaged(preset):
    config = Config.preset(preset)
    assert Likeness(AVERAGE).training(config).geometry.views == VIEWS
    shorter = config.with_values(["geometry.views=100"])
    assert Likeness(AVERAGE).training(shorter) == shorter
    assert Likeness(0.1).training(config) == config


def test_what_was_set_counts():
    assert Likeness.of(0.3, Config.preset("paper")) == Likeness()
    assert Likeness.of(0.99, Config.preset("default").with_values(["expression.average=0.3"])).average == 0.3


def test_a_run_says_that_it_averages_cells_unlike_the_slides(small_tissue, small_config):
    config = small_config.with_values(["expression.average=auto"])
    alike = prepare(validate_inputs(small_tissue.slides, small_tissue.cells), config)
    assert not any("similar cells" in text for text in alike.warnings) and alike.likeness == Likeness()
    cells = small_tissue.cells.copy()  # half of the genes under names of others: they go together otherwise
    order, rng = np.arange(cells.n_vars), np.random.default_rng(0)
    some = rng.permutation(cells.n_vars)[: cells.n_vars // 2]
    order[some] = rng.permutation(some)
    cells.X = cells.X[:, order]
    unlike = prepare(validate_inputs(small_tissue.slides, cells), config)
    assert unlike.likeness.average == AVERAGE
    assert unlike.likeness.words in unlike.warnings
