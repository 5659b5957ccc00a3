"""The paper's two experiments on stitching: patch size (figure 5) and reliability weights (table 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from spatialgears.assembly.assemble import Assembly, assemble
from spatialgears.assembly.distances import pair_distances
from spatialgears.assembly.measure import Geometry
from spatialgears.config import AssemblyConfig
from spatialgears.geometry.features import FeatureRows
from spatialgears.metrics import evaluate
from spatialgears.runtime.seeds import numpy_rng

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
    sizes: Sequence[int] = SIZES,
    n_cells: int = N_CELLS,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Assemble the same random cells from patches of each size: scores, and how well patches agree.

    Returns
    -------
    One row per size and one for a pass over all cells, with the Spearman correlation between its distances
    and the row's (``agreement``).
    """
    chosen = np.sort(numpy_rng(seed, "cells").permutation(len(features))[:n_cells])
    some, true = features[chosen], truth[chosen]
    whole = assemble(some, geometry, config.model_copy(update={"mode": "one-shot"}), seed=seed)
    rows: list[dict[str, Any]] = []
    for size in sizes:
        options = {"mode": "patches", "patch_size": min(size, len(chosen))}
        found = assemble(some, geometry, config.model_copy(update=options), seed=seed)
        rows.append({"run": f"patches of {size}", **_row(found, true, whole, seed=seed)})
    return [*rows, {"run": "one pass", **_row(whole, true, whole, seed=seed)}]


def stitching(
    features: FeatureRows,
    geometry: Geometry,
    truth: NDArray[Any],
    *,
    config: AssemblyConfig,
    size: int = 1024,
    n_cells: int = N_CELLS,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Reliability-weighted against uniform stitching, everything else the same, and the change in percent."""
    chosen = np.sort(numpy_rng(seed, "cells").permutation(len(features))[:n_cells])
    some, true = features[chosen], truth[chosen]
    whole = assemble(some, geometry, config.model_copy(update={"mode": "one-shot"}), seed=seed)
    rows: list[dict[str, Any]] = []
    for name, weighted in (("weighted", True), ("uniform", False)):
        options = {"mode": "patches", "patch_size": min(size, len(chosen)), "reliability": weighted}
        found = assemble(some, geometry, config.model_copy(update=options), seed=seed)
        rows.append({"run": name, **_row(found, true, whole, seed=seed)})
    first, second = rows
    change = {key: 100 * (second[key] / first[key] - 1) for key in first if key != "run" and first[key]}
    return [first, second, {"run": "change, %", **change}]


def agreement(first: NDArray[Any], second: NDArray[Any], *, seed: int = 0) -> float:
    """Spearman correlation between the distances of two layouts of the same cells, over random pairs."""
    pairs = numpy_rng(seed, "pairs").integers(len(first), size=(PAIRS, 2))
    return float(spearmanr(pair_distances(first, pairs), pair_distances(second, pairs)).statistic)


def as_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as Markdown, columns in the order of the first row."""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for row in rows:
        values = (row.get(name, "–") for name in names)
        shown = (f"{value:.4g}" if isinstance(value, float) else f"{value}" for value in values)
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines)


def _row(found: Assembly, truth: NDArray[Any], whole: Assembly, *, seed: int) -> dict[str, float]:
    scores = evaluate(found.coords, truth)
    row = {name: float(scores[name]) for name in SCORES}
    row |= {name: float(found.diagnostics.get(name, 0)) for name in STITCHING}
    row["seconds"] = sum(found.profile.values())
    return row | {"agreement": agreement(found.coords, whole.coords, seed=seed)}
