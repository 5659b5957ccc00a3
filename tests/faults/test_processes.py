"""Several processes do what one does, and when one of them is killed the run says so and goes on later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from spatialgears.cli import launch
from spatialgears.config import Config
from spatialgears.errors import ConfigError
from spatialgears.runtime import processes


def gears(*arguments, **options) -> subprocess.Popen:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    return subprocess.Popen(
        [sys.executable, "-m", "spatialgears", *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


def ended(process: subprocess.Popen) -> str:
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0, text
    return text


@pytest.fixture(scope="module")
def runs(small_files, fault_config, tmp_path_factory):
    """``runs(folder, *more)``: the command of a run there."""
    folder = tmp_path_factory.mktemp("processes")
    config = folder / "config.json"
    config.write_text(fault_config.to_json())
    inputs = [
        "--st",
        small_files / "st_1.h5ad",
        "--st",
        small_files / "st_2.h5ad",
        "--sc",
        small_files / "sc.h5ad",
    ]
    return lambda name, *more: gears("run", *inputs, "--config", config, "-o", folder / name, *more), folder


def test_a_killed_process_ends_the_run_which_then_goes_on(runs, tools):
    start, folder = runs
    _, contents, leftovers = tools
    run = start("killed", "--devices", 2)
    checkpoints = folder / "killed" / "checkpoints"
    until = time.monotonic() + 200
    while not (checkpoints.is_dir() and any(checkpoints.iterdir())):
        assert run.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    second = next(p for p in psutil.Process(run.pid).children() if p.environ()["LOCAL_RANK"] == "1")
    second.send_signal(signal.SIGKILL)
    text, _ = run.communicate(timeout=100)
    assert run.returncode == 1
    assert "run the same command again" in " ".join(text.split())
    assert not (folder / "killed" / "cells.h5ad").exists() and any(checkpoints.iterdir())

    ended(start("killed", "--devices", 2))
    ended(start("whole", "--devices", 2))
    assert leftovers(folder / "killed") == [] and not checkpoints.exists()
    names = ("cells.h5ad", "model/weights.safetensors")
    both = [{name: contents(folder / run)[name] for name in names} for run in ("killed", "whole")]
    assert both[0] == both[1]


def test_two_processes_place_cells_as_one_does_bit_for_bit(small_model, small_files, tmp_path):
    import anndata as ad

    small_model.save(tmp_path / "model")
    placed = []
    for devices in (1, 2):
        out = tmp_path / f"{devices}.h5ad"
        settings = ["assembly.memory_gb=0.002", "assembly.patch_size=32", "assembly.core_cells=100"]
        sets = [part for value in settings for part in ("--set", value)]
        told = ended(gears("reconstruct", "-m", tmp_path / "model", "--sc", small_files / "sc.h5ad", "-o", out, *sets,
                           "--devices", devices))  # fmt: skip
        assert "distributed" not in told
        placed.append(ad.read_h5ad(out))
    one, two = placed
    assert "50 further cells were aligned to a core of 100" in one.uns["gears"]["status"]
    assert np.array_equal(one.obsm["X_gears"], two.obsm["X_gears"])
    assert np.array_equal(one.obs["gears_uncertainty"], two.obs["gears_uncertainty"])


def test_bad_input_is_told_once(small_files, tmp_path):
    run = gears("run", "--st", small_files / "sc.h5ad", "--sc", small_files / "sc.h5ad", "-o", tmp_path / "o",
                "--devices", 2)  # fmt: skip
    text, _ = run.communicate(timeout=200)
    assert run.returncode == 2 and text.count("Error:") == 1 and "spatial" in text, text


def test_other_machines_need_a_launcher(monkeypatch):
    for name in ("LOCAL_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    config = launch.on_devices(Config.preset(), 2, 3)
    assert (config.devices, config.num_nodes) == (2, 3)
    with pytest.raises(ConfigError, match=r"torchrun --nnodes 3 --nproc-per-node 2"):
        launch.launched(config)
    monkeypatch.setenv("SLURM_PROCID", "4")
    monkeypatch.setenv("SLURM_NTASKS", "6")
    assert not launch.launched(config)
    monkeypatch.setenv("SLURM_NTASKS", "4")
    with pytest.raises(ConfigError, match=r"SLURM started 4 tasks, and devices = 2 on num_nodes = 3 are 6"):
        launch.launched(config)
    assert not launch.launched(Config.preset())


def test_one_process_is_the_whole_group():
    values = np.arange(6.0).reshape(2, 3)
    assert processes.rank_and_size() == (0, 1) and processes.is_first()
    assert list(processes.share_of(range(5))) == [0, 1, 2, 3, 4]
    assert processes.summed(values) is values and processes.agreed(3) == 3
    parts = {2: np.ones((1, 3), np.float32), 0: np.zeros((2, 3), np.float32)}
    assert np.array_equal(processes.gathered(parts, 3)[:, 0], [0, 0, 1])
