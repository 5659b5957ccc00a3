from __future__ import annotations

import numpy as np
import pytest

import spatialgears as sg
from spatialgears.bench import registration
from spatialgears.bench.request import Request
from spatialgears.config import Config


@pytest.fixture(scope="module")
def task():
    return next(registration.simulated(None, 0))


def test_errors_are_in_pitches_and_bounded_by_what_can_be_known(task):
    cells, slide = task.cells.copy(), task.slides[0]
    noise = np.random.default_rng(0).normal(size=(cells.n_obs, 2))
    cells.obsm["X_gears"] = sg.metrics.canonical(task.truth) @ np.array([[0, 1], [-1, 0]]) + 0.1 * noise
    rows, figure = registration.rows_of(cells, slide, task.truth, config=Config.preset("quick"))
    by_name = {row["run"]: row for row in rows}
    assert list(by_name) == [*registration.RUNS, registration.FLOOR]
    floor, found = by_name[registration.FLOOR]["error_median"], by_name["by expression"]["error_median"]
    radius = np.sqrt(np.square(task.truth - task.truth.mean(0)).sum(1).mean())
    pitch = np.sort(np.linalg.norm(slide.obsm["spatial"][0] - slide.obsm["spatial"], axis=1))[1]
    assert floor == pytest.approx(0.1 * 1.1774 * radius / pitch, rel=0.1)  # median length of the noise
    assert floor <= found < floor + 0.5
    assert by_name["true positions, rotated"]["error_median"] < 0.5
    assert len(figure.axes[1].patches) == len(rows)


def test_the_experiment_registers_what_the_model_places(task, small_config, tmp_path, monkeypatch):
    monkeypatch.setattr(registration, "simulated", lambda root, seed: iter([task]))
    monkeypatch.setattr(Request, "config", lambda self, preset: small_config)
    outcome = registration.run(Request(out=tmp_path, simulated=True), print)
    assert outcome.text.startswith("### registration: simulated, hex 0.8, default, ")
    assert "errors in spot pitches\n\n| run | error_median |" in outcome.text
    assert [row["run"] for row in outcome.found] == [*registration.RUNS, registration.FLOOR]
    assert list(outcome.figures) == ["registration"]
