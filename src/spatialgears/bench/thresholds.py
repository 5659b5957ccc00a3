"""The figures that stand behind the thresholds of noise and of several sections, on every set: true data beside untrue."""

from __future__ import annotations

from typing import Any

import numpy as np
from anndata import AnnData
from scipy import sparse

from spatialgears.bench import sets
from spatialgears.bench.fitted import fitted, tasks_of
from spatialgears.bench.request import Outcome, Request, Tell
from spatialgears.bench.tables import plain_table
from spatialgears.model import GEARS
from spatialgears.pipeline.kept_out import check_cells
from spatialgears.pipeline.noise import above_shuffled
from spatialgears.validate.counts import empty_rows
from spatialgears.validate.sections import overlaid, widest_strip

NOISE = 0.3  # share of the cells that is made noise
ANGLES = np.linspace(0.05, 1.0, 5)  # by which a slide is turned and laid over itself
PUBLIC = sets.together(sets.MOUSE_ATLAS, sets.DLPFC, *sets.HER2ST.values(), sets.STARMAP)


def run(request: Request, tell: Tell) -> Outcome:
    """A row for each set: strips and lattices of its slides, and how its cells differ from noise."""
    config = request.config(request.preset("quick"))
    rows = []
    for task in tasks_of(request, PUBLIC):
        model = fitted(task, config, folder=request.out)
        places = [np.asarray(slide.obsm["spatial"], dtype=float)[:, :2] for slide in task.slides]
        rows.append({"task": task.name, **slides_row(places), **cells_row(model, task.cells)})
        tell(f"{task.name}: done")
    return Outcome(f"### thresholds\n\n{plain_table(rows)}\n", rows, {})


def slides_row(places: list[np.ndarray]) -> dict[str, float]:
    """The widest empty strip, and how many slides seem to be two: as they are, and laid over themselves, turned."""
    twice = []
    for spots in places:
        for angle in ANGLES:
            turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
            middle = spots.mean(0)
            twice.append(overlaid(np.vstack([spots, (spots - middle) @ turn + middle])))
    return {
        "widest strip": round(max(map(widest_strip, places)), 2),
        "overlaid": float(np.mean([overlaid(spots) for spots in places])),
        "overlaid, two": float(np.mean(twice)),
    }


def cells_row(model: GEARS, cells: AnnData) -> dict[str, float]:
    """How many standard deviations cells vary above shuffled ones, and the share that does not fit its place."""
    from spatialgears.validate import validate_cells

    state, config = model.fitted_, model.config
    counts, missing, _ = validate_cells(cells, state.panel.genes, state.panel.weights)
    kept = counts[np.flatnonzero(~empty_rows(counts))]
    rng, row = np.random.default_rng(0), {}
    for name, share in (("cells", 0.0), (f"{NOISE:.0%} noise", NOISE), ("noise", 1.0)):
        values: Any = kept.toarray()
        noise = rng.random(len(values)) < share
        values[noise] = rng.permuted(values, axis=0)[noise]
        mixed = sparse.csr_matrix(values)
        row[f"above shuffled, {name}"] = round(above_shuffled(state, mixed, config, missing=missing), 1)
        row[f"unmatched, {name}"] = round(check_cells(state, mixed, config, missing=missing).unmatched, 2)
    return row
