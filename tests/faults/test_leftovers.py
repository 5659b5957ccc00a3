"""Commands that are killed while they write leave nothing that is in the way of the next one, nor in the folder after it."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from spatialgears.errors import InputError
from spatialgears.runtime import files
from spatialgears.storage.model_folder import FILES, require_free


def die_at(event: int, told: str, arguments: list[str]) -> None:
    """In a process of its own: a command that is killed when it makes or renames its n-th file."""
    seen = 0

    def counted(function):
        def call(*given, **options):
            nonlocal seen
            if seen == event:
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1
            return function(*given, **options)

        return call

    tempfile.mkstemp = counted(tempfile.mkstemp)
    Path.replace = counted(Path.replace)
    sys.stdout = sys.stderr = open(told, "w")  # noqa: SIM115 - the process ends with it
    from spatialgears.cli.app import main

    main(arguments)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def same(left: dict[str, bytes], right: dict[str, bytes]) -> bool:
    """Whether two folders hold the same; a report tells when it was written."""
    return left.keys() == right.keys() and all(
        left[name] == right[name] for name in left if not name.endswith((".html", "meta.json"))
    )


@pytest.fixture
def survives(processes, tmp_path):
    """Kill a command at its disk events, give it again, and compare; how often it was killed.

    ``command(folder)`` is its arguments; it has as many events as it has.
    """

    def kill(command, events) -> int:
        def run(event: int, folder: Path) -> int:
            told = tmp_path / "told"
            child = processes.Process(target=die_at, args=(event, str(told), command(folder)))
            child.start()
            child.join()
            return child.exitcode

        assert run(-1, tmp_path / "whole") == 0, (tmp_path / "told").read_text()
        whole, kills = contents(tmp_path / "whole"), 0
        for event in events:
            folder = tmp_path / str(event)
            code = run(event, folder)
            if code == 0:
                break
            assert code == -signal.SIGKILL
            kills += 1
            assert run(-1, folder) == 0, (event, (tmp_path / "told").read_text())
            assert same(contents(folder), whole), event
        return kills

    return kill


@pytest.fixture(scope="module")
def saved_model(small_model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    small_model.save(folder)
    return folder


def simulate(folder: Path) -> list[str]:
    return ["simulate", "-o", str(folder), "--cells", "200", "--genes", "60", "--sections", "1"]


@pytest.mark.parametrize("events", [[1, 4], pytest.param(range(100), marks=pytest.mark.slow)])
def test_a_killed_simulation_is_done_again(events, survives, record_property):
    record_property("kills survived", survives(simulate, events))


@pytest.mark.parametrize("events", [[1], pytest.param(range(100), marks=pytest.mark.slow)])
def test_a_killed_placing_leaves_nothing(events, survives, saved_model, small_files, record_property):
    def reconstruct(folder: Path) -> list[str]:
        folder.mkdir(exist_ok=True)
        return [
            "reconstruct",
            "-m",
            str(saved_model),
            "--sc",
            str(small_files / "sc.h5ad"),
            "-o",
            str(folder / "p.h5ad"),
        ]

    record_property("kills survived", survives(reconstruct, events))


@pytest.mark.slow
def test_a_killed_report_leaves_nothing(survives, saved_model, small_files, record_property):
    def report(folder: Path) -> list[str]:
        folder.mkdir(exist_ok=True)
        return [
            "report",
            "-m",
            str(saved_model),
            "--sc",
            str(small_files / "sc.h5ad"),
            "-o",
            str(folder / "r.html"),
        ]

    record_property("kills survived", survives(report, range(100)))


@pytest.mark.slow
def test_a_killed_fit_does_not_lock_its_folder(survives, small_files, least_run, record_property):
    def fit(folder: Path) -> list[str]:
        inputs = ["--st", str(small_files / "st_1.h5ad"), "--sc", str(small_files / "sc.h5ad")]
        return ["fit", *inputs, "-m", str(folder), *least_run]

    record_property("kills survived", survives(fit, range(100)))


def left_by(process: int, path: Path) -> Path:
    """A temporary file of another process."""
    left = path.with_name(f".{path.name}.{process}.abcd1234{path.suffix}")
    left.write_text("half")
    return left


@pytest.mark.parametrize("done", range(4))
def test_an_unfinished_model_is_no_stranger(done, tmp_path):
    for name in FILES[:done]:
        (tmp_path / name).write_text("whole")
    for name in FILES[done:]:
        left_by(2**22 - 1, tmp_path / name)
    require_free(tmp_path)
    assert not list(tmp_path.iterdir())


def test_files_of_others_are_not_taken_for_an_unfinished_model(tmp_path):
    (tmp_path / "config.json").write_text("mine")
    with pytest.raises(InputError, match="exists and is not empty"):
        require_free(tmp_path)
    assert (tmp_path / "config.json").read_text() == "mine"


def test_what_another_process_is_writing_stays(tmp_path):
    mine, gone, older = (left_by(n, tmp_path / "x.csv") for n in (os.getppid(), 2**22 - 1, 2**22 - 2))
    older.rename(tmp_path / ".x.csv.abcd1234.csv")
    files.write_atomic(tmp_path / "x.csv", "1")
    assert sorted(tmp_path.iterdir()) == sorted([mine, tmp_path / "x.csv"]) and not gone.exists()


def test_two_writers_in_one_process_do_not_meet(tmp_path):
    with files.atomic_path(tmp_path / "x") as first:
        first.write_text("1")
        files.write_atomic(tmp_path / "x", "2")
        assert first.exists()
    assert (tmp_path / "x").read_text() == "1"
