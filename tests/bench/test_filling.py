"""The table of even filling: a row for each strength of one model, and what is set there is what is done."""

from __future__ import annotations

import numpy as np
import pytest

from spatialgears.bench import filling, protocols
from spatialgears.bench.fitted import over_seeds
from spatialgears.metrics import evaluate


@pytest.fixture(scope="module")
def task():
    return next(protocols.simulated(seed=0, n_cells=250, n_genes=60, n_sections=1, spots=80))


def test_a_row_for_every_strength_and_the_layout_fills_the_tissue_better(
    task, small_config, tmp_path, monkeypatch
):
    monkeypatch.setattr(filling, "STRENGTHS", (0.0, 1.0))
    table, _ = over_seeds([task], filling.scored, small_config, seeds=1, folder=tmp_path)
    assert [row["run"] for row in table] == ["0%", "100%", filling.AS_IT_IS]
    assert [row["share"] for row in table[:2]] == [0, 1] and 0 < table[2]["share"] <= 0.8
    assert table[1]["w1_knn"] < table[0]["w1_knn"]
    axes = filling.draw(table).axes
    assert [len(ax.lines) for ax in axes] == [2] * 4
    np.testing.assert_allclose(axes[0].lines[0].get_ydata(), [row["spearman"] for row in table[:2]])
    np.testing.assert_allclose(axes[0].lines[1].get_xydata(), [[table[2]["share"], table[2]["spearman"]]])


def test_no_strength_is_the_layout_before_it_is_moved(small_model, task, monkeypatch, tmp_path):
    monkeypatch.setattr(filling, "STRENGTHS", (0.0,))
    found = filling.scored(task, small_model, store=filling.Store(tmp_path))["0%"]
    still = small_model.config.assembly.model_copy(update={"spacing": 0.0})
    layout = small_model.reconstruct(task.cells, assembly=still)
    assert found["spearman"] == pytest.approx(evaluate(layout.coords, task.truth)["spearman"])
