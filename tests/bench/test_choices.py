"""What genes of the cells would choose after training: every value is really tried, and the table says what it cost."""

from __future__ import annotations

import numpy as np
import pytest

from spatialgears.bench import choices, protocols


@pytest.fixture(scope="module")
def task():
    return next(protocols.simulated(seed=0, n_cells=250, n_genes=60, n_sections=1, spots=80))


def test_every_value_places_cells_anew_and_the_model_stays_as_it_was(task, small_model, monkeypatch):
    monkeypatch.setattr(choices, "REACHES", (0.0, 10.0))
    monkeypatch.setattr(choices, "AVERAGES", (0.0, 0.65))
    before = small_model.reconstruct(task.cells).coords
    rows = choices.tried(task, lambda: small_model)["tried"]
    np.testing.assert_array_equal(small_model.reconstruct(task.cells).coords, before)
    by_setting = {row["setting"] for row in rows}
    assert {"search radius", "one spot each", "cells averaged"} <= by_setting
    for setting in by_setting:
        values = {row["value"]: row for row in rows if row["setting"] == setting}
        assert choices.AS_RUN in values and len({row["r"] for row in values.values()}) > 1
        assert len({round(row["spearman"], 6) for row in values.values()}) > 1
    averaged = {row["value"]: row for row in rows if row["setting"] == "cells averaged"}
    assert averaged[0.0]["spearman"] == averaged[choices.AS_RUN]["spearman"]  # its cells are not averaged


def test_the_table_takes_the_value_of_the_largest_r_in_each_seed():
    def row(seed, value, r, spearman):
        return {"set": "a", "setting": "s", "seed": seed, "value": value, "r": r, "spearman": spearman}

    as_run = choices.AS_RUN
    rows = [row(0, as_run, 0.2, 0.5), row(0, 1, 0.3, 0.6), row(0, 2, 0.1, 0.9)]
    rows += [row(1, as_run, 0.4, 0.5), row(1, 1, 0.3, 0.8), row(1, 2, 0.1, 0.7)]
    (found,) = choices.summary(rows)
    assert (found["as run"], found["chosen by genes"], found["at best"]) == pytest.approx((0.5, 0.55, 0.85))
    assert (found["gain"], found["sd of gain"]) == pytest.approx((0.05, 0.05))
    assert found["genes chose"] == "1, as run"
    values = {row["value"]: row for row in choices.every_value(rows)}
    assert values[1] == pytest.approx({"set": "a", "setting": "s", "value": 1, "r": 0.3, "spearman": 0.7})
