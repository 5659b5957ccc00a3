"""Machines that lack what was asked for are told so, not crashed on."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import pytest

from spatialgears.config import Config
from spatialgears.errors import ConfigError
from spatialgears.runtime import training
from spatialgears.storage import run_folder


def test_bfloat16_is_refused_where_its_trial_dies(monkeypatch):
    monkeypatch.setattr(
        subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=-4)
    )  # illegal instruction
    training.bf16_works.cache_clear()
    with pytest.raises(
        ConfigError, match=r"bf16-mixed does not work on this CPU.*\n.*What to do: Use 32-true"
    ):
        training.make_fabric(Config(precision="bf16-mixed"))
    training.bf16_works.cache_clear()


def test_bfloat16_is_used_where_its_trial_works(monkeypatch):
    monkeypatch.setattr(training, "bf16_works", lambda: True)
    assert training.make_fabric(Config(precision="bf16-mixed")).device.type == "cpu"


def test_the_trial_of_bfloat16_does_not_take_us_with_it(monkeypatch):
    training.bf16_works.cache_clear()
    monkeypatch.setattr(training, "_BF16", "import os; os.abort()")
    assert not training.bf16_works()
    training.bf16_works.cache_clear()
    monkeypatch.setattr(training, "_BF16", "")
    assert training.bf16_works()
    training.bf16_works.cache_clear()


def test_half_precision_needs_a_gpu():
    with pytest.raises(ConfigError, match="16-mixed needs a GPU"):
        training.make_fabric(Config(precision="16-mixed"))


def test_a_gpu_that_is_not_there(monkeypatch):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ConfigError, match=r"accelerator = cuda with devices = 1 cannot be used here"):
        training.make_fabric(Config(accelerator="cuda"))


def test_a_system_without_file_locks_is_warned_of(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(run_folder, "fcntl", None)
    with run_folder.locked(tmp_path / "out"):
        assert "no file locks here: do not start a second run" in caplog.text
