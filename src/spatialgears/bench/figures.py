"""Figures of comparisons and of the embedding; each function returns a Figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from spatialgears import plotting
from spatialgears.bench.store import Row
from spatialgears.bench.tables import METRICS, TABLE1, summary

#: By kind of method.
COLORS = {"ours": "#0072B2", "other": "#009E73", "reference": "#666666", "peer": "#D55E00"}


def comparison(rows: Sequence[Row], *, columns: Sequence[str] = TABLE1) -> Figure:
    """One panel per metric, one dot per method with its spread over seeds; one row of panels per task."""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    columns = [name for name in columns if any(name in row["metrics"] for row in rows)]
    kinds = {row["method"]: row["kind"] for row in rows}
    height = 0.6 + 0.22 * len(kinds)
    figure = Figure(figsize=(2.0 + 1.7 * len(columns), height * len(tasks) + 0.4), layout="constrained")
    axes = figure.subplots(len(tasks), max(len(columns), 1), squeeze=False)
    for i, task in enumerate(tasks):
        group = [row for row in rows if row["task"] == task]
        names = list(dict.fromkeys(row["method"] for row in group if row["metrics"]))[::-1]
        for ax, metric in zip(axes[i], columns, strict=True):
            for y, name in enumerate(names):
                if name in (values := summary(group, metric)):
                    mean, spread = values[name]
                    ax.errorbar(mean, y, xerr=spread, fmt="o", ms=4, color=COLORS[kinds[name]])
            ax.set(title=METRICS[metric][0], yticks=range(len(names)), ylim=(-0.6, len(names) - 0.4))
            ax.set_yticklabels(names if metric == columns[0] else [], fontsize="small")
            ax.tick_params(axis="x", labelsize="x-small")
            ax.grid(alpha=0.3)
        axes[i][0].set_ylabel(task)
    return figure


def sweep(
    rows: Sequence[Row], parameter: str, *, columns: Sequence[str] = ("spearman", "edge_auc", "trust", "swd")
) -> Figure:
    """Metrics against the varied property, one line per method with its spread."""
    rows = [row for row in rows if parameter in row["setting"] and row["metrics"]]
    figure = Figure(figsize=(3.2 * len(columns), 3.2), layout="constrained")
    for ax, metric in zip(figure.subplots(1, len(columns), squeeze=False)[0], columns, strict=True):
        for name in dict.fromkeys(row["method"] for row in rows):
            values = sorted({row["setting"][parameter] for row in rows})
            groups = [[row for row in rows if row["setting"][parameter] == value] for value in values]
            found = [summary(group, metric).get(name, (np.nan, 0)) for group in groups]
            mean, spread = zip(*found, strict=True)
            ax.errorbar(values, mean, yerr=spread, marker="o", ms=4, label=name)
        ax.set(xlabel=parameter.replace("_", " "), title=METRICS[metric][0])
        ax.grid(alpha=0.3)
    ax.legend(fontsize="x-small")
    return figure


def diagnostics(layouts: Mapping[str, np.ndarray], truth: np.ndarray) -> Figure:
    """Calibration error, multiscale local RMSE and edge ROC of layouts (the paper's figure 5)."""
    figure = Figure(figsize=(14, 4.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    plotting.calibration_error(layouts, truth, ax=left)
    plotting.local_rmse(layouts, truth, ax=middle)
    plotting.edge_roc(layouts, truth, ax=right)
    return figure


def embedding(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Position in stage A's embedding, and mixing of sources before it and in it (the paper's figure 7)."""
    panels = (
        ("Spearman of distances, kNN", {"reference": "reference", "embedding": "spearman"}),
        ("neighbour entropy", {"log-normalised PCA": "entropy_before", "embedding": "entropy"}),
        ("iLISI", {"log-normalised PCA": "ilisi_before", "embedding": "ilisi"}),
    )
    figure = Figure(figsize=(max(11, 1.2 * len(rows)), 3.4), layout="constrained")
    names = [row["set"] if row.get("variant", "default") == "default" else row["variant"] for row in rows]
    x = np.arange(len(rows))
    for ax, (title, bars) in zip(figure.subplots(1, 3), panels, strict=True):
        for i, (label, key) in enumerate(bars.items()):
            ax.bar(x + 0.4 * i - 0.2, [row[key] for row in rows], 0.38, label=label)
        ax.set_xticks(x, names, rotation=20 if len(rows) < 6 else 90)
        ax.set(title=title, ylim=(0, 1))
        ax.legend(fontsize="small")
    return figure


def before_after(found: Mapping[str, Mapping[str, np.ndarray]]) -> Figure:
    """Principal components of expression and of the embedding, coloured by source (the paper's figure 7)."""
    shown = {name: arrays for name, arrays in found.items() if arrays}
    figure = Figure(figsize=(7, 3.4 * max(1, len(shown))), layout="constrained")
    for ax, (name, arrays) in zip(
        figure.subplots(max(1, len(shown)), 1, squeeze=False)[:, 0], shown.items(), strict=False
    ):
        source = arrays["source"].astype(int)
        labels = np.where(source == source.max(), "cells", np.char.add("slide ", (source + 1).astype(str)))
        plotting.embedding_before_after(arrays["before"], arrays["after"], labels, title=name, ax=ax)
    return figure


def calibration(found: Mapping[str, tuple[Mapping[str, np.ndarray], np.ndarray]]) -> Figure:
    """Nominal against observed coverage of radii, one panel per run; arrays as the worker writes them, and truth."""
    figure = Figure(figsize=(4.6 * len(found), 4.4), layout="constrained")
    axes = figure.subplots(1, len(found), squeeze=False)[0]
    for ax, (name, (arrays, truth)) in zip(axes, found.items(), strict=True):
        radii = {
            float(level): times * arrays["radius90"]
            for level, times in arrays.get("levels", np.empty((0, 2)))
        }
        radii |= {0.5: arrays["radius50"], 0.9: arrays["radius90"]}
        plotting.coverage(arrays["coords"], truth, radii=radii, title=name, ax=ax)
    return figure


def layouts(found: Mapping[str, np.ndarray], truth: np.ndarray, color: np.ndarray | None = None) -> Figure:
    """The truth beside each layout, and where the layout distorts distances (the paper's figure 2)."""
    figure = Figure(figsize=(9, 3.2 * len(found)), layout="constrained")
    for axes, (name, coords) in zip(
        figure.subplots(len(found), 2, squeeze=False), found.items(), strict=True
    ):
        plotting.truth_vs_prediction(coords, truth, color=color, legend=False, title=name, ax=axes[0])
        plotting.distortion(coords, truth, ax=axes[1])
    return figure
