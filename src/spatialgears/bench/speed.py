"""Time and memory: beside an earlier version, of two runs side by side, and beside what ``gears check`` expects.

Versions run in turn on this machine and on the same files. Each run is a process of its own with a stated number
of threads.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import spatialgears
from spatialgears.bench import scaling, sets, timed
from spatialgears.bench.files import TaskFiles
from spatialgears.bench.harness import run_one
from spatialgears.bench.methods import Method
from spatialgears.bench.presets import configured
from spatialgears.bench.protocols import Task
from spatialgears.bench.request import Outcome, Request, Tell
from spatialgears.bench.store import Row, Store
from spatialgears.bench.tables import mean_and_spread, plain_table
from spatialgears.check import check_inputs
from spatialgears.errors import InputError
from spatialgears.runtime.files import temporary_folder

BEFORE, NOW = "before", "now"
#: Each set with its preset. The demo is simulated, the others are data files.
DEMO = {"demo": ("quick", sets.demo)}
PUBLIC = {
    "Mouse Atlas": ("default", sets.MOUSE_ATLAS),
    "her2st E1 + E2 → E3": ("default", sets.HER2ST["E"]),
    "DLPFC 151673 + 151674 → 151675": ("default", sets.DLPFC),
}
MANY = {"100,000 cells": ("default", lambda root, seed: iter([scaling.task_of(100_000)]))}
#: What is timed, as the run records it.
SECONDS: dict[str, Callable[[Row], float]] = {
    "fit": lambda row: row["info"]["fit_seconds"],
    "place": lambda row: row["info"]["place_seconds"],
    "both": lambda row: row["info"]["fit_seconds"] + row["info"]["place_seconds"],
}


@dataclass(frozen=True)
class Version:
    """A version of the code: its name in tables, and the folder that holds the package."""

    name: str
    source: Path

    def digest(self) -> str:
        """A digest of all its source files."""
        digest = hashlib.sha256()
        for path in sorted((self.source / "spatialgears").rglob("*.py")):
            digest.update(str(path.relative_to(self.source)).encode() + path.read_bytes())
        return digest.hexdigest()[:16]


def present() -> Version:
    """The code that is running."""
    return Version(NOW, Path(spatialgears.__file__).resolve().parents[1])


def earlier(against: str, folder: Path) -> Version:
    """What ``--against`` names: a source tree, or a git ref, whose source is extracted to ``folder``."""
    tree = Path(against).expanduser()
    if not tree.exists():
        command = ["git", "-C", str(present().source), "archive", "--format=tar", against, "."]
        done = subprocess.run(command, capture_output=True)
        if done.returncode:
            raise InputError(
                f"--against {against} is neither a folder nor a git ref.",
                "Give the root of a source tree, or a ref of the repository that gears runs from.",
            )
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(folder, filter="data")
        tree = folder
    for source in (tree / "src", tree):
        if (source / "spatialgears" / "__init__.py").is_file():
            return Version(BEFORE, source.resolve())
    raise InputError(f"{against} has no folder src/spatialgears.", "Give the root of a source tree.")


@dataclass(frozen=True)
class Timed(Method):
    """Fit and place by one version of the code."""

    version: Version = field(kw_only=True)

    def identity(self) -> list[Any]:
        """The code, the preset and the changes."""
        return ["timed", self.version.digest(), dict(self.options)]

    def command(self, files: TaskFiles, *, seed: int, out: Path) -> list[str]:
        """:mod:`~spatialgears.bench.timed` with the version's source on the path."""
        job = {**self.options, "source": str(self.version.source), "seed": seed, "out": str(out)}
        job |= {"slides": [str(path) for path in files.slides], "cells": str(files.cells)}
        python = ["env", f"PYTHONPATH={self.version.source}", sys.executable, "-P"]
        return [*python, timed.__file__, files.write_job(job)]


def speed(request: Request, tell: Tell) -> Outcome:
    """Both versions in turn on each set: seconds, Spearman and peak memory."""
    if request.against is None:
        raise InputError("speed needs --against.", "Name an earlier source tree or a git ref.")
    with temporary_folder("gears-bench") as name:
        versions = [earlier(request.against, Path(name)), present()]
        by_task = {
            task.name: [
                row
                for pair in range(request.pairs)
                for row in _pair(task, preset, versions, pair, request, tell)
            ]
            for task, preset in _tasks(request)
        }
    found = [compared(rows) for rows in by_task.values()]
    text = f"### speed: {_conditions(request)}\n\n{plain_table(found)}\n"
    return Outcome(text, {"table": found, "rows": [row for rows in by_task.values() for row in rows]})


def throughput(request: Request, tell: Tell) -> Outcome:
    """Two runs side by side against two runs one after the other, for each version."""
    with temporary_folder("gears-bench") as name:
        before = [earlier(request.against, Path(name))] if request.against else []
        found = [
            _side_by_side(task, preset, version, pair, request, tell)
            for task, preset in _tasks(request)
            for pair in range(request.pairs)
            for version in [*before, present()]
        ]
    text = f"### throughput: two runs, {_conditions(request)}\n\n{plain_table(found)}\n"
    return Outcome(text, found)


def estimates(request: Request, tell: Tell) -> Outcome:
    """What ``gears check`` expects of a run, and what it takes, from files to coordinates."""
    found, version = [], present()
    for task, preset in _tasks(request, {**DEMO, **MANY}):
        method = _method(version, preset, request)
        expected = check_inputs(list(task.slides), task.cells, config=request.config(preset)).cost
        row = _run(task, method, 0, request)
        tell(_line(row))
        found.append(
            {
                "task": task.name,
                "preset": preset,
                "expected s": expected.seconds,
                "seconds": row["seconds"],
                "expected / seconds": expected.seconds / row["seconds"],
                "expected GB": expected.peak_bytes / 1e9,
                "peak GB": row["peak_gb"],
                "note": row["reason"],
            }
        )
    return Outcome(f"### estimates: {_conditions(request)}\n\n{plain_table(found)}\n", found)


def compared(rows: Sequence[Row]) -> dict[str, Any]:
    """One line of the table: the rows of both versions on one set.

    Times are means over pairs. Ratios are medians over pairs, so that one disturbed run does not decide.
    """
    done = {
        name: [row for row in rows if row["method"] == name and row["status"] == "ok"]
        for name in (BEFORE, NOW)
    }
    line: dict[str, Any] = {
        "task": rows[0]["task"],
        "preset": rows[0]["options"]["preset"],
        "pairs": len(rows) // 2,
    }
    for part, seconds in SECONDS.items():
        times = {name: {row["seed"]: seconds(row) for row in group} for name, group in done.items()}
        ratios = [times[BEFORE][pair] / times[NOW][pair] for pair in times[BEFORE].keys() & times[NOW].keys()]
        if part != "both":
            line |= {f"{part} s, {name}": _of(np.mean, list(each.values())) for name, each in times.items()}
        line[f"{part}, times as fast"] = _of(np.median, ratios)
    for name, group in done.items():
        line[f"Spearman, {name}"] = mean_and_spread([row["metrics"]["spearman"] for row in group])
    for name, group in done.items():
        line[f"peak GB, {name}"] = _of(np.max, [row["peak_gb"] for row in group])
    failed = [f"{row['method']} {row['status']}: {row['reason']}" for row in rows if row["status"] != "ok"]
    return line | {"note": "; ".join(dict.fromkeys(failed))}


def _tasks(request: Request, simulated: Mapping[str, Any] | None = None) -> Iterator[tuple[Task, str]]:
    """The sets that were asked for, each with its preset: the simulated, and the public sets if there is data."""
    known = {**(simulated or DEMO), **(PUBLIC if request.data else {})}
    chosen = [name for name in known if not request.task or any(text in name for text in request.task)]
    if not chosen:
        more = "" if request.data else f"; with --data also {'; '.join(PUBLIC)}"
        raise InputError(
            f"No task is called {' or '.join(request.task)}.", f"There are: {'; '.join(known)}{more}."
        )
    for name in chosen:
        configured(known[name][0], request.values)  # refuses wrong values before anything runs
    for name in chosen:
        preset, tasks = known[name]
        yield from ((task, preset) for task in tasks(request.data, 0))


def _pair(
    task: Task, preset: str, versions: Sequence[Version], pair: int, request: Request, tell: Tell
) -> list[Row]:
    """One run of each version with the pair's number as seed; the order alternates from pair to pair."""
    store, data = Store(request.out), task.fingerprint()
    methods = {version.name: _method(version, preset, request) for version in versions}
    keys = {name: store.key(data, one.identity(), request.threads, pair) for name, one in methods.items()}
    kept = [row for key in keys.values() if (row := store.load(key))]
    if len(kept) == len(keys) and not (request.retry and any(row["status"] != "ok" for row in kept)):
        return kept
    rows = []
    for name in list(methods)[:: 1 if pair % 2 == 0 else -1]:
        rows.append(_run(task, methods[name], pair, request) | {"key": keys[name], "experiment": "speed"})
        store.save(rows[-1])
        tell(_line(rows[-1]))
    return rows


def _side_by_side(
    task: Task, preset: str, version: Version, pair: int, request: Request, tell: Tell
) -> dict[str, Any]:
    """Two runs one after the other, then the same two at once."""
    method, store = _method(version, preset, request), Store(request.out)
    key = store.key("throughput", task.fingerprint(), method.identity(), request.threads, pair)
    if kept := store.load(key):
        return kept["row"]
    seeds = [2 * pair, 2 * pair + 1]
    begin = time.perf_counter()
    rows = [_run(task, method, seed, request) for seed in seeds]
    middle = time.perf_counter()
    with ThreadPoolExecutor(len(seeds)) as pool:
        rows += pool.map(lambda seed: _run(task, method, seed, request), seeds)
    alone, together = middle - begin, time.perf_counter() - middle
    failed = dict.fromkeys(f"{row['status']}: {row['reason']}" for row in rows if row["status"] != "ok")
    row = {
        "task": task.name,
        "preset": preset,
        "version": version.name,
        "one after the other, s": alone,
        "side by side, s": together,
        "throughput, side by side / one after the other": None if failed else alone / together,
        "note": "; ".join(failed),
    }
    store.save({"key": key, "experiment": "throughput", "row": row})
    tell(f"{task.name} · {version.name}: one after the other {alone:.0f} s, side by side {together:.0f} s")
    return row


def _method(version: Version, preset: str, request: Request) -> Timed:
    """The version with the preset, the threads and the user's changes."""
    values = [*([f"threads={request.threads}"] if request.threads else []), *request.values]
    return Timed(version.name, "ours", timed.__file__, {"preset": preset, "values": values}, version=version)


def _run(task: Task, method: Method, seed: int, request: Request) -> Row:
    """One run in a process and a folder of its own."""
    with temporary_folder("gears-bench") as folder:
        return run_one(task, method, TaskFiles(task, Path(folder)), seed=seed, limits=request.limits)[0]


def _conditions(request: Request) -> str:
    threads = f"threads: {request.threads or 'as each run chooses'}"
    return ", ".join([threads, *request.values])


def _line(row: Row) -> str:
    """A finished run in one line."""
    result = f"{row['status']}: {row['reason']}"
    if row["status"] == "ok":
        fit, place = SECONDS["fit"](row), SECONDS["place"](row)
        score, memory = row["metrics"]["spearman"], row["peak_gb"]
        result = f"fit {fit:.1f} s, place {place:.1f} s, Spearman {score:.3f}, {memory:.1f} GB"
    return f"{row['task']} · {row['method']} · seed {row['seed']}: {result}"


def _of(statistic: Callable[..., Any], values: Sequence[float]) -> float | None:
    return float(statistic(values)) if values else None
