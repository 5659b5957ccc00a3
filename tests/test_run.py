from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from spatialgears import model
from spatialgears.config import Config
from spatialgears.errors import ConfigError, InputError, RunError
from spatialgears.model import GEARS
from spatialgears.run import (
    DONE,
    RunFolder,
    RunInputs,
    _differences,
    _follow,
    fingerprint,
    locked,
    logged,
    run,
)
from spatialgears.runtime.progress import silent


@pytest.fixture(scope="module")
def inputs(small_files) -> RunInputs:
    st, sc = [str(small_files / f"st_{i}.h5ad") for i in (1, 2)], str(small_files / "sc.h5ad")
    return RunInputs(
        st, sc, lambda: ([ad.read_h5ad(path) for path in st], ad.read_h5ad(sc)), command="gears run ..."
    )


@pytest.fixture(scope="module")
def config(small_config):
    return small_config.with_values(["geometry.steps=6", "geometry.slide_steps=6", "geometry.eval_every=2"])


@pytest.fixture(scope="module")
def done(inputs, config, tmp_path_factory) -> RunFolder:
    return run(inputs, tmp_path_factory.mktemp("runs") / "new" / "out", config)


def contents(folder: RunFolder) -> dict[str, tuple[bytes, int]]:
    """Contents and time of all files but the log, which is added to."""
    files = [p for p in folder.root.rglob("*") if p.is_file() and p != folder.log and p.name != ".lock"]
    return {str(p.relative_to(folder.root)): (p.read_bytes(), p.stat().st_mtime_ns) for p in files}


def no_work(stage, step, total, values):
    raise AssertionError(f"{stage} was done again")


def test_a_run_writes_cells_model_report_and_log(done, small_tissue):
    assert sorted(p.name for p in done.root.iterdir()) == [
        ".lock",
        "cells.h5ad",
        "model",
        "places.csv",
        "report.html",
        "run.json",
        "run.log",
    ]
    cells = ad.read_h5ad(done.cells)
    assert cells.obsm["X_gears"].shape == (150, 2) and "spatial" not in cells.obsm
    assert (cells.X != small_tissue.cells.X).nnz == 0 and list(cells.obs_names) == list(
        small_tissue.cells.obs_names
    )
    placed = GEARS.load(done.model).reconstruct(small_tissue.cells)
    np.testing.assert_array_equal(placed.coords, cells.obsm["X_gears"])
    table = pd.read_csv(done.places)
    assert list(table)[:6] == ["cell", "x", "y", "radius50", "radius90", "outside"]
    assert list(table)[6:] == ["x_on_st_1", "y_on_st_1", "x_on_st_2", "y_on_st_2", "domain", "domain_noise"]
    assert {cells.uns[f"X_gears_slide{i}"]["slide"] for i in (1, 2)} == {"st_1", "st_2"}
    np.testing.assert_allclose(table[["x_on_st_2", "y_on_st_2"]], cells.obsm["X_gears_slide2"], rtol=1e-4)
    assert list(table["cell"]) == list(cells.obs_names)
    np.testing.assert_allclose(table[["x", "y"]], cells.obsm["X_gears"], rtol=1e-6)
    np.testing.assert_allclose(table["radius90"], cells.obs["gears_uncertainty"], rtol=1e-6)
    np.testing.assert_array_equal(table["outside"], cells.obs["gears_outside"])
    log = done.log.read_text()
    assert "done" in log and "gears run ..." in log and "Held-out spots of slide st_1: " in log
    assert "warning: Only 60 genes are shared" in log


def test_the_report_stands_alone(done):
    text = done.report.read_text(encoding="utf-8")
    assert "150 cells placed" in text and "Held-out spots of slide st_1" in text and "gears run ..." in text
    assert "connect-src" in text or "default-src 'none'" in text
    assert all(f'{tag}="http' not in text.split("<body")[0] for tag in ("src", "href"))


def test_a_second_run_does_nothing_and_changes_nothing(done, inputs, config):
    before, told = contents(done), []
    assert run(inputs, done.root, config, progress=no_work, tell=told.append) == done
    assert contents(done) == before
    assert told == [
        f"{sum(slide.n_obs for slide in inputs.read()[0])} spots of 2 slides, 150 cells, 60 genes in common. "
        "Donors: each slide is taken as a donor of its own; name donors with --donor (donors=) if some share one.",
        f"Everything is done already in {done.root}; nothing was changed. To do it again, choose another folder with -o, or "
        "delete this one.",
    ]


def test_the_number_of_threads_may_change(done, inputs, config):
    assert run(inputs, done.root, config.with_values(["threads=2"]), progress=no_work) == done


def test_the_number_of_threads_is_the_present_one_also_where_the_model_is_fitted(
    done, inputs, config, monkeypatch
):
    used = []
    monkeypatch.setattr(
        "spatialgears.model.place",
        lambda *args, workers, place=model.place, **rest: used.append(workers) or place(*args, **rest),
    )
    done.report.unlink()
    run(inputs, done.root, config.with_values(["threads=3"]))
    assert used == [3]


def test_other_processes_rest_where_everything_is_done(inputs, config, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "spatialgears.run.agreed", lambda state: DONE
    )  # without FITTED: the model was deleted
    monkeypatch.setattr("spatialgears.model.GEARS.fit", None)
    assert _follow(RunFolder(tmp_path), inputs, config) == RunFolder(tmp_path)


def test_too_many_processes_are_refused_before_the_folder_is_claimed(inputs, config, tmp_path):
    with pytest.raises(ConfigError, match="processes cannot share"):
        run(inputs, tmp_path / "out", config.with_values(["devices=99"]))
    assert not (tmp_path / "out").exists()


def test_inputs_may_move(done, inputs, config, small_files, tmp_path):
    for path in small_files.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    moved = RunInputs(
        [str(tmp_path / Path(p).name) for p in inputs.st], str(tmp_path / "sc.h5ad"), inputs.read
    )
    run(moved, done.root, config, progress=no_work)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("seed=7", "seed was 0, now 7"),
        ("geometry.steps=9", "geometry.steps was 6, now 9"),
        ("assembly.samples=1", "assembly.samples was 2, now 1"),
    ],
)
def test_another_configuration_is_refused_by_key(done, inputs, config, change, words):
    before = contents(done)
    with pytest.raises(InputError, match=words):
        run(inputs, done.root, config.with_values([change]))
    assert contents(done) == before


def test_another_preset_is_told_in_one_line():
    def told(before, now):
        return _differences(*({"config": one.model_dump(mode="json"), **same} for one in (before, now)))

    same = {"inputs": {}, "reading": {}, "versions": {"spatialgears": "1"}}
    quick, default, paper = map(Config.preset, ("quick", "default", "paper"))
    assert told(quick, quick.with_values("threads=3")) == []
    assert told(quick, paper) == ["its preset was quick, now paper"]
    more = default.with_values(["seed=3", "geometry.lr=0.1"])
    assert told(quick, more) == [
        "its preset was quick, now default",
        "seed was 0, now 3",
        "geometry.lr was 0.003, now 0.1",
    ]
    assert told(default, more) == ["seed was 0, now 3", "geometry.lr was 0.002, now 0.1"]


def test_other_inputs_are_refused(done, inputs, config):
    swapped = RunInputs(inputs.st[::-1], inputs.sc, inputs.read)
    fewer = RunInputs(inputs.st[:1], inputs.sc, lambda: (inputs.read()[0][:1], inputs.read()[1]))
    for other in (swapped, fewer):
        with pytest.raises(InputError, match=r"its inputs were .*st_1.h5ad.*sc.h5ad"):
            run(other, done.root, config)


def test_inputs_read_in_another_way_are_refused(done, inputs, config):
    other = RunInputs(inputs.st, inputs.sc, inputs.read, options={"layer": "counts"})
    with pytest.raises(InputError, match="layer was not given, now counts"):
        run(other, done.root, config)


def test_a_table_named_by_an_option_counts_by_its_contents(inputs, config, tmp_path):
    table = tmp_path / "xy.csv"
    table.write_text("a")
    given = RunInputs(inputs.st, inputs.sc, inputs.read, options={"coordinates": [str(table)]})
    out = tmp_path / "out"
    with pytest.raises(Stop):
        run(given, out, config, progress=stop_at("geometry fold", 1))
    table.write_text("b")
    with pytest.raises(InputError, match=r"xy.csv is another file, or has changed"):
        run(given, out, config)


class Stop(BaseException):
    """Like a kill: nothing catches it."""


def stop_at(wanted: str, number: int):
    def progress(stage, step, total, values):
        if (stage, step) == (wanted, number):
            raise Stop

    return progress


@pytest.mark.parametrize(
    ("stage", "step"),
    [("geometry slide", 3), ("geometry refiner", 2), ("samples", 1)],
)
def test_a_run_that_was_stopped_ends_as_if_it_had_not(done, inputs, config, tmp_path, stage, step):
    lines: list[str] = []
    with pytest.raises(Stop):
        run(inputs, tmp_path, config, progress=stop_at(stage, step), tell=lines.append)
    assert lines[1].startswith("This takes about ") and str(tmp_path) in lines[1]
    assert not (tmp_path / "cells.h5ad").exists()
    told, lines = [], []
    again = run(inputs, tmp_path, config, progress=lambda *one: told.append(one[:2]), tell=lines.append)
    fitted = ": the model is fitted already." if stage == "samples" else "."
    assert lines[1] == f"Resuming in {tmp_path}{fitted}"
    assert ("geometry slide", 1) not in told  # it went on, not from the start
    one, two = ad.read_h5ad(done.cells), ad.read_h5ad(again.cells)
    np.testing.assert_array_equal(one.obsm["X_gears"], two.obsm["X_gears"])
    np.testing.assert_array_equal(one.obs["gears_uncertainty"], two.obs["gears_uncertainty"])
    assert (done.model / "weights.safetensors").read_bytes() == (
        again.model / "weights.safetensors"
    ).read_bytes()
    assert not again.checkpoints.exists() and again.report.exists()


def test_a_warning_is_shown_once_before_training(inputs, config, tmp_path, caplog):
    told = []
    with pytest.raises(Stop):
        run(inputs, tmp_path, config, progress=stop_at("geometry slide", 1), tell=told.append)
    shown = next(text for text in told if text.startswith("Warnings"))
    assert "genes are shared" in shown
    assert not [
        one for one in caplog.records if one.levelno >= logging.WARNING and "genes are shared" in one.message
    ]


def test_what_is_lost_is_made_again(done, inputs, config):
    report = done.report.read_bytes()
    done.report.unlink()
    run(inputs, done.root, config)
    assert len(done.report.read_bytes()) == pytest.approx(len(report), rel=1e-3)


HOLD = """
import sys
from pathlib import Path
from spatialgears.run import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_is_refused_while_the_first_is_at_work(inputs, config, tmp_path):
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=pipe, stdout=pipe, text=True
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(RunError, match="Another run is at work"):
            run(inputs, tmp_path, config)
        other.kill()  # the lock goes with the process
    with locked(tmp_path):
        pass


def test_a_stranger_folder_is_refused_and_left_alone(inputs, config, tmp_path):
    (tmp_path / "thesis.txt").write_text("words")
    with pytest.raises(InputError, match=r"not a run's folder \(it holds thesis.txt\)"):
        run(inputs, tmp_path, config)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_damaged_manifest_is_named(inputs, config, tmp_path):
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(RunError, match=r"run\.json is damaged"):
        run(inputs, tmp_path, config)


def test_a_place_that_cannot_be_written_to(inputs, config, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"Cannot write to .*file/out: Not a directory"):
        run(inputs, tmp_path / "file" / "out", config)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder(inputs, config, tmp_path):
    (tmp_path / "out").mkdir(mode=0o500)
    with pytest.raises(InputError, match=r"Cannot write to .*Permission denied"):
        run(inputs, tmp_path / "out", config)


def test_bad_inputs_are_refused_before_the_folder_is_claimed(inputs, config, small_tissue, tmp_path):
    bare = small_tissue.slides[0].copy()
    del bare.obsm["spatial"]
    bad = RunInputs(inputs.st[:1], inputs.sc, lambda: ([bare], small_tissue.cells))
    with pytest.raises(InputError, match=r"st_1.h5ad: expected coordinates"):
        run(bad, tmp_path / "out", config)
    assert not (tmp_path / "out" / "run.json").exists()
    assert "expected coordinates" in (tmp_path / "out" / "run.log").read_text()
    with pytest.raises(Stop):  # the same folder can be used once the input is right
        run(inputs, tmp_path / "out", config, progress=stop_at("geometry fold", 1))


def test_a_fingerprint_knows_names_and_contents(tmp_path):
    for folder, name, text in (("a", "x", "1"), ("b", "x", "1"), ("c", "y", "1"), ("d", "x", "2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(text)
    a, b, c, d = (fingerprint(tmp_path / folder) for folder in "abcd")
    assert a == b and len({a, c, d}) == 3
    assert fingerprint(tmp_path / "a" / "x") == fingerprint(tmp_path / "c" / "y")


def test_only_the_file_is_told_the_details(tmp_path):
    package, told = logging.getLogger("spatialgears"), []

    class Console(logging.Handler):
        def emit(self, record):
            told.append(record.getMessage())

    console, before = Console(), package.level
    logging.getLogger().addHandler(console)
    package.setLevel(logging.WARNING)
    try:
        with logged(tmp_path / "run.log"):
            logging.getLogger("spatialgears.deep.down").info("a detail")
            logging.getLogger("spatialgears.deep.down").warning("a warning")
        assert told == ["a warning"] and (package.level, package.propagate) == (logging.WARNING, True)
        package.setLevel(logging.INFO)
        with logged(tmp_path / "run.log"):
            logging.getLogger("spatialgears.deep.down").info("wanted")
        assert "wanted" in told
    finally:
        logging.getLogger().removeHandler(console)
        package.setLevel(before)
    text = (tmp_path / "run.log").read_text()
    assert all(words in text for words in ("INFO a detail", "WARNING a warning", "INFO wanted"))
    assert package.handlers == []


def test_without_plotly_the_cells_are_written_all_the_same(
    inputs, config, done, tmp_path, monkeypatch, caplog
):
    import shutil

    from spatialgears.report import write

    shutil.copytree(done.root, tmp_path / "out")
    (tmp_path / "out" / "report.html").unlink()
    (tmp_path / "out" / "cells.h5ad").unlink()
    monkeypatch.setattr(write, "find_spec", lambda name: None)
    again = run(inputs, tmp_path / "out", config, progress=silent)
    assert again.cells.exists() and not again.report.exists()
    assert "spatialgears[report]" in caplog.text
