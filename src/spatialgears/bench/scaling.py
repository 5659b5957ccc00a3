"""Time, memory and accuracy from ten thousand to a million cells, beside the peers.

One model is fitted on a simulated slide. Larger and larger samples of the same tissue are read from disk, placed and
written by a process of its own, as ``gears reconstruct`` does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from matplotlib.figure import Figure
from scipy import sparse

from spatialgears._version import __version__
from spatialgears.bench import protocols
from spatialgears.bench.fitted import fitted
from spatialgears.bench.harness import Limits, launch
from spatialgears.bench.harness import run as run_methods
from spatialgears.bench.methods import choose
from spatialgears.bench.peers import PeerOptions
from spatialgears.bench.presets import title
from spatialgears.bench.request import Outcome, Request, Tell
from spatialgears.bench.store import Store
from spatialgears.bench.tables import plain_table
from spatialgears.config import Config
from spatialgears.datasets import simulate_tissue
from spatialgears.errors import ConfigError, InputError
from spatialgears.metrics import evaluate
from spatialgears.model import GEARS
from spatialgears.pipeline.cost import predict_cost
from spatialgears.runtime.files import temporary_folder
from spatialgears.runtime.seeds import numpy_rng

SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)
TISSUE: dict[str, Any] = {"n_genes": 200, "n_sections": 1, "spots": 500}
FIT_CELLS, SCORED, PROCESSES_AT = 5000, 10_000, 100_000
#: Spots and cells of the trainings that are timed.
TRAINED = ((1000, 2000), (10_000, 2000), (100_000, 2000), (1000, 200_000))
FLAG_STEPS = (10, 10, 110)  # the first run compiles; the second shows the time outside of training steps
_PLACE = "import json, sys, spatialgears.bench.scaling as s; s.place_file(json.loads(sys.argv[1]))"


def run(request: Request, tell: Tell) -> Outcome:
    """All tables of scaling: placing by preset and peers, training, flags, and two processes."""
    sizes = sizes_of(request.sizes, SIZES)
    preset, *peers = request.method or ["default"]
    config = request.config(preset).with_values(["assembly.sample_cells=0"])
    request.out.mkdir(parents=True, exist_ok=True)
    ours = list(placing(config, sizes, folder=request.out))
    parts: dict[str, list[dict[str, Any]]] = {f"placing cells, {title(preset, config)}": ours}
    if len(ours) > 1:
        parts["log-log slope against cells (1: linear)"] = [slopes(ours)]
    beside = placing_by_peers(peers, sizes, request)
    parts |= {"peers": beside} if beside else {}
    trained = list(training())
    parts["training, 100 steps of the quick preset"] = trained
    parts["log-log slope of training against spots (1: linear)"] = [
        slopes(trained[:3], by="spots", of=("seconds",))
    ]
    parts["training steps by flag, one thread"] = list(flags())
    parts["one process and two"] = [processes(request.out, min(PROCESSES_AT, max(sizes)))]
    text = "\n".join(f"### {heading}\n\n{plain_table(found)}\n" for heading, found in parts.items())
    return Outcome(text, parts, {"scaling": draw(ours, beside)})


def sizes_of(text: str | None, usual: Sequence[int]) -> list[int]:
    """Numbers of cells as ``--sizes`` gives them."""
    try:
        return [int(size) for size in text.split(",")] if text else list(usual)
    except ValueError:
        raise InputError(
            f"--sizes expects numbers of cells, found {text!r}.", "For example --sizes 10000,100000."
        ) from None


def task_of(size: int, *, seed: int = 0) -> protocols.Task:
    """The slide and ``size`` cells of one simulated tissue."""
    tissue = simulate_tissue(n_cells=size, seed=seed, **TISSUE)
    return protocols.of_tissue("scaling", f"{size:,} cells", tissue)


def placing(config: Config, sizes: Sequence[int], *, folder: Path) -> Iterator[dict[str, Any]]:
    """One row per size: time, peak memory, what ``gears check`` predicts, and accuracy on 10,000 of the cells."""
    model = fitted(task_of(FIT_CELLS), config, folder=folder)
    model.save(folder / "model", overwrite=True)
    store = Store(folder)
    for size in sizes:
        key = store.key("scaling", config.model_dump(mode="json"), TISSUE, size, __version__)
        kept = store.load(key)
        if kept is None:
            kept = {"key": key, "row": _placed(size, config, folder)}
            store.save(kept)
        yield kept["row"]


def _placed(size: int, config: Config, folder: Path) -> dict[str, Any]:
    task = task_of(size)
    assert task.truth is not None
    cells, out = folder / f"cells-{size}.h5ad", folder / "placed.h5ad"
    task.cells.write_h5ad(cells)
    counts = task.cells.X
    expected = predict_cost(0, size, counts.shape[1], config, stored=counts.nnz)
    used = measured(
        {"model": str(folder / "model"), "cells": str(cells), "out": str(out)}, threads=config.threads
    )
    coords = np.load(f"{out}.npy")
    some = numpy_rng(0, "scored").permutation(size)[:SCORED]
    scores = evaluate(coords[some], task.truth[some])
    cells.unlink()
    return {
        "cells": size,
        "seconds": used["seconds"],
        "peak GB": used["peak_gb"],
        "predicted s": expected.seconds,
        "predicted GB": expected.peak_bytes / 1e9,
        **{name: scores[name] for name in ("spearman", "shell_f1", "trust")},
        "mode": used["mode"],
        **{f"s {name}": value for name, value in used["profile"].items()},
    }


def place_file(spec: dict[str, Any]) -> None:
    """Read, place, write: the work of one row, in a process of its own."""
    from spatialgears.io import read

    start = time.perf_counter()
    cells = read(spec["cells"], backed=True)
    placed = GEARS.load(spec["model"]).reconstruct(cells)
    profile = dict(placed.diagnostics["profile"])
    begun = time.perf_counter()
    placed.write(cells, spec["out"])
    profile["write"] = time.perf_counter() - begun
    profile["read and check"] = time.perf_counter() - start - sum(profile.values())
    np.save(spec["out"] + ".npy", placed.coords)
    Path(spec["summary"]).write_text(json.dumps({"profile": profile, "mode": placed.diagnostics["mode"]}))


def measured(spec: dict[str, str], *, threads: int) -> dict[str, Any]:
    """Run :func:`place_file` in a process on so many cores; its seconds, peak memory and profile."""
    with temporary_folder("gears-bench") as name:
        folder = Path(name)
        spec = {key: str(Path(path).resolve()) for key, path in spec.items()}
        spec["summary"] = f"{name}/summary.json"
        command = [*_pinned(threads), sys.executable, "-c", _PLACE, json.dumps(spec)]
        usage = launch(command, folder, Limits(6 * 3600, 64, threads))
        if usage["code"]:
            raise RuntimeError((folder / "log.txt").read_text()[-2000:])
        return {**usage, **json.loads(Path(spec["summary"]).read_text())}


def _pinned(count: int) -> list[str]:
    """What to put before a command to keep it on so many cores; nothing for 0."""
    cores = sorted(os.sched_getaffinity(0))[:count] if hasattr(os, "sched_getaffinity") else []
    return ["taskset", "-c", ",".join(map(str, cores))] if cores else []


def slopes(
    found: Sequence[dict[str, Any]], *, by: str = "cells", of: Sequence[str] = ("seconds", "peak GB")
) -> dict[str, float]:
    """Log-log slopes against a size; 1 is linear."""
    size = np.log([row[by] for row in found])
    return {name: float(np.polyfit(size, np.log([row[name] for row in found]), 1)[0]) for name in of}


def processes(folder: Path, size: int = PROCESSES_AT) -> dict[str, float]:
    """Seconds of ``gears reconstruct`` in one process of one thread, and in two."""
    cells = folder / f"cells-{size}.h5ad"
    task_of(size).cells.write_h5ad(cells)
    found = {}
    for devices in (1, 2):
        command = [*_pinned(devices), sys.executable, "-m", "spatialgears", "reconstruct"]
        command += ["-m", str(folder / "model"), "--sc", str(cells), "-o", str(folder / "placed.h5ad")]
        start = time.perf_counter()
        command += ["--overwrite", "--devices", str(devices)]
        subprocess.run(command, check=True, capture_output=True)
        found[f"{devices} process{'es' * (devices > 1)}"] = time.perf_counter() - start
    cells.unlink()
    return {"cells": size, **found, "speed-up": found["1 process"] / found["2 processes"]}


def training(sizes: Sequence[tuple[int, int]] = TRAINED) -> Iterator[dict[str, Any]]:
    """Seconds of a short training by the numbers of spots and of cells."""
    config = Config.preset("quick").with_values(["geometry.steps=100", "geometry.refiner_steps=20"])
    for n_spots, n_cells in sizes:
        slide, cells = patterned(n_spots, seed=0), patterned(n_cells, seed=1)
        start = time.perf_counter()
        GEARS(config).fit([slide], cells)
        yield {"spots": n_spots, "cells": n_cells, "seconds": time.perf_counter() - start}


def flags() -> Iterator[dict[str, Any]]:
    """Seconds of one training step of stage C, plain and with each flag."""
    slide, cells, plain = patterned(1000, seed=0), patterned(2000, seed=1), None
    fixed = ["geometry.refiner=none", "geometry.nearest=false", "assembly.steps=0", "threads=1"]
    for flag in ("precision=32-true", "compile=true", "precision=bf16-mixed"):
        seconds = []
        try:
            for steps in FLAG_STEPS:
                config = Config.preset("quick").with_values([*fixed, f"geometry.steps={steps}", flag])
                start = time.perf_counter()
                GEARS(config).fit([slide], cells)
                seconds.append(time.perf_counter() - start)
        except ConfigError as error:
            reason = str(error).splitlines()[0]
            yield {"flag": flag, "seconds a step": None, "times as fast": None, "note": reason}
            continue
        step = (seconds[-1] - seconds[-2]) / (FLAG_STEPS[-1] - FLAG_STEPS[-2])
        plain = plain or step
        yield {"flag": flag, "seconds a step": step, "times as fast": plain / step, "note": ""}


def patterned(n_spots: int, *, n_genes: int = 100, seed: int) -> AnnData:
    """``n_spots`` random positions in a square, with genes that follow waves across it."""
    rng = numpy_rng(seed, "patterned")
    waves, phases = numpy_rng(0, "waves").normal(scale=3, size=(2, n_genes)), np.arange(n_genes)
    coords = rng.random((n_spots, 2))
    rate = 2 * np.exp(np.sin(coords @ waves + phases))
    counts = sparse.csr_matrix(rng.poisson(rate).astype(np.float32))
    return AnnData(
        counts, var=pd.DataFrame(index=[f"g{i}" for i in range(n_genes)]), obsm={"spatial": coords}
    )


def placing_by_peers(names: Sequence[str], sizes: Sequence[int], request: Request) -> list[dict[str, Any]]:
    """Time, memory and accuracy of each peer, up to the size at which it fails or exceeds a limit."""
    setup = PeerOptions.given(request.peer_cache, request.peer_source, request.accept_licence)
    found = []

    def one(size: int) -> Callable[[int], list[protocols.Task]]:
        return lambda seed: [task_of(size)]

    for method in choose(names, setup):
        for size in sizes:
            (row, *_) = run_methods(one(size), [method], Store(request.out), seeds=[0], limits=request.limits)
            found.append(
                {
                    "cells": size,
                    "method": method.name,
                    "seconds": row["seconds"],
                    "peak GB": row["peak_gb"],
                    "spearman": row["metrics"].get("spearman"),
                    "note": row["reason"],
                }
            )
            if row["status"] != "ok":
                break
    return found


def draw(ours: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> Figure:
    """Time, memory and accuracy against the number of cells."""
    figure = Figure(figsize=(12, 3.8), layout="constrained")
    lines: dict[str, list[dict[str, Any]]] = {"GEARS": list(ours)}
    for row in others:
        if row["spearman"] is not None:
            lines.setdefault(row["method"], []).append(row)
    for ax, (key, label) in zip(
        figure.subplots(1, 3),
        [("seconds", "seconds"), ("peak GB", "peak memory, GB"), ("spearman", "Spearman")],
        strict=True,
    ):
        for name, values in lines.items():
            ax.plot([row["cells"] for row in values], [row[key] for row in values], marker="o", label=name)
        ax.set(xscale="log", xlabel="cells", ylabel=label)
        ax.set(**{"ylim": (0, 1)} if key == "spearman" else {"yscale": "log"})
        ax.grid(alpha=0.3)
        ax.legend(fontsize="small")
    return figure
