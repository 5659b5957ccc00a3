"""Disks that are full, folders that may not be written to, files that vanish."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import tempfile
from types import SimpleNamespace

import pytest

from spatialgears.errors import InputError, RunError
from spatialgears.run import RunInputs, run


def limited(start, size, told, *arguments) -> None:
    """In a process of its own: a run in which no file may grow beyond ``size`` bytes; tells how it ended."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        start(*arguments)
        told.put("done")
    except RunError as error:
        told.put(str(error))


def check_limit(size, processes, tools, small_files, fault_config, whole_run, out) -> str:
    """A run with too little room is told of it, leaves nothing half-written, and goes on when there is room."""
    start, contents, leftovers = tools
    told = processes.SimpleQueue()
    where = processes.Value("i", 0, lock=False)
    arguments = (str(small_files), str(out), fault_config.to_json(), where)
    child = processes.Process(target=limited, args=(start, size, told, *arguments))
    child.start()
    child.join()
    assert child.exitcode == 0
    words = told.get()
    assert "could not be written: File too large. Free some space there" in words, words
    assert leftovers(out) == []
    start(*arguments[:3], SimpleNamespace(value=0))
    assert contents(out) == contents(whole_run)
    return words.split(" could")[0].rsplit("/", 1)[1]


@pytest.mark.parametrize(("size", "name"), [(40_000, "safetensors"), (2_600_000, "report.html")])
def test_a_full_disk(
    size, name, processes, tools, small_files, fault_config, whole_run, tmp_path, record_property
):
    found = check_limit(size, processes, tools, small_files, fault_config, whole_run, tmp_path / "out")
    assert found.endswith(name)
    record_property("faults injected", 1)


@pytest.mark.slow
def test_a_full_disk_at_every_file(
    processes, tools, small_files, fault_config, whole_run, tmp_path, record_property
):
    named = set()
    for size in (100, 1000, 10_000, 60_000, 80_000, 100_000, 140_000, 200_000, 2_600_000):
        named.add(
            check_limit(size, processes, tools, small_files, fault_config, whole_run, tmp_path / str(size))
        )
        record_property("faults injected", 1)
    assert {"run.json", "report.html"} <= named and any(name.endswith("safetensors") for name in named)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 300 kB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", place], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("file systems cannot be mounted here")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.slow
def test_a_disk_that_fills_up_and_one_that_may_not_be_written_to(
    small_disk, tools, small_files, fault_config, whole_run, record_property
):
    arguments = (str(small_files), str(small_disk / "out"), fault_config.to_json(), SimpleNamespace(value=0))
    with pytest.raises(RunError, match=r"could not be written: No space left on device. Free some space"):
        tools[0](*arguments)
    assert tools[2](small_disk) == []
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(InputError, match=r"Cannot write to .*Read-only file system"):
        tools[0](*arguments)
    subprocess.run(["mount", "-o", "remount,rw,size=60m", small_disk], check=True)
    tools[0](*arguments)
    assert tools[1](small_disk / "out") == tools[1](whole_run)
    record_property("faults injected", 2)


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EDQUOT])
def test_a_folder_that_may_not_be_written_to(code, small_model, tmp_path, monkeypatch, record_property):
    def refuse(**_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    with pytest.raises(RunError, match=rf"meta.json could not be written: {os.strerror(code)}"):
        small_model.save(tmp_path / "model")
    assert not any((tmp_path / "model").iterdir())
    record_property("faults injected", 1)


def test_an_input_that_vanishes_is_named(small_files, fault_config, tmp_path, record_property):
    from spatialgears.io import read

    for name in ("st_1.h5ad", "sc.h5ad"):
        shutil.copy(small_files / name, tmp_path / name)
    st, sc = str(tmp_path / "st_1.h5ad"), str(tmp_path / "sc.h5ad")

    def read_and_lose():
        slides, cells = [read(st)], read(sc)
        os.unlink(sc)
        return slides, cells

    with pytest.raises(InputError, match=r"sc.h5ad could not be read: No such file"):
        run(RunInputs([st], sc, read_and_lose), tmp_path / "out", fault_config)
    assert not (tmp_path / "out" / "run.json").exists()
    record_property("faults injected", 1)


def test_checkpoints_that_vanish_while_the_run_goes_on(
    small_files, fault_config, tools, whole_run, tmp_path, record_property
):
    class Where:
        value = property(lambda self: 0)

        @value.setter
        def value(self, stage):
            shutil.rmtree(tmp_path / "out" / "checkpoints", ignore_errors=True)

    tools[0](str(small_files), str(tmp_path / "out"), fault_config.to_json(), Where())
    assert tools[1](tmp_path / "out") == tools[1](whole_run)
    record_property("faults injected", 1)
