"""What can be chosen after training, chosen by kept-out genes of the cells, beside what a run chooses and what would be best.

A run chooses the search radius of similar spots by held-out spots, how far cells are averaged by the agreement of co-expression
or by left-out donors, and how far cells are pulled towards similar spots by a constant. With the same model, each of these is
varied, and the check on cells is made for every value. Beside them stand cells at one spot each, which no run chooses. Gene
weights change training, so they are not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from spatialgears.bench import sets
from spatialgears.bench.fitted import fitted, tasks_of
from spatialgears.bench.one_position import at_one_position
from spatialgears.bench.presets import title
from spatialgears.bench.protocols import Task
from spatialgears.bench.request import Outcome, Request, Tell
from spatialgears.bench.store import Row, Store
from spatialgears.bench.tables import plain_table
from spatialgears.metrics import spearman
from spatialgears.model import GEARS
from spatialgears.pipeline.fitted import Fitted
from spatialgears.pipeline.kept_out import Placer, check_cells
from spatialgears.validate import validate_cells

#: Cells of the slides' own donor, and of others.
SETS = sets.together(
    sets.every_nth(4, sets.MOUSE_ATLAS), sets.HER2ST["E"], sets.one_section, sets.STARMAP, sets.patients
)
AS_RUN = "as run"
REACHES = (0.0, 0.15, 0.3, 0.7, 1.5)  # RMS radii; 0 is the generators alone
AVERAGES = (0.0, 0.33, 0.65)
PULLS = (0.0, 0.15, 0.4)


def run(request: Request, tell: Tell) -> Outcome:
    """The table over sets and settings: Spearman as run, with the value that genes choose, and with the best one."""
    preset = request.preset()
    config = request.config(preset).with_values(["geometry.refiner=none"])  # no samples are looked at
    found: list[Row] = []
    for task in tasks_of(request, SETS, sets.other_individual):
        if request.task and not any(text in task.name for text in request.task):
            continue
        for seed in range(request.seeds):
            own = config.with_values([f"seed={seed}"])
            make = partial(tried, task, partial(fitted, task, own, folder=request.out))
            parts = ("choices", task.fingerprint(), own.model_dump(mode="json"))
            rows = Store(request.out).once(*parts, make=make)["tried"]
            found += [{"set": task.name, "seed": seed, **row} for row in rows]
            tell(f"{task.name}, seed {seed}: {len(rows)} placements")
    table = summary(found)
    seeds = f"{request.seeds} seed{'s' if request.seeds > 1 else ''}"
    text = f"### choices: by kept-out genes of the cells, {title(preset, config)}, {seeds}\n\n{plain_table(table)}\n"
    values = every_value(found)
    return Outcome(f"{text}\n{plain_table(values)}\n", {"summary": table, "values": values, "rows": found})


def tried(task: Task, model: Callable[[], GEARS]) -> Row:
    """The check on cells and the true Spearman for every value of every setting, all others as the run has them."""
    assert task.truth is not None
    own = model()
    counts, missing, _ = validate_cells(task.cells, own.panel_.genes, own.panel_.weights)
    score = partial(_scored, own, counts, missing=missing, truth=task.truth)
    rows, as_run = [], score(own.fitted_)
    for setting, values in variants(own.fitted_).items():
        rows.append({"setting": setting, "value": AS_RUN, **as_run})
        rows += [{"setting": setting, "value": value, **score(one)} for value, one in values.items()]
    return {"tried": rows}


def variants(state: Fitted) -> Mapping[str, Mapping[float | str, Fitted]]:
    """Models that differ from a fitted one in one setting."""
    found: dict[str, dict[float | str, Fitted]] = {}
    if state.network.nearest is not None:
        found["search radius"] = {reach: _searching(state, reach) for reach in REACHES}
        found["one spot each"] = {
            "most similar": at_one_position(state, balanced=False),
            "balanced": at_one_position(state, balanced=True),
        }
    found["cells averaged"] = {average: _averaging(state, average) for average in AVERAGES}
    pull = state.view.pull
    if pull is not None and not state.average:
        found["cells pulled to spots"] = {
            share: replace(state, view=replace(state.view, pull=replace(pull, share=share)))
            for share in PULLS
        }
    return found


def summary(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """For each set and setting, mean Spearman over seeds: as run, chosen by genes, and at best, with what genes chose."""
    table = []
    for name, setting in dict.fromkeys((row["set"], row["setting"]) for row in rows):
        own = [row for row in rows if (row["set"], row["setting"]) == (name, setting)]
        seeds = [[row for row in own if row["seed"] == seed] for seed in sorted({row["seed"] for row in own})]
        run = [next(row for row in one if row["value"] == AS_RUN) for one in seeds]
        genes = [max(one, key=lambda row: row["r"]) for one in seeds]
        best = [max(one, key=lambda row: row["spearman"]) for one in seeds]
        gain = [a["spearman"] - b["spearman"] for a, b in zip(genes, run, strict=True)]
        table.append(
            {
                "set": name,
                "setting": setting,
                "as run": _mean(run),
                "chosen by genes": _mean(genes),
                "gain": float(np.mean(gain)),
                "sd of gain": float(np.std(gain)),
                "at best": _mean(best),
                "genes chose": ", ".join(str(row["value"]) for row in genes),
            }
        )
    return table


def every_value(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """For each set, setting and value, the mean over seeds of the kept-out genes' r and of the true Spearman."""
    table = []
    for key in dict.fromkeys((row["set"], row["setting"], row["value"]) for row in rows):
        own = [row for row in rows if (row["set"], row["setting"], row["value"]) == key]
        means = {name: float(np.mean([row[name] for row in own])) for name in ("r", "spearman")}
        table.append({**dict(zip(("set", "setting", "value"), key, strict=True)), **means})
    return table


def _searching(state: Fitted, reach: float) -> Fitted:
    """The model with another search radius of similar spots."""
    network = deepcopy(state.network)
    assert network.nearest is not None
    network.nearest.reach.fill_(reach)
    return replace(state, network=network)


def _averaging(state: Fitted, average: float) -> Fitted:
    """The model with cells averaged so far, whose positions then move the less towards similar spots."""
    network = deepcopy(state.network)
    if network.nearest is not None:
        network.nearest.share.fill_(1 - average)
    return replace(state, network=network, average=average)


def _scored(
    model: GEARS, counts: sparse.csr_matrix, state: Fitted, *, missing: np.ndarray, truth: np.ndarray
) -> dict[str, float]:
    """The check on cells, and the true Spearman of all cells before they are spread over the footprint."""
    check = check_cells(state, counts, model.config, missing=missing)
    coords, _ = Placer(state, counts, model.config, model.config.seed)(missing)
    return {"r": check.r, "spearman": spearman(coords, truth)}


def _mean(rows: Iterable[Mapping[str, Any]]) -> float:
    return float(np.mean([row["spearman"] for row in rows]))
