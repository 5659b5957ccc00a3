"""All comparisons of a folder on one page: ``gears bench tables``, and two pictures of all methods on all data sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from spatialgears.bench.figures import COLORS
from spatialgears.bench.request import Outcome, Request, Tell
from spatialgears.bench.store import Row, Store
from spatialgears.bench.tables import behind, standing, summary, tables
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
#: Score from which a cell of the first picture is dark, and its text white.
DARK = 0.7


class Point(NamedTuple):
    """A method in the second picture: seconds, and Spearman with its spread."""

    name: str
    color: str
    x: float
    y: float
    spread: float


def run(request: Request, tell: Tell) -> Outcome:
    """The tables of all comparisons whose rows are in the output folder, and pictures of those with Spearman."""
    rows = [row for row in Store(request.out).rows() if "method" in row and "experiment" not in row]
    if not rows:
        raise InputError(
            f"{request.out} holds no rows of a comparison.",
            "Give the output folder of a benchmark with --output.",
        )
    rows.sort(key=lambda row: (row["protocol"], row["task"]))
    parts = [INTRODUCTION, "## Where GEARS stands, by Spearman", standing(rows)]
    parts += ["## Where GEARS is not first", behind(rows), "## By task", tables(rows)]
    shown = _shown(rows)
    pictures = {"overview": overview(shown), "time": time_and_accuracy(shown)} if shown else {}
    return Outcome("\n\n".join(parts), rows, pictures)


def _shown(rows: Sequence[Row]) -> list[Row]:
    """The rows of tasks that are scored by Spearman, without further layouts of a run and variants of our own method.

    Tasks on which some peer was run, if there are any.
    """
    scored = {row["task"] for row in rows if "spearman" in row["metrics"]}
    scored = scored & {row["task"] for row in rows if row["kind"] == "peer"} or scored
    return [
        row
        for row in rows
        if row["task"] in scored
        and ": " not in row["method"]
        and not (row["kind"] == "ours" and ", " in row["method"])
    ]


def overview(rows: Sequence[Row]) -> Figure:
    """Spearman (and its spread over seeds) of every method on every task, best method first; bold: the best of a task.

    Methods are ordered by their score as a share of the task's best, averaged over tasks. Those that see true positions
    are never the best. Tasks with the most methods come first.
    """
    tasks = _most_methods_first(rows)
    kinds = {row["method"]: row["kind"] for row in rows}
    ceilings = {row["method"] for row in rows if row["sees_truth"]}
    found = {task: summary([row for row in rows if row["task"] == task], "spearman") for task in tasks}
    best = {
        task: max((mean for name, (mean, _) in found[task].items() if name not in ceilings), default=np.nan)
        for task in tasks
    }
    shares = {
        name: [found[task][name][0] / best[task] for task in tasks if name in found[task]] for name in kinds
    }
    names = sorted(kinds, key=lambda name: -np.mean(shares[name] or [-1.0]))
    scores = np.array([[found[task].get(name, (np.nan, 0.0))[0] for task in tasks] for name in names])
    figure = Figure(figsize=(2.4 + 0.72 * len(tasks), 1.9 + 0.36 * len(names)), layout="constrained")
    ax = figure.subplots()
    ax.imshow(np.ma.masked_invalid(scores), aspect="auto", cmap="YlGnBu", vmin=0, vmax=1.25)
    for j, task in enumerate(tasks):
        for i, name in enumerate(names):
            if name in found[task]:
                mean, spread = found[task][name]
                text = f"{round(mean, 2) + 0.0:.2f}" + (f"\n± {spread:.2f}" if spread >= 0.005 else "")
                weight = "bold" if name not in ceilings and mean == best[task] else "normal"
                color = "white" if mean > DARK else "black"
                ax.text(j, i, text, ha="center", va="center", fontsize=7, weight=weight, color=color)
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
    tasks = _most_methods_first(rows)[:PANELS]
    columns = min(2, len(tasks))
    lines = -(-len(tasks) // columns)
    figure = Figure(figsize=(7.0 * columns, 4.6 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).flat
    points = []
    for ax, task in zip(panels, tasks, strict=False):
        points.append(_time_panel(ax, [row for row in rows if row["task"] == task and row["seconds"]]))
        ax.set_title(task, fontsize=10)
    for ax in panels[len(tasks) :]:
        ax.set_axis_off()
    figure.draw_without_rendering()  # panels have their places now, and labels can be measured
    figure.set_layout_engine("none")
    for ax, labelled in zip(panels, points, strict=False):
        _label(ax, labelled, figure.dpi)
    return figure


def _most_methods_first(rows: Sequence[Row]) -> list[str]:
    """The tasks, by the number of their methods."""
    methods: dict[str, set[str]] = {}
    for row in rows:
        methods.setdefault(row["task"], set()).add(row["method"])
    return sorted(methods, key=lambda task: -len(methods[task]))


def _time_panel(ax: Axes, rows: Sequence[Row]) -> list[Point]:
    """Draw the panel; gives its points, ours first."""
    points = []
    kinds = {row["method"]: row["kind"] for row in rows}
    for name in sorted(kinds, key=lambda name: list(COLORS).index(kinds[name])):
        group = [row for row in rows if row["method"] == name]
        at, color = float(np.mean([row["seconds"] for row in group])), COLORS[kinds[name]]
        values = summary(group, "spearman")
        height, spread = values[name] if values else (0.0, 0.0)
        ax.errorbar(at, height, yerr=spread, fmt="o", ms=5, color=color, mfc=color if values else "none")
        points.append(Point(name, color, at, height, spread))
    ax.set(xscale="log", xlabel="seconds, one thread", ylabel="Spearman")
    ax.margins(x=0.15, y=0.1)
    ax.grid(alpha=0.3)
    return points


def _label(ax: Axes, points: Sequence[Point], dpi: float) -> None:
    """Write each name near its point, at the place that overlaps least with points, labels and the frame."""
    if not points:
        return
    low, at, high = (
        ax.transData.transform([(point.x, point.y + sign * point.spread) for point in points])
        for sign in (-1, 0, 1)
    )
    taken = np.hstack([low, high]) + np.array([-1, -1, 1, 1]) * dpi / 18  # left, lower, right, upper
    turn = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    for (name, color, x, y, _), point in zip(points, at, strict=True):
        line = {"arrowstyle": "-", "lw": 0.4, "color": color, "shrinkA": 0, "shrinkB": 2}
        style: dict[str, Any] = {
            "ha": "center",
            "va": "center",
            "fontsize": 7,
            "color": color,
            "arrowprops": line,
        }
        text = ax.annotate(name, (x, y), (0, 0), textcoords="offset points", **style)
        size = np.array(text.get_window_extent().size)  # of the name alone: it lies on its point
        reach = np.multiply.outer(dpi * np.array([0.08, 0.2, 0.35, 0.5]), [1, 1])[:, None] + size / 2
        centres = (point + reach * np.stack([np.cos(turn), np.sin(turn)], axis=1)).reshape(-1, 2)
        boxes = np.hstack([centres - size / 2, centres + size / 2])
        overlap = _overlap(boxes, taken).sum(1)
        outside = np.prod(size) - _overlap(boxes, np.array([ax.bbox.extents])).ravel()
        best = np.argmin(100 * (overlap + outside) + np.linalg.norm(centres - point, axis=1))
        text.set_position((centres[best] - point) * 72 / dpi)
        taken = np.vstack([taken, boxes[best]])


def _overlap(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Shared area (n, m) of boxes, each as left, lower, right, upper."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    return np.prod(np.clip(high - low, 0, None), axis=2)
