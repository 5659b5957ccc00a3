"""Experiments that fit a model once and then vary what follows: the model is kept in the output folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from spatialgears._version import __version__
from spatialgears.assembly.canonical import canonical
from spatialgears.bench import sets
from spatialgears.bench.protocols import Task
from spatialgears.bench.request import Request
from spatialgears.bench.store import Store
from spatialgears.config import Config
from spatialgears.geometry.nearest import nearest_places
from spatialgears.model import GEARS
from spatialgears.pipeline.features import CellFeatures
from spatialgears.pipeline.place import Network
from spatialgears.validate import validate_cells

#: Options of experiments that fit one preset.
ONE_PRESET = frozenset({"data", "simulated", "method", "values", "threads"})
#: Those of experiments with one preset beside peers.
WITH_PEERS = ONE_PRESET | {"time_limit", "memory_limit", "peer_source", "peer_cache", "accept_licence"}
#: Scores by name, for each variant of one model.
Scores = Mapping[str, Mapping[str, float]]
#: Task, model and the store of scores in; the scores of every variant out.
Score = Callable[..., Scores]


def tasks_of(request: Request, public: sets.Tasks, simulated: sets.Tasks = sets.simulated) -> list[Task]:
    """The tasks on public data, or on simulated tissue instead, with cells whose positions are known."""
    return list((simulated if request.simulated else public)(request.data, 0))


def fitted(task: Task, config: Config, *, folder: Path) -> GEARS:
    """The model of this task and configuration, read from ``folder`` if it was fitted before."""
    path = folder / "models" / Store.key(task.fingerprint(), config.model_dump(mode="json"), __version__)
    if path.exists():
        return GEARS.load(path)
    model = GEARS(config).fit(list(task.slides), task.cells)
    model.save(path)
    return model


def network_inputs(model: GEARS, task: Task) -> tuple[CellFeatures, Network]:
    """The features of the task's cells, and the network as stage D calls it."""
    state, config = model.fitted_, model.config
    counts, missing, _ = validate_cells(task.cells, state.panel.genes, state.panel.weights)
    features = state.features(counts, config, missing=missing)
    steps = 0 if config.assembly.samples else config.assembly.steps
    return features, Network(state.network, config.assembly, steps=steps)


def readings(
    model: GEARS, task: Task, rows: NDArray[np.int64] | None = None
) -> dict[str, Callable[[], NDArray[Any]]]:
    """Ways to place the task's cells, or those at ``rows``, with one model: functions that give coordinates (n, 2).

    By the most similar spots alone, by the generators in one pass, by both, and as users get it. Where users get the result of
    the diffusion model, also the same without diffusion.
    """
    features, network = network_inputs(model, task)
    rows = np.arange(len(features)) if rows is None else rows
    x, ensemble, settings = features[rows], network.ensemble, model.config.assembly
    found: dict[str, Callable[[], NDArray[Any]]] = {}
    if x.embedding is not None:
        found["similar spots"] = partial(_by_spots, model, x.embedding)
    found["generators"] = lambda: layout(ensemble.generated(x[None]))
    if ensemble.nearest is not None:
        found["both"] = lambda: layout(ensemble(x[None]))
    if network.steps:
        plain = settings.model_copy(update={"steps": 0})
        found["without diffusion"] = lambda: model.reconstruct(task.cells, assembly=plain).coords[rows]
    found["as users get it"] = lambda: model.reconstruct(task.cells).coords[rows]
    return found


def layout(geometry: Tensor) -> NDArray[np.float64]:
    """Coordinates (n, 2) of one geometry (1, n, d)."""
    return canonical(geometry[0].double().numpy()).coords


def _by_spots(model: GEARS, z: Tensor) -> NDArray[Any]:
    """Places by similarity alone, to the spots that cells are moved towards, or to the slides' anchors."""
    state = model.fitted_
    if state.network.nearest is not None:
        return state.network.nearest(z[None])[0].double().numpy()
    known = [slide.features.embedding for slide in state.slides if slide.features.embedding is not None]
    return nearest_places(known, [slide.coords[slide.anchors] for slide in state.slides], z)


def over_seeds(
    tasks: Iterable[Task], score: Score, config: Config, *, seeds: int, folder: Path
) -> tuple[list[dict[str, Any]], dict[str, Mapping[str, list[float]]]]:
    """Fit each task with several seeds: the mean scores of every variant, and the training history of each task's first seed.

    Models and scores are kept in ``folder``, so that an interrupted experiment continues.
    """
    table: list[dict[str, Any]] = []
    histories: dict[str, Mapping[str, list[float]]] = {}
    for task in tasks:
        runs = []
        for seed in range(seeds):
            model = fitted(task, config.with_values([f"seed={seed}"]), folder=folder)
            histories.setdefault(task.name, model.history_)
            runs.append(score(task, model, store=Store(folder)))
        for name in runs[0]:
            each = [run[name] for run in runs]
            spread = float(np.std([row["spearman"] for row in each]))
            means = {key: float(np.mean([row[key] for row in each])) for key in each[0]}
            table.append({"set": task.name, "run": name, **means, "sd of spearman": spread})
    return table, histories
