from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from matplotlib.figure import Figure
from typer.testing import CliRunner

from spatialgears.bench import experiments, harness, methods, worker
from spatialgears.bench.request import Experiment, Outcome
from spatialgears.cli.bench import bench
from spatialgears.errors import ConfigError, InputError

FAKES = Path(__file__).with_name("fakes.py")


@pytest.fixture
def gears(monkeypatch, tmp_path):
    """Run ``gears bench`` with runs in this process; errors come through as they are."""

    def launch(command, folder, limits):
        (folder / "log.txt").touch()
        worker.main(command[-1])
        return {"code": 0, "timeout": False, "seconds": 1.0, "peak_gb": 0.1}

    monkeypatch.setattr(harness, "launch", launch)
    app = typer.Typer()
    app.command()(bench)

    def run(*arguments: str):
        result = CliRunner().invoke(app, [*arguments, "--out", str(tmp_path / "out")])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


def test_own_cells_under_a_protocol_with_an_own_method(gears, plane, tmp_path):
    plane(400).write_h5ad(tmp_path / "cells.h5ad")
    given = ["pseudo-visium", "--sc", str(tmp_path / "cells.h5ad"), "-m", f"{FAKES}:noisy", "--seeds", "2"]
    result = gears(*given)
    assert "### pseudo-visium: cells, hex 0.55" in result.stdout and "| fakes:noisy |" in result.stdout
    assert result.stderr.count("fakes:noisy · seed") == 4
    assert (tmp_path / "out" / "pseudo-visium.md").read_text() in result.stdout
    assert (tmp_path / "out" / "pseudo-visium.png").stat().st_size > 1000
    again = gears(*given, "--json")
    rows = json.loads(again.stdout)
    assert len(rows) == 4 and all(row["metrics"]["spearman"] > 0.9 for row in rows)
    assert again.stderr == ""  # nothing ran


def test_some_of_the_tasks_and_what_was_kept(gears, plane, tmp_path):
    plane(400).write_h5ad(tmp_path / "cells.h5ad")
    given = ["pseudo-visium", "--sc", str(tmp_path / "cells.h5ad"), "-m", f"{FAKES}:noisy", "--seeds", "1"]
    some = gears(*given, "--task", "hex", "--task", "no such")
    assert "### pseudo-visium: cells, hex 0.55" in some.stdout and "square" not in some.stdout
    kept = gears("tables")
    assert kept.stdout.strip().endswith(some.stdout.strip()) and kept.stderr == ""
    assert (tmp_path / "out" / "tables.md").read_text() in kept.stdout
    with pytest.raises(InputError, match=r"There are: cells, square 0\.55; cells, hex 0\.55"):
        gears(*given, "--task", "moon")


def test_slides_of_one_name_in_two_folders_are_two(gears, plane, tmp_path):
    for number, name in enumerate(("one", "two")):
        (tmp_path / name).mkdir()
        plane(300, seed=number).write_h5ad(tmp_path / name / "slide.h5ad")
    given = [text for name in ("one", "two") for text in ("--st", str(tmp_path / name / "slide.h5ad"))]
    result = gears("leave-section-out", *given, "-m", f"{FAKES}:noisy", "--seeds", "1")
    assert "one/slide" in result.stdout and "two/slide" in result.stdout


def test_lists_and_tables_can_be_had_as_json(gears, plane, tmp_path):
    listed = json.loads(gears("--list", "--json").stdout)
    assert "filling" in listed["experiments"] and "stem" in listed["peers"]
    plane(300).write_h5ad(tmp_path / "cells.h5ad")
    gears("pseudo-visium", "--sc", str(tmp_path / "cells.h5ad"), "-m", f"{FAKES}:noisy", "--seeds", "1")
    assert {row["method"] for row in json.loads(gears("tables", "--json").stdout)} == {"fakes:noisy"}


def test_a_folder_without_rows_has_no_tables(gears):
    with pytest.raises(InputError, match="holds no rows"):
        gears("tables")


def test_the_list_names_experiments_methods_and_peers(gears):
    text = gears("--list").stdout
    assert all(word in text for word in ("table1", "patch-size", "kNN on PCA", "| moscot |"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["table9"], "no experiment"),
        (["quick", "-m", "magic"], "no method"),
        (["quick", "--peer-source", "nobody=/tmp"], "NAME=DIR"),
        (["quick", "--accept-licence", "nobody"], "no peer nobody"),
        (["unpaired", "--sc", "CELLS"], "needs --st, too"),
        (["leave-section-out", "--sc", "CELLS"], "leave-section-out does not use --sc"),
        (["real-unpaired", "--order", "a,b"], "--order without files of your own"),
        (["pseudo-visium", "--sc", "CELLS", "--simulated"], "found your own files and --simulated"),
        (["stitching", "--retry", "--task", "E3"], "stitching does not use --task or --retry"),
        (["tables", "--data", "folder"], "tables does not use --data"),
        (["tables", "--set", "geometry.steps=2"], "tables does not use --set"),
        (["quick", "--sizes", "10"], "quick does not use --sizes"),
        (["quick", "--data", "folder"], "quick does not use --data"),
        (["mouse-atlas", "--st", "CELLS"], "mouse-atlas does not use --st"),
        (["mouse-atlas", "--data", "folder", "--simulated"], "found --data and --simulated"),
        (["filling", "-m", "quick", "-m", "default"], "Expected one --method, found 2"),
        (["quick", "-m", "random", "--set", "geometry.steps=2"], "random is none"),
        (["quick", "--set", "threads=2"], "Use --threads"),
        (["speed"], "speed needs --against"),
        (["speed", "--against", "/no/such"], "neither a folder nor a git ref"),
        (["scaling", "--sizes", "many"], "expects numbers of cells"),
    ],
)
def test_bad_arguments_are_refused(gears, plane, tmp_path, arguments, words):
    plane(30).write_h5ad(tmp_path / "cells.h5ad")
    given = [str(tmp_path / "cells.h5ad") if word == "CELLS" else word for word in arguments]
    with pytest.raises(InputError, match=words):
        gears(*given)


def test_wrong_values_are_refused_before_anything_runs(gears):
    with pytest.raises(ConfigError, match="geometry"):
        gears("quick", "--set", "geometry.no_such=2")


def test_an_experiment_gets_its_options_and_its_table_and_figures_are_written(gears, monkeypatch, tmp_path):
    def run(request, tell):
        assert request.method == ["quick"] and request.values == ["geometry.steps=2"] and request.simulated
        tell("a line")
        return Outcome("### text\n", [{"spearman": float("nan")}], {"one": Figure(), "two": Figure()})

    experiment = Experiment("", frozenset({"method", "values", "simulated"}), run)
    monkeypatch.setitem(experiments.EXPERIMENTS, "stitching", experiment)
    given = ["stitching", "--simulated", "-m", "quick", "--set", "geometry.steps=2"]
    result = gears(*given)
    assert result.stdout == "### text\n\n" and result.stderr == "a line\n"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"stitching.md", "one.png", "two.png"}
    assert json.loads(gears(*given, "--json").stdout) == [{"spearman": None}]


def test_changed_presets_have_rows_of_their_own(gears, plane, tmp_path, monkeypatch):
    seen = []

    def gears_stand_in(slides, cells, *, seed, preset, values):
        seen.append((preset, values))
        return cells.X.toarray()[:, :2]

    monkeypatch.setattr(methods, "gears", gears_stand_in)
    plane(300).write_h5ad(tmp_path / "cells.h5ad")
    given = [
        "pseudo-visium",
        "--sc",
        str(tmp_path / "cells.h5ad"),
        "-m",
        "quick",
        "--seeds",
        "1",
        "--task",
        "hex",
    ]
    gears(*given)
    gears(*given, "--set", "geometry.steps=2")
    gears(*given, "--set", "geometry.steps=2")
    assert seen == [("quick", []), ("quick", ["geometry.steps=2"])]
    rows = json.loads(gears("tables", "--json").stdout)
    assert [row["method"] for row in rows] == ["GEARS quick", "GEARS quick, geometry.steps=2"]
