"""Experiments that fit once and try much: patch sizes (figure 5), reliability weights (table 3), and others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from spatialgears._version import __version__
from spatialgears.bench import assembly
from spatialgears.bench.protocols import Task
from spatialgears.bench.store import Store
from spatialgears.config import Config
from spatialgears.errors import InputError
from spatialgears.model import GEARS
from spatialgears.pipeline.features import CellFeatures
from spatialgears.pipeline.place import Network
from spatialgears.runtime.threads import threads
from spatialgears.validate import validate_cells

#: Scores by their names, by the runs of one model.
Scores = Mapping[str, Mapping[str, float]]
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
    path = folder / "models" / Store.key(task.fingerprint(), config.model_dump(mode="json"), __version__)
    if path.exists():
        return GEARS.load(path)
    model = GEARS(config).fit(list(task.slides), task.cells)
    model.save(path)
    return model


def seen(model: GEARS, task: Task) -> tuple[CellFeatures, Network]:
    """The cells as the network sees them, and the network as stage D calls it."""
    state, config = model.fitted_, model.config
    counts, missing, _ = validate_cells(task.cells, state.panel.genes, state.panel.weights)
    features = state.features(counts, config, missing=missing)
    steps = 0 if config.assembly.samples else config.assembly.steps
    return features, Network(state.network, config.assembly, steps=steps)


def over_seeds(
    tasks: Iterable[Task], scored: Callable[..., Scores], preset: Config, *, seeds: int, folder: Path
) -> tuple[list[dict[str, Any]], dict[str, Mapping[str, list[float]]]]:
    """Means over seeds, a row for each set and run, and the training history of the first seed of each set.

    Models and scores are kept in ``folder``, so that a table that was stopped goes on.

    Parameters
    ----------
    tasks
        The sets.
    scored
        Task, model and the :class:`Store` of scores in; scores of every run of the model out.
    preset
        What to fit with; seeds are counted from 0.
    seeds
        How many models are fitted to each set.
    folder
        Where models and scores are kept.
    """
    table: list[dict[str, Any]] = []
    histories: dict[str, Mapping[str, list[float]]] = {}
    for task in tasks:
        runs = []
        for seed in range(seeds):
            model = fitted(task, preset.with_values([f"seed={seed}"]), folder=folder)
            histories.setdefault(task.name, model.fitted_.history)
            runs.append(scored(task, model, store=Store(folder)))
        for name in runs[0]:
            each = [run[name] for run in runs]
            spread = float(np.std([row["spearman"] for row in each]))
            means = {key: float(np.mean([row[key] for row in each])) for key in each[0]}
            table.append({"set": task.name, "run": name, **means, "sd of spearman": spread})
    return table, histories


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
