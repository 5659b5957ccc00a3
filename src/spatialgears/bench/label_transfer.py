"""What is known of spots, transferred to cells, and what is known of cells, counted in spots; beside simple references.

Layers of a section are predicted from two others, whose layers are known: accuracy, adjusted Rand index and calibration. Cell
types per spot are compared with the true composition: Jensen-Shannon divergence and RMSE. Rows are kept in the output folder,
so that an interrupted experiment continues.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import nnls
from scipy.spatial import KDTree
from scipy.special import rel_entr
from sklearn.metrics import adjusted_rand_score
from sklearn.neighbors import NearestNeighbors

from spatialgears import analysis, datasets
from spatialgears.bench import sets
from spatialgears.bench.imputation import direct_weights
from spatialgears.bench.presets import title
from spatialgears.bench.references import embedded
from spatialgears.bench.request import Outcome, Request, Tell
from spatialgears.bench.store import Row, Store
from spatialgears.bench.tables import plain_table
from spatialgears.config import Config
from spatialgears.model import GEARS

OURS = "spatialgears"
BINS = 10  # of the probability, in which it is compared with the accuracy
NEIGHBORS = 15  # spots that vote for a label
CELLS = 30  # cells that a spot is read from


@dataclass(frozen=True, eq=False)
class Labelled:
    """Slides with labels of spots, and cells whose true label (n,) is known; missing where it is not."""

    name: str
    slides: Sequence[AnnData]
    cells: AnnData
    key: str
    truth: pd.Series


@dataclass(frozen=True, eq=False)
class Composed:
    """A slide whose composition (spots, types) is known, and cells with types."""

    name: str
    slide: AnnData
    cells: AnnData
    key: str
    truth: pd.DataFrame


def public(root: Path | None) -> Iterator[Labelled | Composed]:
    """Layers of the cortex from two sections of it; composition of the spots of Mouse Atlas."""
    atlas = datasets.load("mouse_atlas", root)
    (slide,) = atlas.slides
    known = slide.obsm["celltype_proportions"]
    known = known.rename(columns={name: name.replace("|", "/") for name in known.columns})
    yield Composed("Mouse Atlas", slide, atlas.cells, "cell_type", known)
    cortex = datasets.load("dlpfc", root)
    yield Labelled(
        "DLPFC 151673 + 151674 → 151675", cortex.slides, cortex.cells, "layer", cortex.truth.obs["layer"]
    )


def simulated(_: Path | None) -> Iterator[Labelled | Composed]:
    """Simulated tissue: domains of cells from spots, and types of cells summed into spots."""
    for shift in (0.0, sets.STRONG_SHIFT):
        tissue = datasets.simulate_tissue(seed=0, shift=shift, **sets.SIMULATED)
        name = f"simulated, shift {shift:g}"
        yield Labelled(name, tissue.slides, tissue.cells, "domain", tissue.truth.obs["domain"])
    tissue = datasets.simulate_tissue(seed=0, **sets.SIMULATED)
    cells = tissue.cells.copy()
    cells.obsm["spatial"] = tissue.truth.obsm["spatial"]
    slide = datasets.pseudo_visium(cells, grid=(14, 10), spot_fraction=0.8)
    distance, spot = KDTree(slide.obsm["spatial"]).query(cells.obsm["spatial"])
    near = distance <= np.median(KDTree(slide.obsm["spatial"]).query(slide.obsm["spatial"], k=2)[0][:, 1]) / 2
    truth = pd.crosstab(spot[near], tissue.cells.obs["cell_type"].to_numpy()[near], normalize="index")
    slide = slide[truth.index.to_numpy()].copy()
    yield Composed("simulated spots", slide, tissue.cells, "cell_type", truth)


def run(request: Request, tell: Tell) -> Outcome:
    """Tables of labels and of composition."""
    preset = request.preset("quick")
    config = request.config(preset).with_values(["assembly.samples=0"])  # no samples are looked at
    store, parts = Store(request.out), dict[str, list[Row]]()
    for task in (simulated if request.simulated else public)(request.data):
        if request.task and not any(text in task.name for text in request.task):
            continue
        made = (
            partial(labels, task, config)
            if isinstance(task, Labelled)
            else partial(composition, task, config)
        )
        row = store.once("transfer", task.name, config.model_dump(mode="json"), make=made)
        tell(f"{task.name}: {row['rows'][0]}")
        heading = "labels of cells" if isinstance(task, Labelled) else "cell types per spot"
        parts.setdefault(heading, []).extend(row["rows"])
    text = "\n".join(
        f"### transfer: {heading}, {title(preset, config)}\n\n{plain_table(rows)}\n"
        for heading, rows in parts.items()
    )
    return Outcome(text, parts)


def placed(slides: Sequence[AnnData], cells: AnnData, config: Config) -> AnnData:
    """The cells with places from a model that was fitted on the slides."""
    model = GEARS(config).fit(list(slides), cells)
    found: AnnData = model.reconstruct(cells).to_adata(cells, copy=True)
    return found


def labels(task: Labelled, config: Config) -> Row:
    """Labels of the cells by every method."""
    cells = placed(task.slides, task.cells, config)
    names = sorted(set().union(*(one.obs[task.key].dropna().astype(str) for one in task.slides)))
    keys = (
        ["X_gears_slide"]
        if len(task.slides) == 1
        else [f"X_gears_slide{i + 1}" for i in range(len(task.slides))]
    )
    given = [
        pd.get_dummies(one.obs[task.key].astype(str)).reindex(columns=names, fill_value=0).to_numpy(float)
        for one in task.slides
    ]
    analysis.transfer(cells, task.slides, task.key, basis=keys)
    known = task.truth.notna().to_numpy()
    true = task.truth.astype(str).to_numpy()[known]
    found = {
        f"{OURS}: transfer": cells.obsm[f"gears_{task.key}"].reindex(columns=names, fill_value=0).to_numpy()
    }
    by_place = [
        label[KDTree(one.obsm["spatial"]).query(cells.obsm[key], k=NEIGHBORS)[1]].mean(1)
        for key, one, label in zip(keys, task.slides, given, strict=True)
    ]
    found["nearest spots by place"] = np.mean(by_place, axis=0)
    spots, _, query = embedded(task.slides, task.cells)
    index = [
        NearestNeighbors(n_neighbors=NEIGHBORS, metric="cosine")
        .fit(one)
        .kneighbors(query, return_distance=False)
        for one in spots
    ]
    found["kNN"] = np.mean([label[near].mean(1) for near, label in zip(index, given, strict=True)], axis=0)
    mapped = [
        direct_weights(one, task.cells, by_cell=True).T @ label
        for one, label in zip(task.slides, given, strict=True)
    ]
    found["direct mapping"] = np.mean(mapped, axis=0)
    rows = [
        {"set": task.name, "method": name, **judged(table[known], true, names)}
        for name, table in found.items()
    ]
    labelled = (cells.obs[f"gears_{task.key}"] != "none").to_numpy()[known]
    right = cells.obs[f"gears_{task.key}"].astype(str).to_numpy()[known] == true
    rows[0] |= {"labelled": float(labelled.mean()), "accuracy of these": float(right[labelled].mean())}
    return {
        "rows": [
            {**row, "labelled": row.get("labelled"), "accuracy of these": row.get("accuracy of these")}
            for row in rows
        ]
    }


def judged(table: NDArray[Any], true: NDArray[Any], names: Sequence[str]) -> dict[str, float]:
    """Accuracy, adjusted Rand index, mean probability, and its mean distance from the accuracy in bins (calibration)."""
    best = np.asarray(names)[table.argmax(1)]
    right, probability = best == true, table.max(1)
    part = np.minimum((probability * BINS).astype(int), BINS - 1)
    gaps = [
        abs(probability[part == i].mean() - right[part == i].mean()) * (part == i).mean()
        for i in np.unique(part)
    ]
    return {
        "accuracy": float(right.mean()),
        "ARI": float(adjusted_rand_score(true, best)),
        "mean probability": float(probability.mean()),
        "calibration error": float(sum(gaps)),
    }


def composition(task: Composed, config: Config) -> Row:
    """Cell types per spot by every method."""
    cells = placed([task.slide], task.cells, config)
    kinds = pd.get_dummies(cells.obs[task.key].astype(str))
    names, values = list(kinds.columns), kinds.to_numpy(float)
    truth = task.truth.reindex(columns=names, fill_value=0).to_numpy(float)
    options = {"key": task.key, "basis": "X_gears_slide"}
    counted = analysis.abundance(cells, task.slide, **options)  # type: ignore[arg-type]
    found = {f"{OURS}: abundance": counted[:, names].layers["proportion"]}
    found["likeness alone"] = analysis.abundance(cells, task.slide, key=task.key, place=0)[:, names].layers[
        "proportion"
    ]
    spots = np.asarray(task.slide.obsm["spatial"], dtype=float)
    found["nearest placed cells"] = values[KDTree(cells.obsm["X_gears_slide"]).query(spots, k=CELLS)[1]].mean(
        1
    )
    (known,), _, query = embedded([task.slide], task.cells)
    found["kNN"] = values[
        NearestNeighbors(n_neighbors=CELLS, metric="cosine")
        .fit(query)
        .kneighbors(known, return_distance=False)
    ].mean(1)
    found["direct mapping"] = direct_weights(task.slide, task.cells) @ values
    found["NNLS of mean profiles"] = least_squares(task.slide, task.cells, values)
    found["composition of all cells"] = np.broadcast_to(values.mean(0), truth.shape)
    return {
        "rows": [
            {"set": task.name, "method": name, **compared(table, truth)} for name, table in found.items()
        ]
    }


def compared(table: NDArray[Any], truth: NDArray[Any]) -> dict[str, float]:
    """Mean Jensen-Shannon divergence (bits) over spots, and RMSE over spots and types."""
    share = np.asarray(table, dtype=float) + 1e-12
    share /= share.sum(1, keepdims=True)
    middle = (share + truth) / 2
    apart = (rel_entr(share, middle) + rel_entr(truth, middle)).sum(1) / (2 * np.log(2))
    return {"JSD": float(apart.mean()), "RMSE": float(np.sqrt(np.mean(np.square(share - truth))))}


def least_squares(slide: AnnData, cells: AnnData, values: NDArray[Any]) -> NDArray[Any]:
    """Non-negative least squares of each spot's counts on the mean profiles of the types."""
    genes = [gene for gene in slide.var_names if gene in set(cells.var_names)]
    means = values.T @ sparse.csr_matrix(cells[:, genes].X) / values.sum(0)[:, None]
    scale = 1 / np.sqrt(means.mean(0) + 1e-3)
    found = np.array([nnls((means * scale).T, spot)[0] for spot in slide[:, genes].X.toarray() * scale])
    return found / np.maximum(found.sum(1, keepdims=True), 1e-12)
