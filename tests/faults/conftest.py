"""Runs that can be killed, limited and compared; and the counts that `make test-slow` prints."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

#: What must be equal, byte by byte, whatever happened on the way.
RESULTS = (
    "cells.h5ad",
    "places.csv",
    "model/config.json",
    "model/genes.txt",
    "model/weights.safetensors",
    "model/meta.json",
)


def start_run(files: str, out: str, config: str, where, *, steps_apart: float = 0.0) -> None:
    """Do the run, telling in ``where`` which stage it is in (none: 0, done: -1)."""
    from spatialgears.config import Config
    from spatialgears.io import read
    from spatialgears.run import RunInputs, run

    st, sc = [f"{files}/st_1.h5ad", f"{files}/st_2.h5ad"], f"{files}/sc.h5ad"
    stages: list[str] = []

    def progress(stage, step, total, values):
        if stage not in stages:
            stages.append(stage)
        where.value = len(stages)
        time.sleep(steps_apart)

    inputs = RunInputs(st, sc, lambda: ([read(path) for path in st], read(sc)))
    run(inputs, out, Config.from_dict(json.loads(config)), progress=progress)
    where.value = -1


@pytest.fixture(scope="session")
def processes():
    """A server that has imported everything once and forks a fresh process for every run."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["spatialgears.model", "spatialgears.run", "spatialgears.io", "scanpy"])
    return context


@pytest.fixture(scope="session")
def fault_config(small_config):
    """Every stage there is, the encoder's too, in a second or two."""
    return small_config.with_values(
        {
            "geometry": {
                "steps": 6,
                "slide_steps": 3,
                "refiner_steps": 3,
                "eval_every": 2,
                "crossfit": 1,
            },
            "expression": {"max_steps": 6, "epochs": 3, "batch_size": 64, "embed_dim": 8},
        }
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in RESULTS}


def leftovers(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob(".*") if path.name != ".lock"]


@pytest.fixture(scope="session")
def whole_run(small_files, fault_config, tmp_path_factory) -> Path:
    """A run that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole") / "out"
    start_run(str(small_files), str(out), fault_config.to_json(), SimpleNamespace(value=0))
    return out


@pytest.fixture(scope="session")
def tools():
    """``start_run``, ``contents`` and ``leftovers``, for the tests of this folder."""
    return start_run, contents, leftovers


@pytest.fixture
def rng(request) -> np.random.Generator:
    """Random moments and positions, the same in every session."""
    return np.random.default_rng(list(request.node.name.encode()))


def pytest_terminal_summary(terminalreporter):
    """Sum up what the tests of faults and of bad input counted."""
    counts: Counter[str] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            for name, value in report.user_properties:
                counts[name] += value if isinstance(value, int) else 0
    if counts:
        terminalreporter.section("faults and bad input")
        for name, value in sorted(counts.items()):
            terminalreporter.write_line(f"{name}: {value:,}")
        lost = len(terminalreporter.stats.get("failed", []))
        terminalreporter.write_line("nothing lost" if not lost else f"{lost} tests failed")


@pytest.fixture(scope="session")
def least_run(fault_config, tmp_path_factory) -> list[str]:
    """Options of the smallest run."""
    path = tmp_path_factory.mktemp("config") / "config.json"
    path.write_text(fault_config.to_json())
    return ["--config", str(path)]
