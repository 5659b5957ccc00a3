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
from spatialgears.bench.harness import Limits
from spatialgears.bench.imputation import direct_weights
from spatialgears.bench.mappings import mapped, shares
from spatialgears.bench.methods import PeerMethod
from spatialgears.bench.presets import title
from spatialgears.bench.references import embedded
from spatialgears.bench.request import Outcome, Request, Tell
from spatialgears.bench.store import Row, Store
from spatialgears.bench.tables import plain_table
from spatialgears.config import Config
from spatialgears.model import GEARS
from spatialgears.runtime.seeds import numpy_rng

OURS = "spatialgears"
BINS = 10  # of the probability, in which it is compared with the accuracy
NEIGHBORS = 15  # spots that vote for a label
CELLS = 30  # cells that a spot is read from
MOST = 500  # cells that are labelled, drawn at random: peers take minutes


@dataclass(frozen=True, eq=False)
class Labelled:
    """Slides with labels of spots, and cells whose true label (n,) is known; missing where it is not."""

    name: str
    slides: Sequence[AnnData]
    cells: AnnData
    key: str
    truth: pd.Series

    @property
    def labels(self) -> tuple[list[str], list[NDArray[np.float64]]]:
        """Names of the labels, and for each slide (spots, labels) one where a spot has the label."""
        names = sorted(set().union(*(one.obs[self.key].dropna().astype(str) for one in self.slides)))
        columns = [pd.get_dummies(one.obs[self.key].astype(str)) for one in self.slides]
        return names, [one.reindex(columns=names, fill_value=0).to_numpy(float) for one in columns]

    @property
    def known(self) -> tuple[NDArray[np.bool_], NDArray[Any]]:
        """(n,) cells whose label is known, and the labels of these."""
        known = self.truth.notna().to_numpy()
        return known, self.truth.astype(str).to_numpy()[known]


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
    some = np.sort(numpy_rng(0, "labelled").permutation(cortex.cells.n_obs)[:MOST])
    name = f"DLPFC 151673 + 151674 → {MOST:,} spots of 151675"
    yield Labelled(
        name, cortex.slides, cortex.cells[some].copy(), "layer", cortex.truth.obs["layer"].iloc[some]
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
    preset, peers = request.preset_and_peers("quick")
    config = request.config(preset).with_values(["assembly.samples=0"])  # no samples are looked at
    store, parts = Store(request.out), dict[str, list[Row]]()
    for task in (simulated if request.simulated else public)(request.data):
        if request.task and not any(text in task.name for text in request.task):
            continue
        of_cells = isinstance(task, Labelled)
        made = (
            partial(labels, task, config)
            if isinstance(task, Labelled)
            else partial(composition, task, config)
        )
        rows = store.once("transfer", task.name, config.model_dump(mode="json"), make=made)["rows"]
        for peer in peers:
            made = partial(by_peer, task, peer, request.limits)
            rows += store.once("transfer", task.name, peer.identity(), make=made)["rows"]
        for row in rows:
            tell(" ".join(str(value) for value in row.values()))
        parts.setdefault("labels of cells" if of_cells else "cell types per spot", []).extend(rows)
    text = "\n".join(
        f"### transfer: {heading}, {title(preset, config)}\n\n{plain_table(_aligned(rows))}\n"
        for heading, rows in parts.items()
    )
    return Outcome(text, parts)


def _aligned(rows: Sequence[Row]) -> list[Row]:
    """Rows that all have the same columns."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in names} for row in rows]


def by_peer(task: Labelled | Composed, peer: PeerMethod, limits: Limits) -> Row:
    """The score of a peer, by its mapping of cells to spots; none, with the reason, if it failed."""
    slides = task.slides if isinstance(task, Labelled) else [task.slide]
    types = None if isinstance(task, Labelled) else task.key
    found, used = mapped(peer, slides, task.cells, limits, types=types)
    weights = found.get("mapping")
    row: Row = {"set": task.name, "method": peer.name}
    if weights is None:
        row["note"] = used["reason"]
    elif isinstance(task, Labelled):
        names, given = task.labels
        row |= judged(shares(weights, 1) @ np.vstack(given), *task.known, names)
    else:
        kinds = pd.get_dummies(task.cells.obs[task.key].astype(str))
        truth = task.truth.reindex(columns=kinds.columns, fill_value=0).to_numpy(float)
        row |= compared(weights.T @ kinds.to_numpy(float), truth)
    return {"rows": [row | {"seconds": used.get("seconds")}]}


def placed(slides: Sequence[AnnData], cells: AnnData, config: Config) -> AnnData:
    """The cells with places from a model that was fitted on the slides."""
    model = GEARS(config).fit(list(slides), cells)
    found: AnnData = model.reconstruct(cells).to_adata(cells, copy=True)
    return found


def labels(task: Labelled, config: Config) -> Row:
    """Labels of the cells by every method."""
    cells = placed(task.slides, task.cells, config)
    names, given = task.labels
    keys = (
        ["X_gears_slide"]
        if len(task.slides) == 1
        else [f"X_gears_slide{i + 1}" for i in range(len(task.slides))]
    )
    analysis.transfer(cells, task.slides, task.key, basis=keys, key_added="label")
    known, true = task.known
    found = {f"{OURS}: transfer": cells.obsm["label"].reindex(columns=names, fill_value=0).to_numpy()}
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
        {"set": task.name, "method": name, **judged(table, known, true, names)}
        for name, table in found.items()
    ]
    labelled = (cells.obs["label"] != "none").to_numpy()[known]
    right = cells.obs["label"].astype(str).to_numpy()[known] == true
    rows[0] |= {"labelled": float(labelled.mean()), "accuracy of these": float(right[labelled].mean())}
    return {"rows": rows}


def judged(
    table: NDArray[Any], known: NDArray[np.bool_], true: NDArray[Any], names: Sequence[str]
) -> dict[str, float]:
    """Accuracy, adjusted Rand index, mean probability, and its mean distance from the accuracy in bins (calibration)."""
    table = table[known]
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
