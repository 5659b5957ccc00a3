"""What the diffusion refiner gives and costs: start noise, steps and samples averaged, over the generator (table 2)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from spatialgears import datasets
from spatialgears.assembly.canonical import canonical
from spatialgears.bench import protocols
from spatialgears.bench.one_model import fitted, seen
from spatialgears.bench.protocols import Task
from spatialgears.config import Config
from spatialgears.engine import child_seed, numpy_rng, threads
from spatialgears.geometry.ensemble import Ensemble
from spatialgears.metrics import evaluate
from spatialgears.model import GEARS
from spatialgears.supervision.targets import procrustes

logger = logging.getLogger(__name__)
SETS = ("mouse_atlas", "her2st_E", "dlpfc")
N_CELLS = 4096
SCORES = (
    "spearman", "stress1", "scale_error", "edge_auc", "bap", "shell_f1", "trust", "cont", "swd", "w1_knn",
)  # fmt: skip
#: Start noise in units of sigma_data,resid; Heun steps; samples averaged.
RUNS: tuple[tuple[float, int, int], ...] = (
    *((1.0, steps, 1) for steps in (4, 8, 16, 32, 64, 600)),
    (0.3, 4, 1),
    (0.5, 4, 1),
    (3.0, 16, 1),
    (1.0, 4, 4),
    (1.0, 4, 16),
    (0.3, 4, 4),
)


def tasks(root: Path | None, *, simulated: bool = False) -> Iterator[Task]:
    """The sets of the table, or simulated tissue."""
    if simulated:
        yield next(iter(protocols.simulated(seed=0, n_cells=1000, n_genes=200, n_sections=1, spots=350)))
        return
    for name in SETS:
        yield protocols.of_tissue("refiner", name, datasets.load(name, root))


def measure(
    network: Ensemble,
    features: Tensor,
    truth: np.ndarray,
    *,
    runs: Sequence[tuple[float, int, int]],
    seed: int,
) -> Iterator[dict[str, Any]]:
    """One pass over the cells by the generators, by them and the nearest spots, and refined in each way.

    Scores against the truth, and seconds.
    """
    ways = {"generator": network.generated}
    if network.nearest is not None:
        ways["with nearest spots"] = network
    for name, way in ways.items():
        begin = time.perf_counter()
        base = way(features[None])
        yield {"run": name, **_scores(base, truth), "seconds": time.perf_counter() - begin}
    for sigma, steps, count in runs:
        begin = time.perf_counter()
        total = torch.zeros_like(base)
        for number in range(count):
            seeds = torch.tensor([child_seed(seed, "refiner", number) % 2**62])
            sample = network.sample(features[None], steps=steps, sigma_start=sigma, seeds=seeds)
            total += sample @ procrustes(sample, base)
        what = f"{sigma:g} sigma, {steps} steps" + (f", mean of {count}" if count > 1 else "")
        yield {"run": what, **_scores(total / count, truth), "seconds": time.perf_counter() - begin}


def rows(
    found: Iterable[Task], preset: Config, *, seeds: int, folder: Path
) -> tuple[list[dict[str, Any]], dict[str, Mapping[str, list[float]]]]:
    """Means over seeds, a row for each set and run, and the training history of the first seed of each set."""
    table: list[dict[str, Any]] = []
    histories: dict[str, Mapping[str, list[float]]] = {}
    for task in found:
        assert task.truth is not None
        runs: dict[str, list[dict[str, Any]]] = {}
        for seed in range(seeds):
            config = preset.with_values([f"seed={seed}"])
            model = fitted(task, config, folder=folder)
            histories.setdefault(task.name, model._ready().history)
            features, network = seen(model, task)
            some = np.sort(numpy_rng(seed, "cells").permutation(len(features))[:N_CELLS])
            with threads(config.threads), torch.no_grad():
                for row in measure(network.ensemble, features[some], task.truth[some], runs=RUNS, seed=seed):
                    logger.info("%s, seed %d: %s", task.name, seed, row)
                    runs.setdefault(row.pop("run"), []).append(row)
            runs.setdefault("as users get it", []).append(_placed(model, task, some))
        for name, each in runs.items():
            spread = float(np.std([row["spearman"] for row in each]))
            means = {key: float(np.mean([row[key] for row in each])) for key in each[0]}
            table.append({"set": task.name, "run": name, **means, "sd of spearman": spread})
    return table, histories


def draw(
    table: Sequence[Mapping[str, Any]], histories: Mapping[str, Mapping[str, Sequence[float]]]
) -> Figure:
    """Place against spacing for every run, and how each set was learnt: loss and held-out score."""
    figure = Figure(figsize=(5 * (1 + len(histories)), 4), layout="constrained")
    axes = figure.subplots(1, 1 + len(histories), squeeze=False)[0]
    for name in histories:
        mine = [row for row in table if row["set"] == name]
        axes[0].scatter([row["w1_knn"] for row in mine], [row["spearman"] for row in mine], label=name)
        for row in mine:
            axes[0].annotate(row["run"], (row["w1_knn"], row["spearman"]), fontsize=5)
    axes[0].set(
        xlabel="W1 of neighbour distances (less is better)", ylabel="Spearman of distances", xscale="log"
    )
    axes[0].legend()
    for ax, (name, history) in zip(axes[1:], histories.items(), strict=True):
        for key, values in history.items():
            if key.endswith(("/heldout", "/loss")) and "fold-0" in key:
                ax.plot(np.linspace(0, 1, len(values)), values, label=key)
        ax.set(title=name, xlabel="share of training", ylim=(0, 2))
        ax.legend(fontsize="small")
    return figure


def _placed(model: GEARS, task: Task, some: np.ndarray) -> dict[str, float]:
    """The best guess of ``reconstruct``, evenly spaced, beside which users find the refiner's samples."""
    begin = time.perf_counter()
    found = model.reconstruct(task.cells)
    seconds = time.perf_counter() - begin
    assert task.truth is not None
    return {**_chosen(evaluate(found.coords[some], task.truth[some])), "seconds": seconds}


def _scores(geometry: Tensor, truth: np.ndarray) -> dict[str, float]:
    return _chosen(evaluate(canonical(geometry[0].double().numpy()).coords, truth))


def _chosen(found: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(found[name]) for name in SCORES}
