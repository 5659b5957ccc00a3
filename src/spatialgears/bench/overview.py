"""All comparisons of a folder on one page: ``gears bench tables``, and two pictures of all methods on all data sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from spatialgears.bench.figures import COLORS
from spatialgears.bench.request import Outcome, Request, Tell
from spatialgears.bench.store import Row, Store
from spatialgears.bench.tables import standing, summary, tables
from spatialgears.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INTRODUCTION = """# Tables of the benchmark

Mean over seeds ± standard deviation. Each seed of simulated tissue is another tissue: its ± is the spread over tissues,
and methods are compared tissue by tissue. `gears bench tables -o FOLDER` writes this page from the rows in a folder."""
#: What a method without a score shows instead, by the status of its rows.
NO_SCORE = {"timeout": "too\nslow", "memory": "too\nlarge", "unavailable": "not\nrun"}
#: Panels of the second picture: the tasks with the most methods.
PANELS = 6


def run(request: Request, tell: Tell) -> Outcome:
    """The tables of all comparisons whose rows are in the output folder, and pictures of those with Spearman."""
    rows = [row for row in Store(request.out).rows() if "method" in row and "experiment" not in row]
    if not rows:
        raise InputError(
            f"{request.out} holds no rows of a comparison.",
            "Give the output folder of a benchmark with --output.",
        )
    rows.sort(key=lambda row: (row["protocol"], row["task"]))
    parts = [INTRODUCTION, "## Where GEARS stands, by Spearman", standing(rows), "## By task", tables(rows)]
    shown = _shown(rows)
    pictures = {"overview": overview(shown), "time": time_and_accuracy(shown)} if shown else {}
    return Outcome("\n\n".join(parts), rows, pictures)


def _shown(rows: Sequence[Row]) -> list[Row]:
    """The rows of tasks that are scored by Spearman, without variants of our own method."""
    scored = {row["task"] for row in rows if "spearman" in row["metrics"]}
    variant = (": ", ", ")
    return [
        row
        for row in rows
        if row["task"] in scored and not (row["kind"] == "ours" and any(x in row["method"] for x in variant))
    ]


def overview(rows: Sequence[Row]) -> Figure:
    """Spearman (and its spread over seeds) of every method on every task, best method first; bold: the best of a task.

    Methods are ordered by the share of other methods that they beat, averaged over tasks. Those that see true positions
    are never the best.
    """
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    kinds = {row["method"]: row["kind"] for row in rows}
    ceilings = {row["method"] for row in rows if row["sees_truth"]}
    found = {task: summary([row for row in rows if row["task"] == task], "spearman") for task in tasks}
    beaten = {
        name: [
            float(np.mean([values[name][0] > other for other, _ in values.values()]))
            for values in found.values()
            if name in values
        ]
        for name in kinds
    }
    names = sorted(kinds, key=lambda name: -np.mean(beaten[name] or [-1.0]))
    scores = np.array([[found[task].get(name, (np.nan, 0.0))[0] for task in tasks] for name in names])
    figure = Figure(figsize=(2.4 + 0.72 * len(tasks), 1.9 + 0.36 * len(names)), layout="constrained")
    ax = figure.subplots()
    ax.imshow(np.ma.masked_invalid(scores), aspect="auto", cmap="YlGnBu", vmin=0, vmax=1.25)
    for j, task in enumerate(tasks):
        fair = [values[0] for name, values in found[task].items() if name not in ceilings]
        for i, name in enumerate(names):
            if name in found[task]:
                mean, spread = found[task][name]
                text = f"{round(mean, 2) + 0.0:.2f}" + (f"\n± {spread:.2f}" if spread else "")
                weight = "bold" if name not in ceilings and mean == max(fair) else "normal"
                ax.text(j, i, text, ha="center", va="center", fontsize=7, weight=weight)
            elif failed := [row for row in rows if row["task"] == task and row["method"] == name]:
                text = NO_SCORE.get(failed[0]["status"], "failed")
                ax.text(j, i, text, ha="center", va="center", fontsize=6, color="0.5")
    ax.set_xticks(range(len(tasks)), tasks, rotation=40, ha="right", fontsize=8)
    labels = [f"{name} (sees the truth)" if name in ceilings else name for name in names]
    ax.set_yticks(range(len(names)), labels, fontsize=9)
    for label, name in zip(ax.get_yticklabels(), names, strict=True):
        label.set(color=COLORS[kinds[name]], weight="bold" if kinds[name] == "ours" else "normal")
    ax.set_title(
        "Spearman correlation of distances: ours (blue), references (grey), peers (orange)", fontsize=10
    )
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return figure


def time_and_accuracy(rows: Sequence[Row]) -> Figure:
    """Seconds of a run (logarithmic) against Spearman, one panel per task; hollow: did not finish."""
    counts = {
        row["task"]: len({other["method"] for other in rows if other["task"] == row["task"]}) for row in rows
    }
    tasks = sorted(counts, key=lambda task: -counts[task])[:PANELS]
    columns = min(3, len(tasks))
    lines = -(-len(tasks) // columns)
    figure = Figure(figsize=(5.2 * columns, 4.0 * lines), layout="constrained")
    for ax, task in zip(figure.subplots(lines, columns, squeeze=False).flat, tasks, strict=False):
        _time_panel(ax, [row for row in rows if row["task"] == task and row["seconds"]])
        ax.set_title(task, fontsize=10)
    return figure


def _time_panel(ax: Axes, rows: Sequence[Row]) -> None:
    groups = {
        name: [row for row in rows if row["method"] == name] for name in (row["method"] for row in rows)
    }
    seconds = {name: float(np.mean([row["seconds"] for row in group])) for name, group in groups.items()}
    middle = np.sqrt(min(seconds.values()) * max(seconds.values())) if seconds else 0.0
    for number, name in enumerate(sorted(seconds, key=seconds.__getitem__)):
        color, at = COLORS[groups[name][0]["kind"]], seconds[name]
        values = summary(groups[name], "spearman")
        height, spread = values[name] if values else (0.0, 0.0)
        ax.errorbar(at, height, yerr=spread, fmt="o", ms=5, color=color, mfc=color if values else "none")
        left = at > middle  # towards the middle of the panel; every other label below, so that fewer overlap
        ax.annotate(
            name,
            (at, height),
            (-4 if left else 4, -9 if number % 2 else 3),
            textcoords="offset points",
            ha="right" if left else "left",
            fontsize=7,
            color=color,
        )
    ax.set(xscale="log", xlabel="seconds, one thread", ylabel="Spearman")
    ax.margins(x=0.15)
    ax.grid(alpha=0.3)
