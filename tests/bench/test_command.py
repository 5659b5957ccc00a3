from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from spatialgears.bench import harness, worker
from spatialgears.cli.bench import bench
from spatialgears.errors import InputError

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
        (["leave-section-out", "--sc", "CELLS"], "cannot be run on these files"),
        (["stitching", "--retry", "--task", "E3"], "stitching does not take --task or --retry"),
        (["tables", "--data", "folder"], "tables does not take --data"),
        (["quick", "--sizes", "10"], "quick does not take --sizes"),
        (["filling", "-m", "quick", "-m", "default"], "takes one --method, found 2"),
    ],
)
def test_bad_arguments_are_refused(gears, plane, tmp_path, arguments, words):
    plane(30).write_h5ad(tmp_path / "cells.h5ad")
    given = [str(tmp_path / "cells.h5ad") if word == "CELLS" else word for word in arguments]
    with pytest.raises(InputError, match=words):
        gears(*given)


def test_experiments_on_one_model_write_their_table_and_figure(gears, monkeypatch, tmp_path):
    from spatialgears.bench import embedding, experiments, figures, one_model

    def fake_rows(sets, variants, *, root, seeds, folder):
        keys = ("spearman", "reference", "entropy", "entropy_before", "ilisi", "ilisi_before")
        return [{"set": name, **dict.fromkeys(keys, 0.5)} for name in sets]

    monkeypatch.setattr(embedding, "rows", fake_rows)
    assert "| simulated | 0.5 |" in gears("embedding", "--simulated").stdout
    monkeypatch.setattr(
        experiments, "SIMULATED", {"n_cells": 60, "n_genes": 60, "n_sections": 1, "spots": 60}
    )

    def fake_run(name, task, config, *, folder):
        assert task.cells.n_obs == 60 and config.geometry.steps
        return [{"run": "weighted", "spearman": 0.25}], figures.Figure()

    monkeypatch.setattr(one_model, "run", fake_run)
    assert "| weighted | 0.25 |" in gears("stitching", "--simulated", "-m", "quick").stdout
    assert {path.name for path in (tmp_path / "out").glob("*.png")} == {"embedding.png", "stitching.png"}
