"""How far cells are from their true positions after registration on a slide, in spot pitches.

Two rows separate the sources of error. The true positions, rotated and mirrored, show the error of registration
alone. The rigid motion that fits the truth best shows the error of the reconstruction alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from anndata import AnnData
from matplotlib.figure import Figure
from numpy.typing import NDArray

from spatialgears import datasets, metrics, plotting
from spatialgears.analysis import lookup, register
from spatialgears.bench import protocols, sets
from spatialgears.bench.fitted import fitted, tasks_of
from spatialgears.bench.presets import title
from spatialgears.bench.protocols import Task
from spatialgears.bench.request import Outcome, Request, Tell
from spatialgears.bench.tables import plain_table
from spatialgears.config import Config
from spatialgears.metrics.points import lay_on, spot_pitch
from spatialgears.plotting.canvas import plain
from spatialgears.runtime.threads import threads

#: What is registered, and how.
RUNS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "true positions, rotated": ("truth", {}),
    "by expression": ("X_gears", {}),
    "by expression, slide's scale": ("X_gears", {"scale": False}),
    "by expression, deformed": ("X_gears", {"deform": True}),
    "by shape alone": ("X_gears", {"method": "gromov"}),
}
FLOOR = "best rigid fit to the truth"
SCORES = ("error_median", "error_mean", "residual", "agreement", "coverage")
SIMULATED: dict[str, Any] = {"n_cells": 2000, "n_genes": 200, "spots": 60}


def simulated(_: Path | None, seed: int) -> Iterator[Task]:
    """Pseudo-Visium spots over simulated cells: slide and truth share a frame, as they do in Mouse Atlas."""
    tissue = datasets.simulate_tissue(seed=seed, **SIMULATED)
    tissue.cells.obsm["spatial"] = tissue.truth.obsm["spatial"]
    yield from protocols.pseudo_visium(
        tissue.cells,
        name="simulated",
        fractions=(0.8,),
        layouts=("hex",),
        grid=(22, 18),
        min_cells=1,
        types="cell_type",
    )


def run(request: Request, tell: Tell) -> Outcome:
    """The table and figure of registration."""
    preset = request.preset()
    config = request.config(preset)
    (task,) = tasks_of(request, sets.MOUSE_ATLAS, simulated)
    placed = fitted(task, config, folder=request.out).reconstruct(task.cells)
    assert task.truth is not None
    rows, figure = rows_of(placed.to_adata(task.cells, copy=True), task.slides[0], task.truth, config=config)
    heading = f"registration: {task.name}, {title(preset, config)}, errors in spot pitches"
    return Outcome(f"### {heading}\n\n{plain_table(rows)}\n", rows, {"registration": figure})


def rows_of(
    cells: AnnData, slide: AnnData, truth: NDArray[Any], *, config: Config
) -> tuple[list[dict[str, Any]], Figure]:
    """Register ``obsm["X_gears"]`` on the slide in every way of :data:`RUNS`; errors in spot pitches."""
    turn = np.array([[0.6, 0.8], [0.8, -0.6]])  # a rotation and a mirror
    cells.obsm["truth"], cells.obsm["known"] = metrics.canonical(truth) @ turn, truth
    rows, figure = [], Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, (basis, options) in RUNS.items():
        start = time.perf_counter()
        with threads(config.threads):
            register(cells, slide, basis=basis, truth_key="known", seed=config.seed, **options)
        fit = cells.uns["X_gears_slide"]
        row = {"run": name} | {score: fit[score] for score in SCORES}
        rows.append(row | {"seconds": time.perf_counter() - start})
        if name == "by expression":
            error = np.linalg.norm(cells.obsm["X_gears_slide"] - truth, axis=1) / fit["pitch"]
            cells.obs["error (spot pitches)"] = error
            plotting.registration(cells, slide, color="error (spot pitches)", title=name, ax=left)
    rows.append({"run": FLOOR} | _floor(cells, slide, truth))
    right.barh([row["run"] for row in rows], [row["error_median"] for row in rows], color="#0072B2")
    right.invert_yaxis()
    right.set_xlabel("median distance from the true position (spot pitches)")
    plain(right)
    return rows, figure


def _floor(cells: AnnData, slide: AnnData, truth: NDArray[Any]) -> dict[str, float]:
    """Error after the least-squares motion and scale onto the truth, which registration cannot know."""
    kept = lookup.counted(cells, lookup.OUTSIDE)
    x = np.asarray(cells.obsm["X_gears"], np.float64)[kept]
    x, y = x - x.mean(0), truth[kept] - truth[kept].mean(0)
    x = x @ lay_on(x, y)
    x *= (x * y).sum() / np.square(x).sum()
    error = np.linalg.norm(x - y, axis=1) / spot_pitch(lookup.places(slide, "spatial", "slide"))
    return {"error_median": float(np.median(error)), "error_mean": float(error.mean())}
