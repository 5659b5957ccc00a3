"""Experiments that fit once and assemble many times: patch size (figure 5) and reliability weights (table 3)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from spatialgears.bench import assembly
from spatialgears.bench.protocols import Task
from spatialgears.bench.store import Store
from spatialgears.config import Config
from spatialgears.engine import threads
from spatialgears.errors import InputError
from spatialgears.model import GEARS
from spatialgears.placing import Network
from spatialgears.types import Features
from spatialgears.validate import validate_cells

EXPERIMENTS: dict[str, Callable[..., list[dict[str, Any]]]] = {
    "patch-size": assembly.patch_size,
    "stitching": assembly.stitching,
}


def run(name: str, task: Task, config: Config, *, folder: Path) -> tuple[list[dict[str, Any]], Figure]:
    """Rows and figure of an experiment; the model is fitted once and kept in ``folder``.

    Parameters
    ----------
    name
        ``"patch-size"`` or ``"stitching"``.
    task
        Slides, cells, and their true places.
    config
        What to fit with.
    folder
        Where the fitted model is kept.
    """
    if task.truth is None:
        raise InputError(f"{name} needs cells with known places.", "Use data with truth, or --simulated.")
    model = fitted(task, config, folder=folder)
    features, network = seen(model, task)
    with threads(config.threads):
        rows = EXPERIMENTS[name](features, network, task.truth, config=config.assembly, seed=config.seed)
    return rows, curves(rows)


def fitted(task: Task, config: Config, *, folder: Path) -> GEARS:
    """The model of this task and configuration, from ``folder`` if it is there."""
    path = folder / "models" / Store.key(task.fingerprint(), config.model_dump(mode="json"))
    if path.exists():
        return GEARS.load(path)
    model = GEARS(config).fit(list(task.slides), task.cells)
    model.save(path)
    return model


def seen(model: GEARS, task: Task) -> tuple[Features, Network]:
    """The cells as the network sees them, and the network as stage D calls it."""
    state, config = model._ready(), model.config
    counts, missing, _ = validate_cells(task.cells, state.panel.genes, state.panel.weights)
    features = state.features(counts, config, missing=missing)
    steps = 0 if config.assembly.samples else config.assembly.steps
    return features, Network(state.network, config.assembly, steps=steps)


def curves(rows: list[dict[str, Any]]) -> Figure:
    """Scores on the left, how well patches agree on the right, a bar or point per run."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    runs = [row for row in rows if "change" not in row["run"]]
    x = np.arange(len(runs))
    groups = (
        (left, ("spearman", "edge_auc", "trust", "cont", "stress1"), "score"),
        (right, ("disagreement", "residual_mean"), "in units of log distance, and of the RMS radius"),
    )
    for ax, names, label in groups:
        for name in names:
            ax.plot(x, [row[name] for row in runs], marker="o", label=name.replace("_", " "))
        ax.set_xticks(x, [row["run"].replace("patches of ", "") for row in runs], rotation=30)
        ax.set(ylabel=label)
        ax.grid(alpha=0.3)
        ax.legend(fontsize="small")
    return figure
