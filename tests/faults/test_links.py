"""Links, pipes and devices in folders of ours lead nowhere: nothing outside is written to, nothing waits."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace

import anndata as ad
import pytest

from spatialgears.errors import RunError
from spatialgears.runtime import files
from spatialgears.storage.run_folder import RunFolder, locked, logged

NAMES = ["run.log", "run.json", "checkpoints", "model", "cells.h5ad", "places.csv", "report.html"]


@pytest.fixture
def outside(tmp_path) -> Path:
    """A document, and a folder with one, that belong to somebody else."""
    folder = tmp_path / "outside"
    (folder / "papers").mkdir(parents=True)
    for path in (folder / "thesis", folder / "papers" / "thesis"):
        path.write_text("years of work")
    return folder


def untouched(outside: Path) -> bool:
    found = {str(path.relative_to(outside)) for path in outside.rglob("*")}
    return found == {"thesis", "papers", "papers/thesis"} and all(
        path.read_text() == "years of work" for path in (outside / "thesis", outside / "papers" / "thesis")
    )


def go(tools, small_files, out, config) -> None:
    tools[0](str(small_files), str(out), config.to_json(), SimpleNamespace(value=0))


@pytest.mark.parametrize("name", [".lock", *NAMES])
@pytest.mark.parametrize("kind", ["link to a file", "link to a folder", "link to nothing", "pipe"])
def test_a_link_in_a_run_folder_is_refused(name, kind, outside, tools, small_files, fault_config, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    path = out / name
    if name != "run.json":  # else the folder is taken for a stranger's
        (out / "run.json").write_text("{}")
    if kind == "pipe":
        os.mkfifo(path)
    else:
        target = {"link to a file": "thesis", "link to a folder": "papers", "link to nothing": "new"}[kind]
        path.symlink_to(outside / target)
    with pytest.raises(RunError, match=rf"{name} is a symbolic link or something else.*delete it"):
        go(tools, small_files, out, fault_config)
    assert untouched(outside)


@pytest.mark.parametrize(
    "name", ["checkpoints/encoder.safetensors", "model/meta.json", "model/weights.safetensors"]
)
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_link_among_checkpoints_or_in_a_model_is_refused(
    name, kind, outside, tools, small_files, fault_config, tmp_path
):
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    (tmp_path / "out" / "run.json").write_text("{}")
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(outside / "thesis")
    with pytest.raises(RunError, match=rf"{path.name} is a symbolic link or something else"):
        go(tools, small_files, tmp_path / "out", fault_config)
    assert untouched(outside)


def test_a_log_that_is_also_another_file_is_not_written_to(outside, tmp_path):
    os.link(outside / "thesis", tmp_path / "run.log")
    with (
        pytest.raises(RunError, match=r"run.log is a symbolic link or something else"),
        logged(tmp_path / "run.log"),
    ):
        pass
    assert untouched(outside)


def test_a_lock_leaves_what_the_file_holds(tmp_path):
    (tmp_path / ".lock").write_text("something")
    with locked(tmp_path):
        assert (tmp_path / ".lock").read_text() == "something"


def test_the_folder_itself_may_be_a_link(outside, tmp_path):
    """A user names it, as where results go to another disk."""
    (tmp_path / "out").symlink_to(outside / "papers")
    with locked(tmp_path / "out"), logged(tmp_path / "out" / "run.log"):
        RunFolder(tmp_path / "out").require_plain()
    assert (outside / "papers" / "run.log").read_text().count("started") == 1


def test_a_regular_file_is_opened_as_it_is(tmp_path):
    (tmp_path / "x").write_text("words")
    assert files.read_regular(tmp_path / "x") == b"words"
    for name in ("pipe", "folder"):
        (os.mkfifo if name == "pipe" else os.mkdir)(tmp_path / name)
        with pytest.raises(RunError, match=f"{name} is a symbolic link or something else"):
            files.read_regular(tmp_path / name)


def test_an_output_that_is_a_pipe_is_refused_at_once(small_model, small_files, tmp_path, capsys):
    from spatialgears.cli.app import main

    small_model.save(tmp_path / "model")
    os.mkfifo(tmp_path / "out.csv")
    with pytest.raises(SystemExit) as left:
        main(["reconstruct", "-m", str(tmp_path / "model"), "--sc", str(small_files / "sc.h5ad"),
              "-o", str(tmp_path / "out.csv"), "--overwrite"])  # fmt: skip
    assert left.value.code == 2 and "out.csv" in capsys.readouterr().err


def test_cells_that_change_during_a_run_are_refused(small_files, fault_config, small_tissue, tmp_path):
    """Their new contents would get the places of the old ones."""
    from spatialgears.errors import InputError
    from spatialgears.io import read
    from spatialgears.run import RunInputs, run

    for name in ("st_1.h5ad", "sc.h5ad"):
        shutil.copy(small_files / name, tmp_path / name)
    st, sc = str(tmp_path / "st_1.h5ad"), tmp_path / "sc.h5ad"
    other = small_tissue.cells.copy()
    other.X = other.X[:, ::-1]
    stages: list[str] = []

    def replace(stage, *_):
        if not stages:
            other.write_h5ad(sc)
        stages.append(stage)

    with pytest.raises(InputError, match=r"sc.h5ad has changed since it was read"):
        run(
            RunInputs([st], str(sc), lambda: ([read(st)], read(sc))),
            tmp_path / "out",
            fault_config,
            progress=replace,
        )
    assert not (tmp_path / "out" / "cells.h5ad").exists()


@pytest.mark.parametrize("which", ["st_1.h5ad", "places.csv"])
def test_inputs_that_change_while_they_are_read_are_refused(which, small_files, fault_config, tmp_path):
    from spatialgears.errors import InputError
    from spatialgears.io import read
    from spatialgears.run import RunInputs, run

    for name in ("st_1.h5ad", "sc.h5ad"):
        shutil.copy(small_files / name, tmp_path / name)
    (tmp_path / "places.csv").write_text("")
    st, sc = str(tmp_path / "st_1.h5ad"), str(tmp_path / "sc.h5ad")

    def read_slowly():
        found = [read(st)], read(sc)
        with (tmp_path / which).open("ab") as file:
            file.write(b"more")
        return found

    options = {"coordinates": [str(tmp_path / "places.csv")]}
    with pytest.raises(InputError, match=rf"{which} changed while it was read"):
        run(RunInputs([st], sc, read_slowly, options=options), tmp_path / "out", fault_config)
    assert not (tmp_path / "out" / "run.json").exists()


def test_a_zarr_store_that_changes_before_it_is_copied_is_refused(small_model, small_tissue, tmp_path):
    from spatialgears.errors import InputError
    from spatialgears.io import read

    with ad.settings.override(zarr_write_format=3), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small_tissue.cells.write_zarr(tmp_path / "cells.zarr")
    digest = files.fingerprint(tmp_path / "cells.zarr")
    cells = read(tmp_path / "cells.zarr")
    placed = small_model.reconstruct(cells)
    placed.write(cells, tmp_path / "a.h5ad", source=tmp_path / "cells.zarr", digest=digest)
    meta = tmp_path / "cells.zarr" / "zarr.json"
    meta.write_text(meta.read_text() + "\n")
    with pytest.raises(InputError, match=r"cells.zarr has changed since it was read"):
        placed.write(cells, tmp_path / "b.h5ad", source=tmp_path / "cells.zarr", digest=digest)
    assert not (tmp_path / "b.h5ad").exists()
