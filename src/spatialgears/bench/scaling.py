"""Time, memory and accuracy of placing ten thousand to a million cells, beside the peers.

Run with ``gears bench scaling``. One model is fitted on a simulated slide; larger and larger samples of the same tissue
are read from disk, placed and written by a process of their own, as ``gears reconstruct`` does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
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
from spatialgears.bench import one_model, protocols
from spatialgears.bench.harness import Limits, launch, run
from spatialgears.bench.methods import choose
from spatialgears.bench.peers import PeerOptions
from spatialgears.bench.store import Store
from spatialgears.config import Config
from spatialgears.datasets import simulate_tissue
from spatialgears.errors import ConfigError
from spatialgears.metrics import evaluate
from spatialgears.model import GEARS
from spatialgears.pipeline.cost import predict_cost
from spatialgears.runtime.seeds import numpy_rng

SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)
TISSUE: dict[str, Any] = {"n_genes": 200, "n_sections": 1, "spots": 500}
FIT_CELLS, SCORED, PROCESSES_AT = 5000, 10_000, 100_000
TRAINED = ((1000, 2000), (10_000, 2000), (100_000, 2000), (1000, 200_000))
FLAG_STEPS = (10, 10, 110)  # the first run compiles, the second tells what is not training
SEARCHED, DIM, NEIGHBOURS = (10_000, 30_000, 100_000), 32, 15
_READ = "import json, sys, spatialgears.bench.scaling as s; s.place_file(json.loads(sys.argv[1]))"


def task_of(size: int, *, seed: int = 0) -> protocols.Task:
    """The slide and so many cells of one simulated tissue."""
    tissue = simulate_tissue(n_cells=size, seed=seed, **TISSUE)
    return protocols.of_tissue("scaling", f"{size:,} cells", tissue)


def rows(config: Config, sizes: Sequence[int], *, folder: Path, threads: int) -> Iterator[dict[str, Any]]:
    """One row per size: time, peak memory, what was predicted, and accuracy on the same number of cells.

    Without samples, which many cells do without.
    """
    config = config.with_values(["assembly.sample_cells=0", f"threads={threads}"])
    model = one_model.fitted(task_of(FIT_CELLS), config, folder=folder)
    model.save(folder / "model", overwrite=True)
    store = Store(folder)
    for size in sizes:
        key = store.key("scaling", config.model_dump(mode="json"), TISSUE, size, threads, __version__)
        if row := store.load(key):
            yield row["row"]
            continue
        task = task_of(size)
        assert task.truth is not None
        cells = folder / f"cells-{size}.h5ad"
        task.cells.write_h5ad(cells)
        counts = task.cells.X
        told = predict_cost(0, size, counts.shape[1], config, stored=counts.nnz)
        used = measured(
            {"model": str(folder / "model"), "cells": str(cells), "out": str(folder / "placed.h5ad")},
            threads=threads,
        )
        coords = np.load(folder / "placed.h5ad.npy")
        some = numpy_rng(0, "scored").permutation(size)[:SCORED]
        scores = evaluate(coords[some], task.truth[some])
        cells.unlink()
        row = {
            "cells": size,
            "seconds": used["seconds"],
            "peak GB": used["peak_gb"],
            "predicted s": told.seconds,
            "predicted GB": told.peak_bytes / 1e9,
            **{name: scores[name] for name in ("spearman", "shell_f1", "trust")},
            "mode": used["mode"],
            **{f"s {name}": value for name, value in used["profile"].items()},
        }
        store.save({"key": key, "row": row})
        yield row


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
    Path(spec["told"]).write_text(json.dumps({"profile": profile, "mode": placed.diagnostics["mode"]}))


def measured(spec: dict[str, str], *, threads: int) -> dict[str, Any]:
    """Run :func:`place_file` in a process on so many cores; its seconds, peak memory and profile."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = {key: str(Path(path).resolve()) for key, path in spec.items()} | {"told": f"{name}/told.json"}
        command = [*_pinned(threads), sys.executable, "-c", _READ, json.dumps(spec)]
        usage = launch(command, folder, Limits(6 * 3600, 64, threads))
        if usage["code"]:
            raise RuntimeError((folder / "log.txt").read_text()[-2000:])
        return {**usage, **json.loads(Path(spec["told"]).read_text())}


def _pinned(count: int) -> list[str]:
    """What to put before a command to keep it on so many cores."""
    cores = sorted(os.sched_getaffinity(0))[:count] if hasattr(os, "sched_getaffinity") else []
    return ["taskset", "-c", ",".join(map(str, cores))] if cores else []


def slopes(found: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Log-log slopes of time and memory against cells; 1 is linear."""
    cells = np.log([row["cells"] for row in found])
    return {
        name: float(np.polyfit(cells, np.log([row[name] for row in found]), 1)[0])
        for name in ("seconds", "peak GB")
    }


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
    """Seconds of a short training by the number of spots and of cells."""
    config = Config.preset("quick").with_values(["geometry.steps=100", "geometry.refiner_steps=20"])
    for n_spots, n_cells in sizes:
        slide, cells = patterned(n_spots, seed=0), patterned(n_cells, seed=1)
        start = time.perf_counter()
        GEARS(config).fit([slide], cells)
        yield {"spots": n_spots, "cells": n_cells, "seconds": time.perf_counter() - start}


def flags() -> Iterator[dict[str, Any]]:
    """Seconds of a step of stage C's training, as it is and by each flag, without what comes before the first step."""
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
            yield {
                "flag": flag,
                "seconds a step": None,
                "times as fast": None,
                "note": str(error).splitlines()[0],
            }
            continue
        step = (seconds[-1] - seconds[-2]) / (FLAG_STEPS[-1] - FLAG_STEPS[-2])
        plain = plain or step
        yield {"flag": flag, "seconds a step": step, "times as fast": plain / step, "note": ""}


def patterned(n_spots: int, *, n_genes: int = 100, seed: int) -> AnnData:
    """A square of spots, as many as are asked for, whose genes follow waves across it."""
    rng = numpy_rng(seed, "patterned")
    waves, phases = numpy_rng(0, "waves").normal(scale=3, size=(2, n_genes)), np.arange(n_genes)
    coords = rng.random((n_spots, 2))
    rate = 2 * np.exp(np.sin(coords @ waves + phases))
    counts = sparse.csr_matrix(rng.poisson(rate).astype(np.float32))
    return AnnData(
        counts, var=pd.DataFrame(index=[f"g{i}" for i in range(n_genes)]), obsm={"spatial": coords}
    )


def neighbours(sizes: Sequence[int] = SEARCHED, *, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Recall and time of neighbour searches on clustered points, those of libraries that are installed."""
    rng = numpy_rng(seed, "search")
    centres = 3 * rng.normal(size=(50, DIM))
    _pynndescent(centres.astype(np.float32))  # compiles
    for size in sizes:
        points = (centres[rng.integers(50, size=size)] + rng.normal(size=(size, DIM))).astype(np.float32)
        true = None
        for name, search in SEARCHES.items():
            start = time.perf_counter()
            try:
                found = search(points)
            except ImportError:
                continue
            seconds = time.perf_counter() - start
            true = found if true is None else true
            shared = [len(np.intersect1d(a, b)) for a, b in zip(found[:2000], true[:2000], strict=True)]
            yield {
                "points": size,
                "search": name,
                "recall": float(np.mean(shared)) / NEIGHBOURS,
                "seconds": seconds,
            }


def _exact(points: np.ndarray) -> np.ndarray:
    from sklearn.neighbors import NearestNeighbors

    return NearestNeighbors(n_neighbors=NEIGHBOURS, algorithm="brute").fit(points).kneighbors(points)[1]


def _pynndescent(points: np.ndarray) -> np.ndarray:
    from pynndescent import NNDescent

    return NNDescent(points, n_neighbors=NEIGHBOURS, random_state=0, n_jobs=1).neighbor_graph[0]


def _faiss(points: np.ndarray) -> np.ndarray:
    import faiss

    faiss.omp_set_num_threads(1)
    index = faiss.IndexHNSWFlat(points.shape[1], 32)
    index.add(points)
    return index.search(points, NEIGHBOURS)[1]


def _usearch(points: np.ndarray) -> np.ndarray:
    from usearch.index import Index

    index = Index(ndim=points.shape[1], metric="l2sq")
    index.add(np.arange(len(points)), points, threads=1)
    return index.search(points, NEIGHBOURS, threads=1).keys


SEARCHES = {
    "exact (scikit-learn)": _exact,
    "pynndescent": _pynndescent,
    "faiss HNSW": _faiss,
    "usearch": _usearch,
}


def peers(
    names: Sequence[str], sizes: Sequence[int], *, setup: PeerOptions, store: Store, limits: Limits
) -> list[dict[str, Any]]:
    """How far each peer gets under the limits, and what it takes."""
    found = []

    def one(size: int) -> Callable[[int], list[protocols.Task]]:
        return lambda seed: [task_of(size)]

    for method in choose(list(names), setup):
        for size in sizes:
            (row, *_) = run(one(size), [method], store, seeds=[0], limits=limits)
            score = row["metrics"].get("spearman") if row["metrics"] else None
            found.append({"cells": size, "method": method.name, "seconds": row["seconds"], "peak GB": row["peak_gb"],
                          "spearman": score, "note": row["reason"] or ""})  # fmt: skip
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
