from __future__ import annotations

import json
import os
import tempfile
from types import SimpleNamespace

import numpy as np
import pytest

from spatialgears._version import __version__
from spatialgears.bench import harness, worker
from spatialgears.bench.harness import Limits, placement_error, run
from spatialgears.bench.methods import Method
from spatialgears.bench.protocols import unpaired
from spatialgears.bench.store import Store
from spatialgears.runtime.files import temporary_folder

LIMITS = Limits(seconds=120.0, gigabytes=2.0)


@pytest.fixture(scope="module")
def tasks(plane):
    return lambda seed: unpaired([plane(40, seed=1)], plane(60))


@pytest.fixture
def in_process(monkeypatch):
    """Run methods here instead of in processes of their own: the same worker, much quicker."""

    def launch(command, folder, limits):
        (folder / "log.txt").touch()
        worker.main(command[-1])
        return {"code": 0, "timeout": False, "seconds": 1.0, "peak_gb": 0.1}

    monkeypatch.setattr(harness, "launch", launch)


@pytest.fixture(scope="module")
def rows(tasks, fake, tmp_path_factory):
    """One run of each, in processes of their own, by name."""
    methods = [fake("noisy"), fake("crash"), fake("hog")]
    store = Store(tmp_path_factory.mktemp("bench"))
    return {row["method"]: row for row in run(tasks, methods, store, seeds=[0], limits=LIMITS)}


def test_a_good_run_is_scored_timed_and_recorded(rows):
    row = rows["noisy"]
    assert row["status"] == "ok" and row["metrics"]["spearman"] > 0.99
    assert row["seconds"] > 0 and 0.05 < row["peak_gb"] < 2
    assert row["info"]["note"] == "hello" and {"python", "numpy"} <= set(row["info"]["versions"])
    assert (row["n_cells"], row["n_spots"], row["n_genes"]) == (60, 40, 8)


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("crash", "failed", "ValueError: the spots are upside down"),
        ("hog", "memory", "out of memory"),
    ],
)
def test_what_ends_a_process_is_a_row_with_a_reason(rows, name, status, reason):
    assert rows[name]["status"] == status and reason in rows[name]["reason"]
    assert rows[name]["metrics"] == {}


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("nans", "invalid", "not all finite"),
        ("short", "invalid", "shape (3, 2), expected (60, 2)"),
        ("point", "invalid", "could not be scored"),
    ],
)
def test_impossible_places_are_a_row_with_a_reason(tasks, fake, tmp_path, in_process, name, status, reason):
    (row,) = run(tasks, [fake(name)], Store(tmp_path), seeds=[0], limits=LIMITS)
    assert row["status"] == status and reason in row["reason"] and row["metrics"] == {}


def test_the_truth_is_shown_only_to_who_may_see_it(tasks, fake, tmp_path, in_process):
    (row,) = run(tasks, [fake("cheat", sees_truth=True)], Store(tmp_path), seeds=[0], limits=LIMITS)
    assert row["metrics"]["stress1"] < 1e-6 and row["sees_truth"]
    with pytest.raises(TypeError, match="truth"):
        run(tasks, [fake("cheat")], Store(tmp_path), seeds=[0], limits=LIMITS)


def test_other_layouts_get_rows_and_radii_are_checked(tasks, fake, tmp_path, in_process):
    found = run(tasks, [fake("layered")], Store(tmp_path), seeds=[0], limits=LIMITS)
    rows = {row["method"]: row for row in found}
    assert rows["layered: one sample"]["metrics"]["spearman"] > 0.99
    assert rows["layered"]["metrics"]["cover90"] == 1.0
    assert rows["layered"]["metrics"]["cover50"] == 0.0  # a radius of zero


def test_a_row_that_its_method_no_longer_gives_is_measured_again(
    tasks, fake, tmp_path, in_process, monkeypatch
):
    store = Store(tmp_path)
    before = run(tasks, [fake("layered")], store, seeds=[0], limits=LIMITS)
    for row in before:  # an older version of the method, with other scores
        store.save(row | {"started": "earlier", "metrics": {"spearman": 0.0}})
    monkeypatch.setattr(Method, "gave", lambda self, row: row["started"] != "earlier")
    after = run(tasks, [fake("layered")], store, seeds=[0], limits=LIMITS)
    assert [row["method"] for row in after] == ["layered", "layered: one sample"]
    assert all(row["metrics"]["spearman"] > 0.99 for row in after) and len(store.rows()) == 2


def test_time_runs_out(tasks, fake, tmp_path):
    (row,) = run(tasks, [fake("hang")], Store(tmp_path), seeds=[0], limits=Limits(seconds=1.0))
    assert row["status"] == "timeout" and "did not finish" in row["reason"]


def test_a_benchmark_goes_on_where_it_stopped(tasks, fake, tmp_path, in_process):
    store, ran = Store(tmp_path), []

    def go(methods, **options):
        return run(
            tasks, methods, store, limits=LIMITS, report=lambda row: ran.append(row["seed"]), **options
        )

    fixed = fake("noisy", seeded=False)
    assert len(go([fixed], seeds=[0, 1])) == 1  # without randomness one run is all
    again = go([fixed, fake("nans", seeded=False)], seeds=[0, 1])
    assert ran == [0, 0] and len(again) == 2  # only the new method ran
    go([fixed, fake("nans", seeded=False)], seeds=[0], retry=True)
    assert ran == [0, 0, 0]  # what failed ran again
    go([fake("noisy", seeded=False, scale=0.5)], seeds=[0])
    assert len(ran) == 4  # other options are another run
    assert all(json.dumps(row, allow_nan=False) for row in store.rows())


def test_placement_error_ignores_pose_and_the_unit_of_the_truth():
    truth = np.random.default_rng(0).normal(size=(50, 2))
    canonical = (truth - truth.mean(0)) / np.sqrt(((truth - truth.mean(0)) ** 2).sum(1).mean())
    turned = canonical @ np.array([[0.0, -1.0], [-1.0, 0.0]]) + 7
    assert placement_error(turned, 30 * truth + 5).max() < 1e-9
    assert placement_error(2 * turned, truth).max() > 0.1  # the scale of a prediction is part of what it says
    assert placement_error(truth[::-1], truth).max() > 0.1


@pytest.mark.parametrize(
    ("code", "peak", "status"),
    [(-9, 0.2, "killed"), (-15, 0.2, "killed"), (-9, 1e6, "memory"), (-11, 0.2, "failed")],
)
def test_a_process_that_was_killed_from_outside_is_not_out_of_memory(tasks, tmp_path, code, peak, status):
    (tmp_path / "log.txt").touch()
    usage = {"code": code, "timeout": False, "seconds": 1.0, "peak_gb": peak}
    assert harness.judge(usage, tmp_path, next(iter(tasks(0))), tmp_path / "log.txt")[0] == status


def test_a_killed_run_is_not_kept(tasks, fake, tmp_path, monkeypatch):
    """It says nothing about the method, and the next call runs it again."""

    def launch(command, folder, limits):
        (folder / "log.txt").touch()
        return {"code": -9, "timeout": False, "seconds": 1.0, "peak_gb": 0.1}

    monkeypatch.setattr(harness, "launch", launch)
    row = run(tasks, [fake("noisy")], Store(tmp_path), seeds=[0], limits=LIMITS)[0]
    assert row["status"] == "killed" and "SIGKILL" in row["reason"]
    assert Store(tmp_path).rows() == []


@pytest.mark.parametrize("usage", [None, '{"code": '])
def test_a_watching_process_that_was_killed_is_told_of(usage, tmp_path, monkeypatch):
    def die(*_, cwd, **__):
        if usage is not None:
            (cwd / "usage.json").write_text(usage)
        return SimpleNamespace(returncode=-9)

    monkeypatch.setattr(harness.subprocess, "run", die)
    assert harness.launch([], tmp_path, LIMITS)["code"] == -9


@pytest.mark.parametrize("text", ["", '{"key": "a", "sta', "[]"])
def test_a_row_that_was_cut_short_is_made_again(text, tmp_path):
    store = Store(tmp_path)
    store.save({"key": "whole", "status": "ok"})
    (tmp_path / "rows" / "cut.json").write_text(text)
    assert store.load("cut") is None and [row["key"] for row in store.rows()] == ["whole"]
    key = store.key("parts", __version__)
    (tmp_path / "rows" / f"{key}.json").write_text(text)
    assert store.once("parts", make=lambda: {"made": 1}) == {"made": 1} == store.load(key)


def test_temporary_folders_of_killed_processes_go(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in (
        f"gears-bench-{2**22 - 1}-abcd1234",
        f"gears-bench-{os.getppid()}-abcd1234",
        "gears-bench-mine",
    ):
        (tmp_path / name).mkdir()
    with temporary_folder("gears-bench") as folder:
        assert folder.is_dir()
    assert {path.name for path in tmp_path.iterdir()} == {
        f"gears-bench-{os.getppid()}-abcd1234",
        "gears-bench-mine",
    }
