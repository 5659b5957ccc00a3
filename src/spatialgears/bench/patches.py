"""How much patches matter: their size (the paper's figure 6) and reliability weights (its Table 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import spearmanr

from spatialgears.assembly.assemble import Assembly, assemble
from spatialgears.assembly.distances import pair_distances
from spatialgears.assembly.measure import Geometry
from spatialgears.bench import sets
from spatialgears.bench.fitted import ONE_PRESET, fitted, network_inputs, tasks_of
from spatialgears.bench.presets import title
from spatialgears.bench.request import Experiment, Outcome, Request, Tell
from spatialgears.bench.tables import plain_table
from spatialgears.config import AssemblyConfig
from spatialgears.geometry.features import FeatureRows
from spatialgears.metrics import evaluate
from spatialgears.pipeline.place import locality_space
from spatialgears.runtime.seeds import numpy_rng
from spatialgears.runtime.threads import threads

SIZES = (384, 512, 784, 1024, 2048, 4096)
N_CELLS, PAIRS = 4096, 200_000
SCORES = ("spearman", "stress1", "edge_auc", "bap", "trust", "cont", "local_stress")
STITCHING = ("disagreement", "residual_mean", "edges", "patches")


def patch_size(
    features: FeatureRows,
    geometry: Geometry,
    truth: NDArray[Any],
    *,
    config: AssemblyConfig,
    locality: NDArray[Any] | None = None,
    sizes: Sequence[int] = SIZES,
    n_cells: int = N_CELLS,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Place the same random cells through patches of each size: scores, and how well patches agree.

    ``locality`` (N, h) is the space of the locality graph. One row per size and one for a pass over all cells.
    ``agreement`` is the Spearman correlation of a row's distances with those of the one pass.
    """
    some, true, space = _some(features, truth, locality, n_cells=n_cells, seed=seed)
    whole = assemble(some, geometry, config.model_copy(update={"mode": "one-shot"}), seed=seed)
    rows: list[dict[str, Any]] = []
    for size in sizes:
        options = {"mode": "patches", "patch_size": min(size, len(true))}
        found = assemble(some, geometry, config.model_copy(update=options), locality=space, seed=seed)
        rows.append({"run": f"patches of {size}", **_row(found, true, whole, seed=seed)})
    return [*rows, {"run": "one pass", **_row(whole, true, whole, seed=seed)}]


def stitching(
    features: FeatureRows,
    geometry: Geometry,
    truth: NDArray[Any],
    *,
    config: AssemblyConfig,
    locality: NDArray[Any] | None = None,
    size: int = 1024,
    n_cells: int = N_CELLS,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Patches weighted by reliability against equal weights, everything else equal, and the change in percent."""
    some, true, space = _some(features, truth, locality, n_cells=n_cells, seed=seed)
    whole = assemble(some, geometry, config.model_copy(update={"mode": "one-shot"}), seed=seed)
    rows: list[dict[str, Any]] = []
    for name, weighted in (("weighted", True), ("uniform", False)):
        options = {"mode": "patches", "patch_size": min(size, len(true)), "reliability": weighted}
        found = assemble(some, geometry, config.model_copy(update=options), locality=space, seed=seed)
        rows.append({"run": name, **_row(found, true, whole, seed=seed)})
    first, second = rows
    change = {key: 100 * (second[key] / first[key] - 1) for key in first if key != "run" and first[key]}
    return [first, second, {"run": "change, %", **change}]


def agreement(first: NDArray[Any], second: NDArray[Any], *, seed: int = 0) -> float:
    """Spearman correlation between the distances of two layouts of the same cells, over random pairs."""
    pairs = numpy_rng(seed, "pairs").integers(len(first), size=(PAIRS, 2))
    return float(spearmanr(pair_distances(first, pairs), pair_distances(second, pairs)).statistic)


def draw(rows: Sequence[dict[str, Any]]) -> Figure:
    """Scores on the left, how well patches agree on the right, one point per run."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    runs = [row for row in rows if "change" not in row["run"]]
    x = np.arange(len(runs))
    groups = (
        (left, ("spearman", "edge_auc", "trust", "cont", "stress1"), "score"),
        (right, ("disagreement", "residual_mean"), "in log distance, and in RMS radii"),
    )
    for ax, names, label in groups:
        for name in names:
            shown = (ax is left or row["patches"] for row in runs)  # one pass has no patches to disagree
            values = [row[name] if one else np.nan for row, one in zip(runs, shown, strict=True)]
            ax.plot(x, values, marker="o", label=name.replace("_", " "))
        ax.set_xticks(x, [row["run"].replace("patches of ", "") for row in runs], rotation=30)
        ax.set(ylabel=label)
        ax.grid(alpha=0.3)
        ax.legend(fontsize="small")
    return figure


def experiment(name: str, answers: str, measure: Callable[..., list[dict[str, Any]]]) -> Experiment:
    """One of the two experiments: fit one model, then assemble its cells in several ways."""

    def run(request: Request, tell: Tell) -> Outcome:
        preset = request.preset()
        config = request.config(preset).with_values(["seed=0"])  # the model of `refiner` and its first seed
        (task,) = tasks_of(request, sets.MOUSE_ATLAS)
        model = fitted(task, config, folder=request.out)
        features, network = network_inputs(model, task)
        with threads(config.threads):
            rows = measure(
                features,
                network,
                task.truth,
                config=config.assembly,
                locality=locality_space(features, config),
                seed=config.seed,
            )
        text = f"### {name}: {task.name}, {title(preset, config)}\n\n{plain_table(rows)}\n"
        return Outcome(text, rows, {name: draw(rows)})

    return Experiment(answers, ONE_PRESET, run)


def _some(
    features: FeatureRows, truth: NDArray[Any], locality: NDArray[Any] | None, *, n_cells: int, seed: int
) -> tuple[FeatureRows, NDArray[Any], NDArray[Any] | None]:
    """Random cells, their true positions, and where they are in the space of the locality graph."""
    chosen = np.sort(numpy_rng(seed, "cells").permutation(len(features))[:n_cells])
    return features[chosen], truth[chosen], None if locality is None else locality[chosen]


def _row(found: Assembly, truth: NDArray[Any], whole: Assembly, *, seed: int) -> dict[str, float]:
    scores = evaluate(found.coords, truth)
    row = {name: float(scores[name]) for name in SCORES}
    row |= {name: float(found.diagnostics.get(name, 0)) for name in STITCHING}
    row["seconds"] = sum(found.profile.values())
    return row | {"agreement": agreement(found.coords, whole.coords, seed=seed)}
