"""Whether the check on cells predicts accuracy: many runs whose truth is known, beside the check on held-out spots.

The runs range from easy to hopeless: simulated tissues with small and large platform effects, other individuals, shallow
cells, cells of another tissue, random cells and slides; and public data. Each is one fit. Rows are kept in the output folder,
so that an interrupted experiment continues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from anndata import AnnData
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from spatialgears import datasets
from spatialgears.bench import protocols, sets
from spatialgears.bench.harness import placement_error
from spatialgears.bench.presets import title
from spatialgears.bench.protocols import Task
from spatialgears.bench.request import Outcome, Request, Tell
from spatialgears.bench.store import Row, Store
from spatialgears.bench.tables import plain_table
from spatialgears.config import Config
from spatialgears.datasets import Tissue, pseudo_visium
from spatialgears.model import GEARS
from spatialgears.pipeline.cell_check import CellCheck
from spatialgears.pipeline.kept_out import check_cells
from spatialgears.runtime.seeds import numpy_rng
from spatialgears.runtime.threads import threads
from spatialgears.validate import validate_cells

TISSUES = (0, 1, 2)
SHIFTS = (0.0, 1.0, 2.0, 3.0, 4.0)
SMALL: dict[str, Any] = {"n_cells": 800, "n_genes": 150, "n_sections": 1, "spots": 250}
MOST_CELLS = 2000  # of a public set, drawn at random: the check needs no more, and runs take less time
RANDOM = 2  # sets of random cells that each fitted model checks
QUANTILES = np.linspace(0.02, 0.98, 49)  # of errors over radii that a row keeps
PASSED = ("good", "fair")
#: Runs in which expression says nothing of the cells' places; a check that passes one is wrong.
HOPELESS = ("random cells", "random places")
#: Runs that say how the error of cells depends on the check; the others test it.
FITTED = ("tissue", "embryo")
COLUMNS = (
    "run",
    "true spearman",
    "r",
    "se",
    "reference",
    "shuffled",
    "ceiling",
    "verdict",
    "spots",
    "spots' verdict",
    "error",
    "radius50",
    "widened",
    "cover50, spots alone",
    "cover50",
    "cover90, spots alone",
    "cover90",
)


def simulated(_: Path | None, seed: int) -> Iterator[Task]:
    """Simulated runs on three tissues, from easy to hopeless."""
    for number in TISSUES:
        name = f"tissue {number + 1}"
        draw = partial(datasets.simulate_tissue, **SMALL, seed=number + 100 * seed)
        for shift in SHIFTS:
            yield _task(f"{name}, shift {shift:g}", draw(shift=shift))
        yield _task(f"{name}, other individual", draw(unpaired=True))
        yield _task(f"{name}, other individual, shift 3", draw(unpaired=True, shift=3.0))
        yield _task(f"{name}, shallow cells", draw(cell_depth=60))
        tissue = draw()
        other = datasets.simulate_tissue(**SMALL, seed=number + 100 * seed + 50)
        yield _task(f"{name}, cells of another tissue", Tissue(tissue.slides, other.cells, other.truth))
        cells = tissue.cells.copy()
        cells.X = _dealt(cells.X, numpy_rng(seed, "random cells", number))
        yield _task(f"{name}, random cells", Tissue(tissue.slides, cells, tissue.truth))
        (slide,) = (one.copy() for one in tissue.slides)
        slide.obsm["spatial"] = numpy_rng(seed, "random places", number).permutation(slide.obsm["spatial"])
        yield _task(f"{name}, random places", Tissue([slide], tissue.cells, tissue.truth))


def public(root: Path | None, seed: int) -> Iterator[Task]:
    """Runs on public data: an embryo from its own spots and from another's, cortex of another animal, tumours."""
    for cells, source in (("E1z2", "E1z2"), ("E3z2", "E3z2"), ("E3z2", "E1z2"), ("E1z2", "E3z2")):
        tissue = datasets.load("mouse_embryos", root, heldout=cells)
        others = [name for name in datasets.REGISTRY["mouse_embryos"].sections if name != cells]
        embryos = dict(zip(others, tissue.slides, strict=True))
        own = tissue.cells.copy()
        own.obsm["spatial"] = tissue.truth.obsm["spatial"]
        spots = pseudo_visium(own if cells == source else embryos[source], grid=(30, 40))
        name = f"embryo {cells} from " + ("its own spots" if cells == source else source)
        yield _task(name, _some(Tissue([spots], tissue.cells, tissue.truth), seed))
    for part in (sets.STARMAP, *(sets.HER2ST[patient] for patient in "ADE")):
        yield from part(root, seed)


def run(request: Request, tell: Tell) -> Outcome:
    """The table of all runs, and how well each check predicts accuracy."""
    preset = request.preset("quick")
    config = request.config(preset).with_values(["geometry.refiner=none"])  # no samples are looked at
    parts = (simulated,) if request.simulated else (simulated, public)
    rows: list[Row] = []
    for part in parts:
        for task in part(request.data, 0):
            if request.task and not any(text in task.name for text in request.task):
                continue
            parameters = ("cell check", task.fingerprint(), config.model_dump(mode="json"))
            row = Store(request.out).once(*parameters, make=partial(measured, task, config))
            tell(f"{row['run']}: true {row['true spearman']:.2f}, check {row['r']:.2f} ({row['verdict']})")
            rows.append(row)
    found = summary(rows)
    text = f"### cell-check: {title(preset, config)}\n\n{words(found)}\n\n{plain_table([_shown(row) for row in rows])}\n"
    return Outcome(text, {"summary": found, "rows": rows}, {"cell-check": drawn(rows)})


def measured(task: Task, config: Config) -> Row:
    """Fit, place, check and score; and check random cells with the same model."""
    model = GEARS(config).fit(list(task.slides), task.cells)
    placed = model.reconstruct(task.cells)
    check, spots = model.fitted_.cell_check, model.fitted_.checks
    assert check is not None
    worst = min(spots, key=lambda one: one.model["spearman"])
    assert task.truth is not None
    error, widened = placement_error(placed.coords, task.truth), float(placed.diagnostics["widened"])
    return {
        "run": task.name,
        "true spearman": float(task.score(placed.coords)["spearman"]),
        **check.figures(),
        "spots": float(worst.model["spearman"]),
        "spots' verdict": worst.verdict,
        "error": float(np.median(error)),
        "radius50": float(np.median(placed.radius50)) / widened,  # as held-out spots gave it
        "widened": widened,
        "error / radius50": np.quantile(error / placed.radius50 * widened, QUANTILES).round(4).tolist(),
        "error / radius90": np.quantile(error / placed.radius90 * widened, QUANTILES).round(4).tolist(),
        "random": [_random(model, task, number).verdict for number in range(RANDOM)],
    }


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Rank correlation of each check with the true Spearman, and how many hopeless cases passed."""
    known = [row for row in rows if row["verdict"] != "not checked"]
    true = np.array([row["true spearman"] for row in known])
    figures = {
        "r": [row["r"] for row in known],
        "share of the ceiling": [row["r"] / row["ceiling"] for row in known],
        "share of direct mapping": [row["r"] / max(row["reference"], 0.05) for row in known],
        "held-out spots": [row["spots"] for row in known],
    }
    hopeless = [row["verdict"] for row in rows if any(text in row["run"] for text in HOPELESS)]
    hopeless += [verdict for row in rows for verdict in row["random"]]
    verdicts = {
        verdict: [row["true spearman"] for row in known if row["verdict"] == verdict]
        for verdict in ("good", "fair", "weak", "none")
    }
    return {
        "runs": len(rows),
        "checked": len(known),
        "rank correlation with truth": {name: _rank_correlation(one, true) for name, one in figures.items()},
        "hopeless": len(hopeless),
        "hopeless that passed": sum(verdict in PASSED for verdict in hopeless),
        "hopeless called weak": hopeless.count("weak"),
        "error by the check": calibration(known) if len(known) > 2 else None,
        "true spearman by verdict": {
            verdict: [round(float(q), 2) for q in (min(one), np.median(one), max(one))]
            for verdict, one in verdicts.items()
            if one
        },
    }


def covered(row: Row, level: int, *, widened: bool) -> float:
    """Share of the cells that are within their radius, as the run gave it or as held-out spots alone would have."""
    errors = row[f"error / radius{level}"]
    return float(np.interp(row["widened"] if widened else 1.0, errors, QUANTILES, left=0.0, right=1.0))


def calibration(rows: Sequence[Row]) -> tuple[float, float]:
    """``LARGEST`` and ``POWER`` of :mod:`~spatialgears.pipeline.radii`: the line through the errors of cells.

    Simulated tissues and embryos are fitted; cortex and tumours are not, so that they can test it.
    """
    known = [row for row in rows if row["verdict"] != "not checked" and row["run"].startswith(FITTED)]
    missing = np.array([1 - np.clip(row["r"] / row["ceiling"], 0, 0.98) for row in known])
    error = np.array([row["error"] for row in known])
    power, largest = np.polyfit(np.log(missing), np.log(error), 1)
    return float(np.exp(largest)), float(power)


def words(found: dict[str, Any]) -> str:
    """The summary, as text."""
    ranks = found["rank correlation with truth"].items()
    by = ", ".join(f"{name} {r:.2f}" for name, r in ranks if r is not None) or "too few runs"
    of = "; ".join(
        f"{verdict} {low:.2f} to {high:.2f} (median {middle:.2f})"
        for verdict, (low, middle, high) in found["true spearman by verdict"].items()
    )
    fitted = ""
    if found["error by the check"] is not None:
        fitted = " Median error of cells: {:.2f} (1 - r / ceiling)^{:.2f} RMS radii.".format(
            *found["error by the check"]
        )
    return (
        f"{found['runs']} runs, {found['checked']} of them checked. Rank correlation with the true Spearman: {by}. Random "
        f"cells or places that passed: {found['hopeless that passed']} of {found['hopeless']} "
        f"(and {found['hopeless called weak']} called weak). True Spearman by verdict: {of}.{fitted}"
    )


def drawn(rows: Sequence[Row]) -> Figure:
    """True accuracy by each check."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    known = [row for row in rows if row["verdict"] != "not checked"]
    names = {"r": "check on cells: r of kept-out genes", "spots": "check on held-out spots: Spearman"}
    for ax, (key, label) in zip(figure.subplots(1, 2, sharey=True), names.items(), strict=True):
        for kind, marker in (("tissue", "o"), ("", "^")):
            some = [row for row in known if row["run"].startswith("tissue") == bool(kind)]
            ax.plot(
                [row[key] for row in some],
                [row["true spearman"] for row in some],
                marker,
                label="simulated" if kind else "public data",
            )
        ax.set_xlabel(label)
    figure.axes[0].set_ylabel("true Spearman of the cells' distances")
    figure.axes[0].legend()
    return figure


def _task(name: str, tissue: Tissue) -> Task:
    return protocols.of_tissue("cell check", name, tissue)


def _some(tissue: Tissue, seed: int) -> Tissue:
    rows = np.sort(numpy_rng(seed, "some cells").permutation(tissue.cells.n_obs)[:MOST_CELLS])
    return Tissue(tissue.slides, tissue.cells[rows].copy(), tissue.truth[rows].copy())


def _dealt(counts: Any, rng: np.random.Generator) -> sp.csr_matrix:
    """Counts (n, G), every gene dealt out anew over the cells by itself."""
    return sp.csr_matrix(rng.permuted(sp.csr_matrix(counts).toarray(), axis=0))


def _random(model: GEARS, task: Task, number: int) -> CellCheck:
    """The check on random cells of the same genes, with the same model."""
    cells: AnnData = task.cells.copy()
    cells.X = _dealt(cells.X, numpy_rng(0, "random", number))
    state = model.fitted_
    counts, missing, _ = validate_cells(cells, state.panel.genes, state.panel.weights)
    with threads(model.config.threads):
        return check_cells(state, counts, model.config, missing=missing)


def _rank_correlation(values: Iterable[float], true: np.ndarray) -> float | None:
    return float(spearmanr(list(values), true).statistic) if len(true) > 2 else None


def _shown(row: Row) -> Row:
    covers = {
        f"cover{level}{'' if widened else ', spots alone'}": covered(row, level, widened=widened)
        for level in (50, 90)
        for widened in (False, True)
    }
    return {name: ({**row, **covers})[name] for name in COLUMNS}
