"""Files that were cut short, or of which a bit was flipped: named, with what to do, and nothing else is lost."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from spatialgears.errors import InputError, RunError
from spatialgears.io import read
from spatialgears.model import GEARS
from spatialgears.storage.model_folder import FILES
from spatialgears.validate import validate_cells

FLIPS = int(os.environ.get("GEARS_FLIPS", "400"))


def damages(size: int, rng: np.random.Generator, flips: int):
    """Lengths to cut to, and bits to flip: the ends, the middle, and anywhere."""
    cuts = sorted({0, 1, size // 3, size // 2, size - 1})
    positions = [0, 8, size // 2, size - 1, *rng.integers(0, size, flips)]
    return [("cut", n, 0) for n in cuts] + [("flip", int(p), int(rng.integers(8))) for p in positions]


def damage(path: Path, whole: bytes, how: tuple[str, int, int]) -> None:
    kind, at, bit = how
    data = bytearray(whole[:at] if kind == "cut" else whole)
    if kind == "flip":
        data[at] ^= 1 << bit
    path.write_bytes(data)


@pytest.fixture(scope="module")
def model_folder(small_model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    small_model.save(folder)
    return folder


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_model_is_refused_by_the_name_of_the_file(model_folder, name, rng, record_property):
    path = model_folder / name
    whole = path.read_bytes()
    for how in damages(len(whole), rng, 8):
        damage(path, whole, how)
        with pytest.raises(
            RunError, match=rf"(?s){name}.*(Fit the model again|Delete it and run again)|Upgrade"
        ):
            GEARS.load(model_folder)
        record_property("faults injected", 1)
    path.write_bytes(whole)
    assert GEARS.load(model_folder).config


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_model_is_refused_wherever_the_damage_is(model_folder, name, rng, record_property):
    path = model_folder / name
    whole = path.read_bytes()
    for how in damages(len(whole), rng, FLIPS):
        damage(path, whole, how)
        with pytest.raises(RunError, match=rf"{name}|Upgrade"):
            GEARS.load(model_folder)
        record_property("faults injected", 1)
    path.write_bytes(whole)


def read_damaged(source: Path, path: Path, rng, flips: int) -> tuple[int, int]:
    """Damage an .h5ad in many places; how often it was refused, and could be read after all."""
    whole, genes = source.read_bytes(), read(source).var_names.to_numpy(dtype=str)
    refused = used = 0
    for how in damages(len(whole), rng, flips):
        damage(path, whole, how)
        for backed in (False, True):
            try:
                counts, _, _ = validate_cells(
                    read(path, backed=backed), genes, np.ones(len(genes)), name=str(path)
                )
            except InputError as error:
                refused += path.name in str(error)
                assert path.name in str(error) and "What to do: " in str(error), (how, str(error))  # noqa: PT017
            else:
                used += 1
                assert np.isfinite(counts.data).all() and how[0] == "flip"
    return refused, used


def test_a_damaged_h5ad_is_read_right_or_refused_by_name(small_files, tmp_path, rng, record_property):
    refused, used = read_damaged(small_files / "sc.h5ad", tmp_path / "spoilt.h5ad", rng, 20)
    record_property("faults injected", refused + used)
    assert refused >= 10


@pytest.mark.slow
def test_a_damaged_h5ad_wherever_the_damage_is(small_files, tmp_path, rng, record_property):
    refused, used = read_damaged(small_files / "sc.h5ad", tmp_path / "spoilt.h5ad", rng, FLIPS)
    record_property("faults injected", refused + used)


class Stop(BaseException):
    """Like a kill: nothing catches it."""


@pytest.fixture(scope="module")
def stopped(small_files, fault_config, tools, tmp_path_factory) -> Path:
    """A run that was stopped while the refiner was trained: it has checkpoints of every phase before."""
    out = tmp_path_factory.mktemp("stopped") / "out"
    seen: set[str] = set()

    class Where:
        value = property(lambda self: 0)

        @value.setter
        def value(self, stage):
            seen.add(stage)
            if stage == 5:
                raise Stop

    with pytest.raises(Stop):
        tools[0](str(small_files), str(out), fault_config.to_json(), Where())
    return out


def go_on(tools, small_files, out, config) -> None:
    tools[0](str(small_files), str(out), config.to_json(), SimpleNamespace(value=0))


def test_a_damaged_checkpoint_is_named_and_the_others_are_used(
    stopped, small_files, fault_config, tools, whole_run, tmp_path, rng, record_property
):
    out = tmp_path / "out"
    shutil.copytree(stopped, out)
    checkpoints = sorted(path.name for path in (out / "checkpoints").iterdir())
    assert {"encoder.safetensors", "fold-0.safetensors"} <= set(checkpoints)
    path = out / "checkpoints" / "fold-0.safetensors"
    whole = path.read_bytes()
    for how in damages(len(whole), rng, 2)[::2]:
        damage(path, whole, how)
        with pytest.raises(RunError, match=r"fold-0.safetensors is damaged.*Delete it and run again"):
            go_on(tools, small_files, out, fault_config)
        record_property("faults injected", 1)
    path.unlink()
    kept = {p.name: p.stat().st_mtime_ns for p in (out / "checkpoints").iterdir()}
    assert "encoder.safetensors" in kept
    go_on(tools, small_files, out, fault_config)
    assert tools[1](out) == tools[1](whole_run)


@pytest.mark.parametrize("name", ["run.json", "cells.h5ad", "places.csv", "report.html"])
def test_a_damaged_file_of_a_run_is_named(
    name, whole_run, small_files, fault_config, tools, tmp_path, rng, record_property
):
    out = tmp_path / "out"
    shutil.copytree(whole_run, out)
    whole = (out / name).read_bytes()
    for how in damages(len(whole), rng, 1)[1::3]:
        damage(out / name, whole, how)
        with pytest.raises(RunError, match=rf"{name} is (damaged|not what the run wrote)"):
            go_on(tools, small_files, out, fault_config)
        record_property("faults injected", 1)
    if name == "run.json":
        (out / name).write_bytes(whole)
    else:
        (out / name).unlink()  # as the error says
    go_on(tools, small_files, out, fault_config)
    assert tools[1](out) == tools[1](whole_run) and (out / "report.html").exists()


def test_a_checkpoint_that_is_something_else_is_named(stopped, small_files, fault_config, tools, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(stopped, out)
    shutil.copy(out / "checkpoints" / "encoder.safetensors", out / "checkpoints" / "fold-0.safetensors")
    with pytest.raises(RunError, match=r"fold-0.safetensors belongs to another .* Delete it"):
        go_on(tools, small_files, out, fault_config)
