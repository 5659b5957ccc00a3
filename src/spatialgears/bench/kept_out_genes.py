"""Genes that were kept out, read from placed cells: a measure of accuracy for dissociated cells, whose places nobody knows.

The genes that slide and cells share are split into folds. Cells are placed by the genes of the other folds. Each position of
the slide then gets the mean of the cells placed nearest to it, for every gene that was kept out, and that prediction is
correlated with the measurement over positions. Beside it stand the same reading from cells that our networks put at one
position each, balanced over the slide; from cells at their most similar position, at the mean of their twenty most similar
positions, from similarity alone, and from cells that peers place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from anndata import AnnData
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.model_selection import KFold

from spatialgears import datasets
from spatialgears.bench import sets
from spatialgears.bench.comparisons import line_of
from spatialgears.bench.files import TaskFiles
from spatialgears.bench.harness import Limits, run_one
from spatialgears.bench.methods import Method
from spatialgears.bench.one_position import balanced
from spatialgears.bench.presets import title
from spatialgears.bench.protocols import Task
from spatialgears.bench.request import Outcome, Request, Tell
from spatialgears.bench.store import Row, Store
from spatialgears.bench.tables import plain_table, seeds_of
from spatialgears.config import Config
from spatialgears.datasets import Tissue
from spatialgears.errors import RunError
from spatialgears.expression.normalise import log_normalise
from spatialgears.model import GEARS
from spatialgears.pipeline.gene_reading import NEAREST, correlations, nearest_cells, soft_mapping
from spatialgears.plotting import canvas, palette
from spatialgears.runtime.files import temporary_folder
from spatialgears.runtime.seeds import numpy_rng

FOLDS = 5  # of the shared genes
ALIKE = 20  # most similar positions whose mean is a reference
SHOWN = (0.95, 0.75, 0.5, 0.25)  # quantiles of the correlation at which genes are drawn
OURS = "placed cells"


def run(request: Request, tell: Tell) -> Outcome:
    """The table over folds and seeds, and measured beside predicted patterns of the first seed."""
    preset, peers = request.preset_and_peers("default")
    config = request.config(preset).with_values(["geometry.refiner=none"])  # no samples are looked at
    name, tissue = _tissue(request.data, request.simulated)
    store, table, of_peers = Store(request.out), [], list[Row]()
    by_gene, patterns = dict[str, float](), list[NDArray[Any]]()
    for fold, (genes, kept_out) in enumerate(folds(tissue)):
        for seed in range(request.seeds):
            seeded = config.with_values([f"seed={seed}"])
            row, predicted = _once(store, tissue, genes, kept_out, seeded)
            tell(f"fold {fold + 1}, seed {seed}: r {row['r'][OURS]:.3f}, check on cells {row['check']:.2f}")
            table.append({"fold": fold, "seed": seed, **row})
            if seed == 0:
                by_gene |= dict(zip(kept_out, row["by gene"], strict=True))
                patterns.append(predicted)
        for peer, seed in ((peer, seed) for peer in peers for seed in range(request.seeds)):
            if seed and not peer.seeded:
                continue
            if any(row["method"] == peer.name and row["status"] != "ok" for row in of_peers):
                continue  # one run says why
            parts = ("kept-out genes", name, list(kept_out), peer.identity(), *([seed] if seed else []))
            make = partial(by_peer, tissue, genes, kept_out, peer, request.limits, seed=seed)
            row = store.once(*parts, make=make)
            tell(f"  {line_of(row)}")
            of_peers.append(row)
    found = summary(table)
    shown = [{"read from": one, **figures} for one, figures in found.items()]
    text = (
        f"### kept-out-genes: {name}, {FOLDS} folds of {len(by_gene)} genes, {request.seeds} seeds, {title(preset, config)}\n\n"
        f"{plain_table(shown)}\n"
    )
    if of_peers:
        text += f"\n{plain_table(peer_summary(of_peers))}\n"
    figure = drawn(tissue.slides[0], by_gene, np.hstack(patterns))
    found_all = {"summary": found, "rows": table, "by gene": by_gene, "peers": of_peers}
    return Outcome(text, found_all, {"kept-out-genes": figure})


def folds(tissue: Tissue) -> list[tuple[list[str], list[str]]]:
    """Names of the genes to place by, and of those kept out, for each fold of the genes of slide and cells."""
    (slide,), there = tissue.slides, set(tissue.cells.var_names)
    shared = np.array([gene for gene in slide.var_names if gene in there])
    parts = KFold(FOLDS, shuffle=True, random_state=0).split(shared)
    return [(shared[seen].tolist(), shared[out].tolist()) for seen, out in parts]


def measured(
    tissue: Tissue, genes: Sequence[str], kept_out: Sequence[str], config: Config
) -> tuple[Row, NDArray[np.float32]]:
    """Correlations of kept-out genes with each reading, and the predictions (positions, genes) from placed cells."""
    (slide,), cells = tissue.slides, tissue.cells
    given = cells[:, ~cells.var_names.isin(kept_out)].copy()  # with the genes that the slide lacks
    model = GEARS(config).fit([slide[:, genes].copy()], given, normalised=not _counts(slide))
    placed = model.reconstruct(given)
    own, truth = expression(cells)[:, cells.var_names.get_indexer(kept_out)], _dense(slide[:, kept_out].X)
    positions = np.asarray(slide.obsm["spatial"], dtype=np.float64)
    read = partial(_read, values=own)
    predictions = {OURS: read(placed.coords, placed.slides[0])}
    if model.fitted_.network.nearest is not None:
        single = balanced(model).reconstruct(given)
        predictions["placed cells, balanced over single positions"] = read(single.coords, single.slides[0])
    predictions["cells shuffled"] = _read(
        placed.coords, placed.slides[0], values=numpy_rng(config.seed, "shuffled").permutation(own)
    )
    seen, shown = expression(cells[:, genes]), _dense(slide[:, genes].X)
    alike, a, b = similarity(shown, seen)  # (m, N)
    predictions["cells at their most similar position"] = read(positions[alike.argmax(0)], positions)
    most = np.argsort(-alike, axis=0, kind="stable")[:ALIKE]  # (20, N)
    predictions[f"cells at the mean of {ALIKE} similar positions"] = read(positions[most].mean(0), positions)
    predictions["direct mapping, no cell is placed"] = soft_mapping(alike, a, b) @ own
    r = {name: correlations(truth, one) for name, one in predictions.items()}
    check = model.fitted_.cell_check
    row = {
        "r": {name: float(one.mean()) for name, one in r.items()},
        "by gene": r[OURS].round(4).tolist(),
        "check": None if check is None else check.r,
    }
    return row, predictions[OURS].astype(np.float32)


def by_peer(
    tissue: Tissue,
    genes: Sequence[str],
    kept_out: Sequence[str],
    peer: Method,
    limits: Limits,
    *,
    seed: int = 0,
) -> Row:
    """The row of a peer that places the cells by ``genes``; its score is the mean correlation of the kept-out ones."""
    (slide,), cells = tissue.slides, tissue.cells
    own, truth = expression(cells)[:, cells.var_names.get_indexer(kept_out)], _dense(slide[:, kept_out].X)
    positions = np.asarray(slide.obsm["spatial"], dtype=np.float64)

    def score(coords: NDArray[Any]) -> dict[str, float]:
        return {"r": float(correlations(truth, _read(coords, positions, values=own)).mean())}

    task = Task("kept-out genes", kept_out[0], [slide[:, genes].copy()], cells[:, genes].copy(), score)
    with temporary_folder("kept-out-genes") as folder:
        row, _ = run_one(task, peer, TaskFiles(task, folder), seed=seed, limits=limits)
    if row["status"] == "killed":  # that says nothing about the method
        raise RunError(f"{peer.name} {row['reason']}.")
    return {"experiment": "kept-out-genes", **row}


def peer_summary(rows: Sequence[Row]) -> list[Row]:
    """Mean correlation of each peer over its folds and seeds, its spread over seeds, and why others are missing."""
    table = []
    for name in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == name]
        done = [row for row in own if row["status"] == "ok"]
        seeds = sorted({row["seed"] for row in done})
        means = [np.mean([row["metrics"]["r"] for row in done if row["seed"] == seed]) for seed in seeds]
        table.append(
            {
                "cells placed by": name,
                "mean r": float(np.mean(means)) if done else None,
                "sd over seeds": float(np.std(means)) if len(seeds) > 1 else None,
                "folds": len({row["task"] for row in done}),
                "seeds": seeds_of(done),
                "seconds": float(np.mean([row["seconds"] for row in done])) if done else None,
                "GB": max((row["peak_gb"] for row in done), default=None),
                "note": "; ".join(sorted({row["reason"] for row in own} - {""})),
            }
        )
    return table


def expression(cells: AnnData) -> NDArray[np.float32]:
    """Log-normalised expression (N, G) of cells, by the library of the genes given."""
    counts = sp.csr_matrix(cells.X)
    depth = np.asarray(counts.sum(1)).ravel()
    return _dense(log_normalise(counts, float(np.median(depth[depth > 0]))))


def similarity(
    slide: NDArray[Any], cells: NDArray[Any]
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Cosines (m, N) of positions and cells, each standardised by gene, and squared norms: one."""
    unit = []
    for x in (slide, cells):
        z = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)
        unit.append((z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12)).astype(np.float32))
    ones = [np.ones(len(x), np.float32) for x in unit]
    return unit[0] @ unit[1].T, ones[0], ones[1]


def summary(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Mean correlation of each reading over folds and seeds, and its spread over seeds."""
    found = {}
    for name in rows[0]["r"]:
        seeds = sorted({row["seed"] for row in rows})
        means = [np.mean([row["r"][name] for row in rows if row["seed"] == seed]) for seed in seeds]
        found[name] = {"mean r": float(np.mean(means)), "sd over seeds": float(np.std(means))}
    return found


def drawn(slide: AnnData, by_gene: Mapping[str, float], predicted: NDArray[Any]) -> Figure:
    """Kept-out genes as measured (above) and as read from placed cells (below), from well to poorly predicted.

    ``predicted`` (positions, genes) has its columns in the order of ``by_gene``.
    """
    names, r = list(by_gene), np.array(list(by_gene.values()))
    ranked = np.argsort(r)
    chosen = [int(ranked[round(q * (len(ranked) - 1))]) for q in SHOWN]
    figure = Figure(figsize=(2.6 * len(chosen), 2.9), layout="constrained")
    axes = figure.subplots(2, len(chosen), squeeze=False)
    coords = np.asarray(slide.obsm["spatial"], dtype=float)
    for column, gene in enumerate(chosen):
        pair = (_dense(slide[:, names[gene]].X)[:, 0], predicted[:, gene])
        for ax, values in zip(axes[:, column], pair, strict=True):
            low, high = palette.limits(values)
            size = 2 * canvas.point_size(ax, len(values))  # a map without gaps
            ax.scatter(
                *coords.T, c=values, s=size, cmap=palette.CONTINUOUS, vmin=low, vmax=high, linewidths=0
            )
            canvas.equal_aspect(ax)
            ax.set_axis_off()
        axes[0, column].set_title(f"{names[gene]}, measured", fontsize="medium").set_parse_math(False)
        axes[1, column].set_title(f"predicted, r = {r[gene]:.2f}", fontsize="medium")
    return figure


def _tissue(data: Path | None, simulated: bool) -> tuple[str, Tissue]:
    if simulated:
        return "simulated tissue", datasets.simulate_tissue(**sets.SIMULATED, seed=0)
    return "Drosophila", datasets.load("drosophila", data)


def _once(
    store: Store, tissue: Tissue, genes: Sequence[str], kept_out: Sequence[str], config: Config
) -> tuple[Row, NDArray[np.float32]]:
    """What :func:`measured` returns, kept in the store."""
    task = Task("kept-out genes", "", tissue.slides, tissue.cells, lambda _: {})
    key = store.key("kept-out genes", task.fingerprint(), list(kept_out), config.model_dump(mode="json"))
    row, arrays = store.load(key), store.arrays(key)
    if row is None or "predicted" not in arrays:
        row, predicted = measured(tissue, genes, kept_out, config)
        row, arrays = {"key": key, "experiment": "kept-out-genes", **row}, {"predicted": predicted}
        store.save(row, arrays)
    return row, arrays["predicted"]


def _read(
    coords: NDArray[Any], positions: NDArray[Any], *, values: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Mean values (m, G) of the ``NEAREST`` cells placed (N, 2) next to each position (m, 2)."""
    read: NDArray[np.float32] = nearest_cells(coords, positions, min(NEAREST, len(coords))) @ values
    return read


def _counts(slide: AnnData) -> bool:
    values = sp.csr_matrix(slide.X).data
    return bool((values == np.rint(values)).all())


def _dense(x: Any) -> NDArray[np.float32]:
    return np.asarray(x.toarray() if sp.issparse(x) else x, dtype=np.float32)
