"""Run methods on tasks, each run in a process of its own under limits, and keep one row per run.

A method cannot end the benchmark: a crash, an exceeded limit, missing or invalid coordinates become rows with a reason.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from spatialgears.bench import limits as limits_script
from spatialgears.bench.files import TaskFiles
from spatialgears.bench.methods import Method
from spatialgears.bench.protocols import Task
from spatialgears.bench.store import Row, Store
from spatialgears.errors import InputError
from spatialgears.metrics.points import lay_on
from spatialgears.runtime.files import temporary_folder
from spatialgears.runtime.memory import memory_limits

logger = logging.getLogger(__name__)
#: Words in the log of a process that ran out of memory.
MEMORY_WORDS = (
    "MemoryError",
    "Cannot allocate memory",
    "can't allocate memory",
    "bad_alloc",
    "RESOURCE_EXHAUSTED",
)


#: Share of the memory there is from which a process that was killed had run out of it, and signals that others send.
NEARLY_ALL = 0.7
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True)
class Limits:
    """What one run may use."""

    seconds: float = 3600.0
    gigabytes: float = 16.0
    threads: int = 1  # 0: the method chooses


def run(
    tasks: Callable[[int], Iterable[Task]],
    methods: Sequence[Method],
    store: Store,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    limits: Limits,
    retry: bool = False,
    report: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """Run every method on every task with every seed, except the runs that ``store`` already has; all rows, new and old.

    ``tasks`` makes the tasks of a seed; a method without randomness runs once. ``retry`` repeats runs that failed, for
    example with larger limits. ``report`` is called with each new row.
    """
    rows: dict[str, Row] = {}
    for seed in seeds:
        for task in tasks(seed):
            data = task.fingerprint()
            with temporary_folder("gears-bench") as folder:
                files = TaskFiles(task, folder)
                for method in methods:
                    used = seed if method.seeded or task.seeded else 0
                    key = store.key(data, task.name, method.identity(), used)
                    row = store.load(key)
                    if row is None or not method.gave(row) or (retry and row["status"] != "ok"):
                        row, arrays = run_one(task, method, files, seed=used, limits=limits)
                        row["key"] = key
                        if (
                            row["status"] != "killed"
                        ):  # that says nothing about the method: the next call runs it again
                            store.save(row, arrays)
                        report(row)
                    rows[key] = row
                    for other in _other_layouts(task, row, store):
                        rows[other["key"]] = other
    return list(rows.values())


def run_one(
    task: Task, method: Method, files: TaskFiles, *, seed: int, limits: Limits
) -> tuple[Row, dict[str, np.ndarray]]:
    """One run: the row, without a key, and the arrays that the method wrote."""
    row: Row = {
        "protocol": task.protocol,
        "task": task.name,
        "setting": dict(task.setting),
        "method": method.name,
        "kind": method.kind,
        "note": method.note,
        "options": dict(method.options),
        "seed": seed,
        "sees_truth": method.sees_truth,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "threads": limits.threads,
        "cpus": os.cpu_count(),
        "n_cells": task.cells.n_obs,
        "n_spots": sum(slide.n_obs for slide in task.slides),
        "n_genes": task.cells.n_vars,
        "status": "ok",
        "reason": "",
        "metrics": {},
        "seconds": None,
        "peak_gb": None,
        "info": {},
    }
    out = files.folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    try:
        command = method.command(files, seed=seed, out=out)
    except InputError as error:
        return row | {"status": "unavailable", "reason": error.problem}, {}
    usage = launch(command, files.folder, limits)
    row |= {"seconds": round(usage["seconds"], 2), "peak_gb": round(usage["peak_gb"], 3)}
    if (out / "info.json").exists():
        row["info"] = json.loads((out / "info.json").read_text())
    status, reason, arrays = judge(usage, out, task, files.folder / "log.txt")
    row |= {"status": status, "reason": reason}
    if status == "ok":
        try:
            row["metrics"] = _score(task, arrays)
        except Exception as error:  # a layout that a metric refuses is a result, too
            row |= {"status": "invalid", "reason": f"could not be scored: {error}"}
    return row, arrays


def launch(command: list[str], folder: Path, limits: Limits) -> dict[str, Any]:
    """Run the command through :mod:`~spatialgears.bench.limits`; what it used."""
    spec = {
        "command": command,
        "seconds": limits.seconds,
        "gigabytes": limits.gigabytes,
        "log": str(folder / "log.txt"),
        "usage": str(folder / "usage.json"),
    }
    (folder / "usage.json").unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-I", "-S", limits_script.__file__, json.dumps(spec)],
        check=False,
        cwd=folder,
        env=_environment(limits.threads) | {"TMPDIR": str(folder)},  # what methods leave goes with the folder
    )
    try:
        return json.loads((folder / "usage.json").read_text())
    except (FileNotFoundError, ValueError):  # the process that watches was ended itself
        (folder / "log.txt").touch()
        return {"code": done.returncode or -signal.SIGKILL, "timeout": False, "seconds": 0.0, "peak_gb": 0.0}


def _environment(threads: int) -> dict[str, str]:
    names = ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "NUMBA", "VECLIB_MAXIMUM")
    count = {
        f"{name}_NUM_THREADS" if "MAX" not in name else f"{name}_THREADS": str(threads)
        for name in names
        if threads
    }
    if threads == 1:  # jax has a pool of its own
        count["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    return {**os.environ, **count, "MPLBACKEND": "Agg", "PYTHONHASHSEED": "0", "PYTHONWARNINGS": "ignore"}


def judge(usage: dict[str, Any], out: Path, task: Task, log: Path) -> tuple[str, str, dict[str, np.ndarray]]:
    """Status, reason and arrays of a finished process."""
    text = log.read_text(errors="replace")
    if usage["timeout"]:
        return "timeout", f"did not finish in {usage['seconds']:.0f} s", {}
    if usage["code"]:
        full = usage["peak_gb"] * 1e9 > NEARLY_ALL * min(memory_limits().values())
        if (full and usage["code"] == -signal.SIGKILL) or any(word in text[-4000:] for word in MEMORY_WORDS):
            return "memory", f"ran out of memory at {usage['peak_gb']:.1f} GB", {}
        if -usage["code"] in FROM_OUTSIDE:
            return "killed", f"was ended from outside ({signal.Signals(-usage['code']).name})", {}
        said = [line.strip() for line in text.splitlines() if line.strip()] or [f"exit code {usage['code']}"]
        errors = [i for i, line in enumerate(said) if re.match(r"[\w.]+(Error|Exception|Exit)\b", line)]
        return "failed", " ".join(said[errors[-1] if errors else -1 :])[:300], {}
    if not (out / "coords.npy").exists():
        return "invalid", "wrote no coordinates", {}
    try:
        arrays = {path.stem: np.load(path) for path in sorted(out.glob("*.npy"))}
    except ValueError as error:
        return "invalid", f"wrote an array that cannot be read: {error}", {}
    coords, expected = arrays["coords"], (task.cells.n_obs, 2)
    if coords.shape != expected:
        return "invalid", f"coordinates have shape {coords.shape}, expected {expected}", {}
    if not np.issubdtype(coords.dtype, np.number) or not np.isfinite(coords).all():
        return "invalid", "coordinates are not all finite numbers", {}
    return "ok", "", arrays


def _score(task: Task, arrays: dict[str, np.ndarray]) -> dict[str, float]:
    scores = task.score(np.asarray(arrays["coords"], dtype=np.float64))
    if task.truth is not None and "radius90" in arrays and np.isfinite(arrays["radius90"]).all():
        error = placement_error(arrays["coords"], task.truth)
        for level in ("50", "90"):
            scores[f"cover{level}"] = float(np.mean(error <= arrays[f"radius{level}"]))
        least_sure = arrays["radius90"].argsort()[-max(1, len(error) // 10) :]
        scores["least_sure"] = float(error[least_sure].mean() / error.mean())
    if task.truth is not None and task.truth_on_slide and "region" in arrays:
        centre, half = arrays["region"][:, :2], arrays["region"][:, 2:]  # of an ellipse with a nominal 95%
        scores["cover95"] = float(np.mean((((task.truth - centre) / half) ** 2).sum(1) <= 1))
    return {name: float(value) for name, value in scores.items() if np.isfinite(value)}


def placement_error(coords: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Distance (n,) of each cell from its true position after the best rigid motion, in RMS radii of the truth.

    Predicted coordinates and radii are in units of a slide's RMS radius, so they are not scaled.
    """
    a, b = (np.asarray(x, dtype=np.float64) - np.mean(x, axis=0) for x in (coords, truth))
    b = b / np.sqrt((b**2).sum(1).mean())
    return np.linalg.norm(a @ lay_on(a, b) - b, axis=1)


def _other_layouts(task: Task, row: Row, store: Store) -> list[Row]:
    """Rows of other layouts that a run wrote beside ``coords``, such as one sample of the refiner."""
    if row["status"] != "ok":
        return []
    others = []
    for name, array in store.arrays(row["key"]).items():
        if name == "coords" or array.shape != (task.cells.n_obs, 2):
            continue
        key = store.key(row["key"], name)
        other = store.load(key)
        if other is None or other["started"] != row["started"]:  # of an earlier run
            other = row | {
                "key": key,
                "method": f"{row['method']}: {name}",
                "metrics": _score(task, {"coords": array}),
            }
            store.save(other, {"coords": array})
        others.append(other)
    return others
