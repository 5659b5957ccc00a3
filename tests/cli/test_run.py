from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import anndata as ad
import numpy as np
import pytest

from spatialgears.cli import main
from spatialgears.pipeline.place import place


@pytest.fixture(scope="module")
def small_json(small_config, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("config") / "small.json"
    changes = {"geometry": {"steps": 6, "slide_steps": 2}}
    path.write_text(small_config.with_values(changes).to_json())
    return path


@pytest.fixture
def inputs(small_files) -> list[str]:
    return [
        "--st",
        f"{small_files}/st_1.h5ad",
        "--st",
        f"{small_files}/st_2.h5ad",
        "--sc",
        f"{small_files}/sc.h5ad",
    ]


@pytest.fixture
def gears(capsys):
    def gears(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main([str(one) for one in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return int(left.value.code or 0), out, err

    return gears


@pytest.fixture(scope="module")
def model(small_model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fitted") / "model"
    small_model.save(folder)
    return folder


def test_run_in_a_process_of_its_own(inputs, small_json, tmp_path):
    """Results on standard output, progress alone on standard error."""
    command = [
        sys.executable,
        "-m",
        "spatialgears.cli",
        "run",
        *inputs,
        "-o",
        tmp_path / "out",
        "--config",
        small_json,
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert (
        "Held-out spots of slide st_1:" in ended.stdout
        and str(tmp_path / "out" / "report.html") in ended.stdout
    )
    assert "INFO" not in ended.stderr and "geometry fold: 12/12" in ended.stderr
    assert "Traceback" not in ended.stderr
    plan, odd, fitted = (ended.stderr.index(one) for one in ("This takes about", "  - Only 60", "geometry"))
    assert plan < odd < fitted and "  - Only 60" in ended.stdout
    assert "INFO" in (tmp_path / "out" / "run.log").read_text()
    assert ad.read_h5ad(tmp_path / "out" / "cells.h5ad").obsm["X_gears"].shape == (150, 2)


def test_run_twice_then_with_another_value(gears, inputs, small_json, tmp_path):
    command = ["run", *inputs, "-o", tmp_path / "out", "--config", small_json]
    code, out, _ = gears(*command, "--json")
    facts = json.loads(out)
    assert code == 0 and Path(facts["cells"]).exists() and Path(facts["report"]).exists()
    assert facts["self_check"][0]["title"] == "Held-out spots of slide st_1"
    found = facts["cells_check"]
    assert {"r", "se", "reference", "shuffled", "ceiling", "n_genes", "verdict"} <= set(found)
    assert found["n_cells"] == 150 and len(found["by_gene"]["gene"]) == found["n_genes"]
    assert "Only 60 genes are shared; places will be coarse." in facts["warnings"]
    before = (tmp_path / "out" / "cells.h5ad").stat().st_mtime_ns
    code, out, err = gears(*command)
    assert code == 0 and "geometry" not in err and "Results\n" in out and "Written" not in out
    assert "  - Only 60 genes are shared" in out and "Everything is done already" in err
    code, _, err = gears(*command, "--set", "seed=5")
    assert code == 2 and "seed was 0, now 5" in err and err.count("belongs to another run") == 1
    assert "What to do: Choose another folder with -o" in err
    code, _, err = gears(*command, "--sc-layer", "X")
    assert code == 2 and "sc_layer was not given, now X" in err
    assert (tmp_path / "out" / "cells.h5ad").stat().st_mtime_ns == before


@pytest.mark.parametrize("command", ["check", "run", "fit"])
def test_a_slide_given_twice_is_refused(command, gears, inputs, tmp_path):
    out = {"check": [], "run": ["-o", tmp_path / "out"], "fit": ["--model", tmp_path / "m"]}[command]
    code, _, err = gears(command, *inputs, "--st", inputs[1], *out)
    assert code == 2 and "hold the same values" in err and "Leave one of them out" in err
    assert not (tmp_path / "out" / "run.json").exists() and not (tmp_path / "m").exists()


def test_the_report_refuses_slides_it_cannot_draw(gears, model, inputs, small_files, tmp_path):
    out = ["-o", tmp_path / "r.html"]
    code, _, err = gears("report", "-m", model, *inputs[-2:], "--st", small_files / "sc.h5ad", *out)
    assert code == 2 and "expected coordinates" in err and not (tmp_path / "r.html").exists()
    other = ad.read_h5ad(small_files / "st_1.h5ad")
    other.var_names = [f"other {i}" for i in range(other.n_vars)]
    other.write_h5ad(tmp_path / "other.h5ad")
    code, _, err = gears("report", "-m", model, *inputs[-2:], "--st", tmp_path / "other.h5ad", *out)
    assert code == 2 and "genes shared by all inputs, found 0" in err


def test_cells_are_placed_with_the_threads_of_this_machine(gears, model, small_files, tmp_path, monkeypatch):
    """Not with those of the machine that the model was fitted on."""
    used = []

    def spy(*arguments, workers, **options):
        used.append(workers)
        return place(*arguments, workers=workers, **options)

    monkeypatch.setattr("spatialgears.model.place", spy)
    call = ["reconstruct", "-m", model, "--sc", small_files / "sc.h5ad", "-o", tmp_path / "c.csv"]
    for count in (1, 3):
        assert gears(*call, "--overwrite", "--set", f"threads={count}")[0] == 0
    assert used == [1, 3]


def test_fit_then_reconstruct_then_report(gears, inputs, small_json, small_files, tmp_path):
    code, out, _ = gears("fit", *inputs, "--model", tmp_path / "m", "--config", small_json)
    assert code == 0 and f"The model is in {tmp_path / 'm'}" in out and "Held-out" in out
    code, _, err = gears("fit", *inputs, "--model", tmp_path / "m", "--config", small_json)
    assert code == 2 and "not empty" in err
    sc = small_files / "sc.h5ad"
    code, out, _ = gears(
        "reconstruct", "-m", tmp_path / "m", "--sc", sc, "-o", tmp_path / "c.h5ad", "--profile"
    )
    assert code == 0 and "150 cells were placed" in out and "network" in out
    assert np.isfinite(ad.read_h5ad(tmp_path / "c.h5ad").obsm["X_gears"]).all()
    again = ["reconstruct", "-m", tmp_path / "m", "--sc", sc, "-o", tmp_path / "p.h5ad"]
    patches = [
        "--set",
        "assembly.mode=patches",
        "--set",
        "assembly.patch_size=40",
        "--set",
        "assembly.samples=0",
    ]
    code, out, _ = gears(*again, *patches)
    assert code == 0 and "patches" in out, out
    code, _, err = gears(*again, "--overwrite", "--set", "geometry.steps=3")
    assert code == 2 and "fitted already" in err and "Set threads and values of the assembly" in err
    page = tmp_path / "r.html"
    code, out, _ = gears("report", "-m", tmp_path / "m", *inputs, "-o", page)
    assert "150 cells were placed" in out and "Held-out" in out and "  - Only 60 genes" in out
    assert code == 0 and str(page) in out and "150 cells placed" in page.read_text()


def test_report_on_a_slide_that_lacks_genes(gears, model, small_files, small_tissue, tmp_path):
    small_tissue.slides[0][:, ::2].copy().write_h5ad(tmp_path / "half.h5ad")
    command = ["report", "-m", model, "--sc", small_files / "sc.h5ad", "--st", tmp_path / "half.h5ad"]
    code, _, err = gears(*command, "-o", tmp_path / "r.html")
    assert code == 0, err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--sc", "{sc}", "-o", "{out}"], "--st"),
        (["run", "--st", "{st}", "--sc", "none.h5ad", "-o", "{out}"], "no file or folder none.h5ad"),
        (["run", "--st", "{sc}", "--sc", "{sc}", "-o", "{out}"], "expected coordinates"),
        (
            ["run", "--st", "{st}", "--sc", "{sc}", "-o", "{out}", "--set", "geometry.stesp=3"],
            "geometry.stesp",
        ),
        (["fit", "--st", "{st}", "--sc", "{sc}", "--model", "{st}"], "Choose another folder"),
        (["reconstruct", "-m", "{out}", "--sc", "{sc}", "-o", "{out}.h5ad"], "is not a saved model"),
        (["reconstruct", "-m", "{model}", "--sc", "{few}", "-o", "{out}.h5ad"], "genes are missing"),
        (["report", "-m", "{out}", "--sc", "{sc}", "-o", "{out}.html"], "is not a saved model"),
        (["demo", "--cells", "3"], "--cells"),
    ],
)
def test_bad_input_leaves_with_two(gears, model, small_files, small_tissue, tmp_path, arguments, words):
    small_tissue.cells[:, :5].copy().write_h5ad(tmp_path / "few.h5ad")
    paths = {"st": small_files / "st_1.h5ad", "sc": small_files / "sc.h5ad", "few": tmp_path / "few.h5ad"}
    code, out, err = gears(*(one.format(out=tmp_path / "out", model=model, **paths) for one in arguments))
    assert (code, out) == (2, "") and words in err


def test_a_stranger_folder_leaves_with_two_and_a_damaged_model_with_one(
    gears, model, inputs, small_json, tmp_path
):
    (tmp_path / "thesis.txt").write_text("words")
    code, _, err = gears("run", *inputs, "-o", tmp_path, "--config", small_json)
    assert code == 2 and "thesis.txt" in err and err.count("not a run's folder") == 1
    damaged = tmp_path / "m"
    damaged.mkdir()
    for path in model.iterdir():
        (damaged / path.name).write_bytes(path.read_bytes()[:100])
    code, _, err = gears("reconstruct", "-m", damaged, *inputs[-2:], "-o", tmp_path / "c.h5ad")
    assert code == 1 and "meta.json is damaged" in err and not (tmp_path / "c.h5ad").exists()


def test_demo(gears, small_json, tmp_path):
    command = ["demo", "-o", tmp_path, "--cells", 200, "--config", small_json]
    code, out, err = gears(*command)
    assert code == 0, err
    rows = [line.split("\t") for line in out.splitlines() if "\t" in line]
    assert [row[0] for row in rows] == ["method", "GEARS", "kNN reference"] and rows[0][1] == "spearman"
    assert -1 <= float(rows[1][1]) <= 1 and str(tmp_path / "run" / "report.html") in out
    code, again, err = gears(*command)
    assert code == 0 and again == out and "geometry" not in err  # nothing is done twice
    code, _, err = gears(*command, "--seed", 1)
    assert code == 2 and "belongs to another run" in err  # another tissue is another run
    code, _, err = gears(*command, "--preset", "paper")
    assert code == 2 and "Expected --preset or --config, found both" in err


def test_no_result_is_written_into_an_input(gears, small_files, tmp_path):
    folder = tmp_path / "slide"
    folder.mkdir()
    (folder / "matrix.mtx").touch()
    given = ["--st", folder, "--sc", small_files / "sc.h5ad"]
    for command in (["run", *given, "-o", folder / "out"], ["fit", *given, "--model", folder / "model"]):
        code, _, err = gears(*command)
        assert code == 2 and "inside it; inputs are never written to" in " ".join(err.split()), err
    assert [path.name for path in folder.iterdir()] == ["matrix.mtx"]


def test_nothing_that_is_there_is_written_over(gears, model, inputs, tmp_path):
    cells = tmp_path / "sc.h5ad"
    cells.write_bytes(Path(inputs[-1]).read_bytes())
    notes = tmp_path / "notes.html"
    notes.write_text("mine")
    before = cells.read_bytes()
    place, page = (["-m", model, "--sc", cells, "-o"] for _ in range(2))
    for command, words in (
        (["reconstruct", *place, cells], "never written to"),
        (["reconstruct", *place, model / "c.h5ad"], "never written to"),
        (["reconstruct", *place, tmp_path / "placed"], "expects a .h5ad or .csv file"),
        (["reconstruct", *place, inputs[1]], "was not made by gears"),
        (["report", *page, cells], "expects a .html file"),
        (["report", *page, notes], "was not made by gears"),
    ):
        code, _, err = gears(*command)
        assert code == 2 and words in " ".join(err.split()), command
    assert cells.read_bytes() == before and notes.read_text() == "mine"
    placed = ["reconstruct", *place, tmp_path / "placed.h5ad"]
    assert gears(*placed)[0] == 0
    code, _, err = gears(*placed)
    assert code == 2 and "placed.h5ad is there already" in err and "--overwrite" in err
    assert gears(*placed, "--overwrite")[0] == 0
    table, mine = tmp_path / "placed.csv", tmp_path / "mine.csv"
    mine.write_text("cell,x,y\n")
    assert (
        gears("reconstruct", *place, table)[0] == gears("reconstruct", *place, table, "--overwrite")[0] == 0
    )
    code, _, err = gears("reconstruct", *place, mine, "--overwrite")
    assert code == 2 and "mine.csv is there already, and was not made by gears" in err
    assert len(table.read_text().splitlines()) == 151
    code, _, err = gears("reconstruct", *place, inputs[1], "--overwrite")  # what gears did not make stays
    assert code == 2 and "was not made by gears" in err


def test_a_place_that_cannot_be_written_to_is_told_before_the_work(gears, model, inputs, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = gears("reconstruct", "-m", model, *inputs[-2:], "-o", tmp_path / "file" / "c.h5ad")
    assert code == 2 and "Cannot write to" in err and "samples" not in err


def test_an_interrupted_run_says_how_to_go_on(inputs, small_json, tmp_path, monkeypatch, capsys):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("spatialgears.run.run", stop)
    with pytest.raises(SystemExit) as left:
        main(["run", *inputs, "-o", str(tmp_path / "out"), "--config", str(small_json)])
    assert left.value.code == 130
    assert f"Run the same command again to resume in {tmp_path / 'out'}" in capsys.readouterr().err


def test_simulated_files_do_not_replace_others(gears, tmp_path):
    (tmp_path / "sc.h5ad").write_text("mine")
    code, _, err = gears("simulate", "-o", tmp_path, "--cells", 100)
    assert code == 2 and "sc.h5ad already" in " ".join(err.split())
    assert (tmp_path / "sc.h5ad").read_text() == "mine" and len(list(tmp_path.iterdir())) == 1


def test_home_is_known_to_the_guard_as_to_the_writer(gears, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "sc.h5ad").write_text("mine")
    code, _, err = gears("simulate", "--output=~", "--cells", 100)
    assert code == 2 and "sc.h5ad already" in " ".join(err.split())


def test_a_model_that_cannot_be_saved_is_not_fitted(gears, inputs, small_json, tmp_path, monkeypatch):
    monkeypatch.setattr("spatialgears.model.fit_model", None)
    (tmp_path / "file").write_text("")
    code, _, err = gears("fit", *inputs, "--model", tmp_path / "file" / "m", "--config", small_json)
    assert code == 2 and "Cannot write to" in " ".join(err.split()) and "--model" in err


def test_the_column_of_cell_types_and_genes_can_be_named(gears, inputs, small_json, small_tissue, tmp_path):
    cells = small_tissue.cells.copy()
    cells.obs["subclass"] = cells.obs.pop("cell_type")
    cells.write_h5ad(tmp_path / "named.h5ad")
    command = [
        "run",
        "--st",
        inputs[1],
        "--sc",
        tmp_path / "named.h5ad",
        "-o",
        tmp_path / "out",
        "--config",
        small_json,
    ]
    code, _, err = gears(*command, "--types", "subclas")
    assert code == 2 and "no column 'subclas'" in err and "subclass" in err
    assert not (tmp_path / "out" / "model").exists()
    code, _, err = gears(*command, "--genes", f"{cells.var_names[0]}, gene0")
    assert code == 2 and "no gene 'gene0'" in err and not (tmp_path / "out" / "model").exists()
    code, _, _ = gears(
        *command, "--types", "subclass", "--genes", f"{cells.var_names[0]},{cells.var_names[1]}"
    )
    page = (tmp_path / "out" / "report.html").read_text()
    assert code == 0 and "Which cell types are neighbours" in page
    assert (
        f'"names":["{cells.var_names[0]}","{cells.var_names[1]}",' in page
    )  # those that were named come first
    code, _, err = gears(*command)
    assert code == 2 and "types" in err  # another question
