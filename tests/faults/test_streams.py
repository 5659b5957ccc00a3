"""Standard streams that are closed, broken or full, disks that fill up, file systems without locks, and strange paths."""

from __future__ import annotations

import errno
import logging
import os
import resource
import subprocess
import sys
import warnings
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from spatialgears.cli.app import main
from spatialgears.errors import GearsError, InputError, RunError
from spatialgears.io import read, write_h5ad
from spatialgears.runtime.progress import ProgressView
from spatialgears.storage import run_folder
from spatialgears.text import not_a_formula, plain


class Broken:
    """A stream whose other end is gone."""

    def __init__(self, code: int) -> None:
        self.code = code

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        raise OSError(self.code, os.strerror(self.code))

    flush = write


@pytest.mark.parametrize("stream", [None, Broken(errno.EPIPE), Broken(errno.ENOSPC), open(os.devnull)])  # noqa: SIM115
def test_progress_that_cannot_be_shown_is_lost_and_the_work_continues(stream, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressView(every=0) as view:
        view("training", 1, 2, {"loss": 1.0})
        view.tell("words")


def gears(*arguments: object, **options) -> subprocess.CompletedProcess:
    """The command, with its own standard streams."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "spatialgears", *map(str, arguments)],
        check=False,
        text=True,
        **options,
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_standard_output_is_told_of():
    with open("/dev/full", "w") as full:
        done = gears("--version", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: Standard output could not be written: No space left on device.")
    assert "unexpected" not in done.stderr and len(done.stderr.splitlines()) == 1


def test_closed_streams_are_not_taken_by_files(tmp_path):
    """Else the first file to be opened would get what libraries write to standard error."""

    def close() -> None:
        for number in (0, 1, 2):
            os.close(number)

    done = gears("simulate", "-o", tmp_path / "out", "--cells", 100, "--genes", 60, preexec_fn=close)
    assert done.returncode == 0
    assert read(tmp_path / "out" / "sc.h5ad").n_obs > 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "st_1.h5ad",
        "st_2.h5ad",
        "sc.h5ad",
        "truth.h5ad",
    }


@pytest.mark.slow
@pytest.mark.parametrize("how", ["closed", "broken", "full"])
def test_a_run_ends_well_whatever_becomes_of_standard_error(how, small_files, least_run, tmp_path):
    arguments = [
        "run",
        "--st",
        small_files / "st_1.h5ad",
        "--sc",
        small_files / "sc.h5ad",
        "-o",
        tmp_path / "out",
        *least_run,
    ]
    if how == "closed":
        done = gears(*arguments, preexec_fn=lambda: os.close(2), stdout=subprocess.PIPE)
    elif how == "full":
        with open("/dev/full", "w") as full:
            done = gears(*arguments, stderr=full, stdout=subprocess.PIPE)
    else:
        left, right = os.pipe()
        os.close(left)
        with closing(os.fdopen(right, "w")) as nobody:
            done = gears(*arguments, stderr=nobody, stdout=subprocess.PIPE)
    assert done.returncode == 0 and "Results" in done.stdout
    assert (tmp_path / "out" / "report.html").exists()


def write_little(size: int, source: str, target: str, told) -> None:
    """In a process of its own: write an .h5ad where no file may be larger; tells how it ended."""
    adata = read(source)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        write_h5ad(adata, target)
        told.put("done")
    except RunError as error:
        told.put(str(error))


@pytest.mark.parametrize("size", [5000, 40_000])
def test_a_full_disk_does_not_end_the_process(size, processes, small_files, tmp_path, record_property):
    """HDF5 crashes if it is told of it."""
    told = processes.SimpleQueue()
    arguments = (size, str(small_files / "sc.h5ad"), str(tmp_path / "x.h5ad"), told)
    child = processes.Process(target=write_little, args=arguments)
    child.start()
    child.join()
    assert child.exitcode == 0
    assert "x.h5ad could not be written: File too large. Free some space" in told.get()
    assert not list(tmp_path.iterdir())
    record_property("faults injected", 1)


@pytest.mark.slow
def test_a_disk_of_any_size_that_is_too_small(tmp_path, record_property):
    disk = tmp_path / "disk"
    disk.mkdir()
    for size in range(8, 400, 28):
        if subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", disk], check=False
        ).returncode:
            pytest.skip("file systems cannot be mounted here")
        try:
            done = gears("simulate", "-o", disk / "out", "--cells", 200, "--genes", 60, capture_output=True)
            assert done.returncode in (0, 1), (size, done.returncode)
            assert done.returncode == 0 or (
                "No space left on device" in done.stderr and len(done.stderr.splitlines()) == 1
            ), done.stderr
            assert done.returncode == 0 or not list((disk / "out").iterdir())
        finally:
            subprocess.run(["umount", disk], check=True)
        record_property("faults injected", 1)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_warned_of(code, monkeypatch, tmp_path, caplog):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(run_folder.fcntl, "flock", refuse)
    with run_folder.locked(tmp_path):
        assert "no file locks here: do not start a second run" in caplog.text


def test_a_folder_at_work_is_refused(tmp_path):
    with (
        run_folder.locked(tmp_path),
        pytest.raises(RunError, match="Another run is at work"),
        run_folder.locked(tmp_path),
    ):
        pass


def test_a_path_that_is_not_utf8_gets_its_report(small_model, small_result, small_tissue, tmp_path):
    from spatialgears.report import write_report

    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    command = f"gears run --sc {folder / 'sc.h5ad'}"
    write_report(folder / "report.html", small_model, small_result, cells=small_tissue.cells, command=command)
    assert "\\udcff" in (folder / "report.html").read_text()


def test_control_characters_are_written_out(caplog, tmp_path, capsys, monkeypatch):
    hostile = "\x1b[2J\x07name\u202e\r"
    assert plain(f"a\tb\n{hostile}") == "a\tb\n\\x1b[2J\\x07name\\u202e\\r"
    for error in (GearsError(hostile), RunError(hostile), InputError(hostile, hostile)):
        assert "\x1b" not in str(error) and "\\x1b[2J" in str(error)
    with run_folder.logged(tmp_path / "run.log"):
        logging.getLogger("spatialgears.x").warning("%s", hostile)
    assert (
        "\x1b" not in (tmp_path / "run.log").read_text() and "\\x1b[2J" in (tmp_path / "run.log").read_text()
    )
    ProgressView().tell(hostile)
    assert "\\x1b[2J" in capsys.readouterr().err
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    with pytest.raises(SystemExit):
        main(["--version"])
    assert "\\x1b[2J" in warnings.formatwarning(hostile, UserWarning, "file.py", 1)


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1"])
def test_a_name_in_a_table_is_no_formula(name, small_model, small_tissue, tmp_path):
    import csv

    assert not_a_formula(name) == f"'{name}" and not_a_formula("AAAC-1") == "AAAC-1"
    assert not_a_formula("\r=1") == "\\r=1"
    cells = small_tissue.cells[:40].copy()
    cells.obs_names = [name, *cells.obs_names[1:]]
    small_model.reconstruct(cells).write(cells, tmp_path / "places.csv")
    with (tmp_path / "places.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[1][0] == f"'{name}" and rows[2][0] == cells.obs_names[1]
    assert np.isfinite([float(value) for value in rows[1][1:5]]).all()
