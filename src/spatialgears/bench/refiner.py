"""What the diffusion refiner gives and costs (the paper's Table 2).

Start noise, steps and number of averaged samples, beside the generator alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from spatialgears.bench import sets
from spatialgears.bench.fitted import layout, network_inputs, over_seeds, readings, tasks_of
from spatialgears.bench.presets import title
from spatialgears.bench.protocols import Task
from spatialgears.bench.request import Outcome, Request, Tell
from spatialgears.bench.store import Store
from spatialgears.bench.tables import plain_table
from spatialgears.geometry.ensemble import Ensemble
from spatialgears.geometry.features import Features
from spatialgears.metrics import evaluate
from spatialgears.model import GEARS
from spatialgears.runtime.seeds import child_seed, numpy_rng
from spatialgears.runtime.threads import threads
from spatialgears.supervision.targets import procrustes

logger = logging.getLogger(__name__)
SETS = sets.together(sets.MOUSE_ATLAS, sets.HER2ST["E"])
#: Cells that are placed and scored: 600 steps over all cells of a large set would take hours.
N_CELLS = 2048
SCORES = (
    "spearman", "stress1", "scale_error", "edge_auc", "bap", "shell_f1", "trust", "cont", "swd", "w1_knn",
)  # fmt: skip
#: Start noise in units of sigma_data,resid; Heun steps; number of averaged samples.
RUNS: tuple[tuple[float, int, int], ...] = (
    *((1.0, steps, 1) for steps in (4, 8, 16, 32, 64, 600)),
    (0.3, 4, 1),
    (0.5, 4, 1),
    (3.0, 8, 1),
    (3.0, 16, 1),
    (1.0, 4, 4),
    (1.0, 4, 16),
    (0.3, 4, 4),
)


def run(request: Request, tell: Tell) -> Outcome:
    """The table and figure of the refiner."""
    preset = request.preset()
    config = request.config(preset)
    tasks = tasks_of(request, SETS)
    rows, histories = over_seeds(tasks, scored, config, seeds=request.seeds, folder=request.out)
    text = f"### refiner: generator and diffusion, {title(preset, config)}\n\n{plain_table(rows)}\n"
    return Outcome(text, rows, {"refiner": draw(rows, histories)})


def ways(network: Ensemble, features: Features, *, seed: int) -> dict[str, Callable[[], Tensor]]:
    """Functions that each give the geometry (1, n, d) of all cells in one pass, refined as in each of :data:`RUNS`."""
    x = features[None]

    def refined(sigma: float, steps: int, count: int) -> Tensor:
        base = network(x)
        total = torch.zeros_like(base)
        for number in range(count):
            seeds = torch.tensor([child_seed(seed, "refiner", number) % 2**62])
            sample = network.sample(x, steps=steps, sigma_start=sigma, seeds=seeds)
            total += sample @ procrustes(sample, base)
        return total / count

    return {
        f"{sigma:g} sigma, {steps} steps" + (f", mean of {count}" if count > 1 else ""): partial(
            refined, sigma, steps, count
        )
        for sigma, steps, count in RUNS
    }


def scored(task: Task, model: GEARS, *, store: Store) -> dict[str, dict[str, float]]:
    """Scores of one model for everything that is compared; scores that ``store`` holds are not computed again."""
    assert task.truth is not None
    config = model.config
    features, network = network_inputs(model, task)
    some = np.sort(numpy_rng(config.seed, "cells").permutation(len(features))[:N_CELLS])
    refined = ways(network.ensemble, features[some], seed=config.seed)
    layouts = readings(model, task, some) | {
        name: lambda way=way: layout(way()) for name, way in refined.items()
    }
    parts = ("refiner", task.fingerprint(), config.model_dump(mode="json"), N_CELLS)
    found = {}
    with threads(config.threads), torch.no_grad():
        for name, make in layouts.items():
            found[name] = store.once(*parts, name, make=partial(_timed, make, task.truth[some]))
            logger.info("%s, seed %d, %s: %s", task.name, config.seed, name, found[name])
    return found


def draw(
    table: Sequence[Mapping[str, Any]], histories: Mapping[str, Mapping[str, Sequence[float]]]
) -> Figure:
    """Accuracy against spacing for every run, and the training curves of each set: loss and held-out score."""
    figure = Figure(figsize=(5 * (1 + len(histories)), 4), layout="constrained")
    axes = figure.subplots(1, 1 + len(histories), squeeze=False)[0]
    for name in histories:
        mine = [row for row in table if row["set"] == name]
        axes[0].scatter([row["w1_knn"] for row in mine], [row["spearman"] for row in mine], label=name)
        for row in mine:
            axes[0].annotate(row["run"], (row["w1_knn"], row["spearman"]), fontsize=5)
    axes[0].set(
        xlabel="W1 of neighbour distances (lower is better)", ylabel="Spearman of distances", xscale="log"
    )
    axes[0].legend()
    for ax, (name, history) in zip(axes[1:], histories.items(), strict=True):
        for key, values in history.items():
            if key.endswith(("/heldout", "/loss")) and "fold-0" in key:
                ax.plot(np.linspace(0, 1, len(values)), values, label=key)
        ax.set(title=name, xlabel="share of training", ylim=(0, 2))
        ax.legend(fontsize="small")
    return figure


def _timed(place: Callable[[], np.ndarray], truth: np.ndarray) -> dict[str, float]:
    """Scores of a layout, and the seconds it took."""
    begin = time.perf_counter()
    coords = place()
    seconds = time.perf_counter() - begin
    found = evaluate(coords, truth)
    return {**{name: float(found[name]) for name in SCORES}, "seconds": seconds}
