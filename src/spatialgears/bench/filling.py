"""What even filling gives and costs: the best guess of one model, moved part of the way.

``assembly.spacing`` is the largest share of the way, and ``assembly.spacing_reach`` limits how far cells move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from spatialgears.bench import sets
from spatialgears.bench.fitted import over_seeds, tasks_of
from spatialgears.bench.presets import title
from spatialgears.bench.protocols import Task
from spatialgears.bench.request import Outcome, Request, Tell
from spatialgears.bench.store import Store
from spatialgears.bench.tables import TABLE1, plain_table
from spatialgears.metrics import evaluate
from spatialgears.model import GEARS

AS_IT_IS, FAR = "as users get it", 10.0
STRENGTHS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
#: Cells that are hard to place: their best guess is contracted most, and filling moves it furthest.
SETS = sets.together(sets.HER2ST["A"], sets.STARMAP)


def run(request: Request, tell: Tell) -> Outcome:
    """The table and figure of even filling."""
    preset = request.preset()
    config = request.config(preset)
    tasks = tasks_of(request, SETS)
    rows, _ = over_seeds(tasks, scored, config, seeds=request.seeds, folder=request.out)
    text = (
        f"### filling: share of the way to an even filling, {title(preset, config)}\n\n{plain_table(rows)}\n"
    )
    return Outcome(text, rows, {"filling": draw(rows)})


def scored(task: Task, model: GEARS, *, store: Store) -> dict[str, dict[str, float]]:
    """Scores of one model for every strength; scores that ``store`` holds are not computed again."""
    parts = ("filling", task.fingerprint(), model.config.model_dump(mode="json"))
    runs = {f"{strength:.0%}": {"spacing": strength, "spacing_reach": FAR} for strength in STRENGTHS}
    return {
        name: store.once(*parts, changes, make=partial(_score, task, model, changes))
        for name, changes in {**runs, AS_IT_IS: {}}.items()
    }


def draw(table: Sequence[Mapping[str, Any]]) -> Figure:
    """Accuracy and spacing by strength, one line per set."""
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    labels = {
        "spearman": "Spearman of distances ↑",
        "edge_auc": "Edge AUC ↑",
        "swd": "SWD ↓",
        "w1_knn": "W1 ↓",
    }
    for ax, (score, label) in zip(figure.subplots(1, len(labels)), labels.items(), strict=True):
        for name in dict.fromkeys(row["set"] for row in table):
            fixed, allowed = (
                [row for row in table if row["set"] == name and (row["run"] == AS_IT_IS) is chosen]
                for chosen in (False, True)
            )
            (line,) = ax.plot(
                [row["share"] for row in fixed], [row[score] for row in fixed], ".-", label=name
            )
            for row in allowed:
                ax.plot(row["share"], row[score], "o", color=line.get_color())
        ax.set(xlabel="share of the way", ylabel=label)
        ax.grid(alpha=0.3)
    ax.legend(fontsize="small", title=f"circle: {AS_IT_IS}", title_fontsize="small")
    return figure


def _score(task: Task, model: GEARS, changes: Mapping[str, float]) -> dict[str, float]:
    assert task.truth is not None
    assembly = model.config.assembly.model_copy(update=changes)
    placed = model.reconstruct(task.cells, assembly=assembly)
    found = evaluate(placed.coords, task.truth)
    return {**{name: float(found[name]) for name in TABLE1}, "share": placed.diagnostics["spacing"]}
