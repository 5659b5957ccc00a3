from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import spatialgears as sg
from spatialgears.bench import registration
from spatialgears.config import Config
from spatialgears.errors import InputError


@pytest.fixture(scope="module")
def task():
    return registration.task_of(None, simulated=True)


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
    assert by_name["true places, turned"]["error_median"] < 0.5
    assert len(figure.axes[1].patches) == len(rows)


def test_truth_in_another_frame_is_refused(task, tmp_path):
    for wrong in (replace(task, truth=None), replace(task, slides=[*task.slides, *task.slides])):
        with pytest.raises(InputError, match="one slide"):
            registration.run(wrong, Config.preset("quick"), folder=tmp_path)


def test_the_command_writes_its_table_and_figure(task, tmp_path, monkeypatch, capsys):
    from matplotlib.figure import Figure

    from spatialgears.cli import bench

    monkeypatch.setattr(registration, "task_of", lambda root, *, simulated: task)
    rows = [{"run": "by expression", "error_median": 1.25}]
    monkeypatch.setattr(registration, "run", lambda task, config, *, folder: (rows, Figure()))
    given = {"data": None, "simulated": True, "out": tmp_path, "preset": "quick", "seeds": 1}
    bench._apart("registration", **given, as_json=False)
    assert "| by expression | 1.25 |" in capsys.readouterr().out
    bench._apart("registration", **given, as_json=True)
    assert json.loads(capsys.readouterr().out) == rows
    assert {path.name for path in tmp_path.iterdir()} == {"registration.md", "registration.png"}
