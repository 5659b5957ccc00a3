"""The way from the published method to ours ends at ours, and every model is read in several ways."""

from __future__ import annotations

import numpy as np
import pytest

from spatialgears.bench import protocols, sets, way
from spatialgears.bench.request import Request
from spatialgears.config import Config, flat
from spatialgears.model import GEARS

TINY = {"n_cells": 120, "n_genes": 60, "n_sections": 1, "spots": 80}


@pytest.fixture(scope="module")
def task():
    return next(protocols.simulated(seed=0, **TINY))


def test_the_way_leads_from_the_published_method_to_ours_and_every_step_changes_something():
    start = Config.preset("paper-small").with_values(way.SHORT | way.START)
    end = Config.preset("default").with_values(way.SHORT)
    found = dict(way.way(start, end))
    assert list(found) == [*way.STEPS, *way.BACK]
    assert found["published"] == start and found[list(way.STEPS)[-1]] == end
    steps = zip(list(way.STEPS.items())[1:-1], found.values(), list(found.values())[1:], strict=False)
    back = (((name, keys), found[step], found[name]) for name, (step, keys) in way.BACK.items())
    for (name, keys), before, after in (*steps, *back):
        one, other = (flat(config.model_dump(mode="json")) for config in (before, after))
        assert {key for key in one if one[key] != other[key]} == set(keys), name


def test_a_step_sees_as_many_spots_with_pairs_as_without():
    ends = (Config.preset("paper-small"), Config.preset("default"))
    found = dict(way.way(*(end.with_values(way.SHORT) for end in ends)))
    names = list(found)
    steps = (
        (names[names.index("no overlap losses") - 1], "no overlap losses"),
        (list(way.STEPS)[-1], "ours, with overlap losses"),
    )
    for before, after in steps:
        one, other = (found[name].geometry for name in (before, after))
        assert one.pairs != other.pairs
        assert one.sets(1) * (1 + one.pairs) == other.sets(1) * (1 + other.pairs)


def test_training_steps_are_limits_of_all_models():
    config = Config.preset("default")
    found = dict(way.lengths(config))
    assert found["10 steps"].geometry.steps == found["10 steps"].geometry.slide_steps == 10
    assert found["as in the preset"] == config


def test_similar_spots_and_generators_are_read_from_one_model(task, small_config, monkeypatch):
    fits, fit = [], GEARS.fit
    monkeypatch.setattr(GEARS, "fit", lambda *given: fits.append(1) or fit(*given))
    row = way.measure(task, small_config)
    assert list(row) == ["seconds", "similar spots", "generators", "both", "as users get it"]
    assert len(fits) == 1
    assert all(np.isfinite(list(row[name].values())).all() for name in list(row)[1:])


def test_a_table_that_was_stopped_goes_on(tmp_path, small_config, monkeypatch):
    monkeypatch.setattr(sets, "SIMULATED", TINY)
    made = []

    def measure(task, config):
        made.append(config)
        return {
            "seconds": 1.0,
            "generators": {"spearman": 0.5},
            "as users get it": dict.fromkeys(way.SCORES, 0.5),
        }

    monkeypatch.setattr(way, "measure", measure)
    request = Request(out=tmp_path, simulated=True)
    outcome = way.WAY.run(request, print)
    assert len(made) == len(way.STEPS) + len(way.BACK) == len(outcome.found)
    assert "| published | – | 0.5 | – | – |" in outcome.text
    assert way.WAY.run(request, print).found == outcome.found and len(made) == len(outcome.found)


def test_every_nth_cell_keeps_its_true_position(task):
    (few,) = sets.every_nth(4, lambda root, seed: iter([task]))(None, 0)
    assert few.name == "simulated, 1 of 4 cells"
    np.testing.assert_array_equal(few.truth, task.truth[::4])
    assert few.cells.obs_names.tolist() == task.cells.obs_names[::4].tolist()
    assert few.score(few.truth)["spearman"] == pytest.approx(1.0)


def test_the_published_method_is_read_with_and_without_diffusion(task, small_config):
    values = {
        "assembly.samples": 0,
        "assembly.steps": 2,
        "assembly.mode": "patches",
        "assembly.patch_size": 40,
    }
    row = way.measure(task, small_config.with_values(values))
    assert row["without diffusion"] != row["as users get it"]
