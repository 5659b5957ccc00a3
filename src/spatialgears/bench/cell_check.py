"""Whether the check on cells predicts accuracy: many runs whose truth is known, beside the check on held-out spots.

The runs range from easy to hopeless: simulated tissues with small and large platform effects, other individuals, few genes,
shallow cells, cells of another tissue, random cells and places; and public data. One fitted model serves several runs: cells
that it was fitted with, and others that are placed later. Models and rows are kept in the output folder, so that an
interrupted experiment continues.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
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
from spatialgears.bench.fitted import fitted
from spatialgears.bench.harness import placement_error
from spatialgears.bench.presets import changes, title
from spatialgears.bench.protocols import Task
from spatialgears.bench.request import Outcome, Request, Tell
from spatialgears.bench.store import Row, Store
from spatialgears.bench.tables import plain_table
from spatialgears.config import Config
from spatialgears.datasets import Tissue, pseudo_visium
from spatialgears.model import GEARS
from spatialgears.pipeline.cell_check import CellCheck
from spatialgears.pipeline.kept_out import check_cells
from spatialgears.pipeline.radii import reached
from spatialgears.runtime.seeds import numpy_rng
from spatialgears.runtime.threads import threads
from spatialgears.validate import validate_cells

#: Runs that share a fitted model: cells that it was fitted with, then others. All have the same slides.
Family = Sequence[Task]

SHIFTS = (0.0, 1.0, 2.0, 3.0, 4.0)
SMALL: dict[str, Any] = {"n_cells": 800, "n_genes": 150, "n_sections": 1, "spots": 250}
FEW_GENES = 40
MOST_CELLS = 2000  # of a public set, drawn at random: the check needs no more, and runs take less time
RANDOM = 3  # sets of random cells that each fitted model checks
QUANTILES = np.linspace(0.02, 0.98, 49)  # of errors over radii that a row keeps
PASSED = ("good", "fair")
#: Runs in which expression says nothing of the cells' places; a check that passes one is wrong.
HOPELESS = ("random cells", "random places")
OWN = {"cells_from": "same-donor"}  # what is said of simulated cells of the slides' individual
SIMULATED = "simulated"  # how the names of simulated runs begin


def simulated(_: Path | None, seed: int) -> Iterator[Family]:
    """Simulated runs, from easy to hopeless; every seed is another tissue."""
    draw = partial(datasets.simulate_tissue, **SMALL, seed=seed)
    plain, other = draw(shift=0.0), datasets.simulate_tissue(**SMALL, seed=seed + 50, shift=0.0)
    cells = plain.cells.copy()
    cells.X = _dealt(cells.X, numpy_rng(seed, "random cells"))
    yield [
        _task("simulated, shift 0", plain, **OWN),
        _task(
            "simulated, shallow cells", Tissue(plain.slides, *_cells(draw(shift=0.0, cell_depth=60))), **OWN
        ),
        _task("simulated, cells of another tissue", Tissue(plain.slides, *_cells(other))),
        _task("simulated, random cells", Tissue(plain.slides, cells, plain.truth), **OWN),
    ]
    for shift in SHIFTS[1:]:
        yield [_task(f"simulated, shift {shift:g}", draw(shift=shift), **OWN)]
    yield [_task("simulated, other individual", draw(unpaired=True))]
    yield [_task("simulated, other individual, shift 3", draw(unpaired=True, shift=3.0))]
    some = np.sort(numpy_rng(seed, "few genes").permutation(plain.cells.n_vars)[:FEW_GENES])
    few = Tissue([one[:, some].copy() for one in plain.slides], plain.cells[:, some].copy(), plain.truth)
    yield [_task(f"simulated, {FEW_GENES} genes", few, **OWN)]
    (slide,) = (one.copy() for one in plain.slides)
    slide.obsm["spatial"] = numpy_rng(seed, "random places").permutation(slide.obsm["spatial"])
    yield [_task("simulated, random places", Tissue([slide], plain.cells, plain.truth), **OWN)]


def public(root: Path | None, seed: int) -> Iterator[Family]:
    """Runs on public data: embryos from their own spots and from the other's, cortex of another animal, tumours."""
    embryos = {name: datasets.load("mouse_embryos", root, heldout=name) for name in ("E1z2", "E3z2")}
    for source, other in (("E1z2", "E3z2"), ("E3z2", "E1z2")):
        own = embryos[source].cells.copy()
        own.obsm["spatial"] = embryos[source].truth.obsm["spatial"]
        spots = [protocols.of_donor(pseudo_visium(own, grid=(30, 40)), source[:2])]
        yield [
            _task(name, _some(Tissue(spots, *_cells(embryos[cells], donor=cells[:2])), seed))
            for name, cells in (
                (f"embryo {source}, own spots", source),
                (f"embryo {source} → {other}", other),
            )
        ]
    for task in sets.STARMAP(root, seed):
        yield [task]
    third = {patient: next(sets.HER2ST[patient](root, seed)) for patient in "ADE"}
    cortex = _some(datasets.load("dlpfc", root), seed)
    for patient, own in third.items():
        slides, name = list(own.slides), f"her2st {patient}1 + {patient}2"
        others = [
            _placed(f"{name} → {other}3", slides, task) for other, task in third.items() if other != patient
        ]
        yield [own, *others, _task(f"{name} → cortex", Tissue(slides, *_cells(cortex, donor="cortex")))]
    for task in sets.patients(root, seed):
        yield [task]


def run(request: Request, tell: Tell) -> Outcome:
    """The table of all runs, and how well each check predicts accuracy."""
    preset = request.preset("quick")
    config = request.config(preset).with_values(["geometry.refiner=none"])  # no samples are looked at
    parts = (simulated,) if request.simulated else (simulated, public)
    found: list[Row] = []
    for seed in range(request.seeds):
        seeded = config.with_values([f"seed={seed}"])
        for family in (one for part in parts for one in part(request.data, seed)):
            if request.task and not any(text in task.name for text in request.task for task in family):
                continue
            prints = [task.fingerprint() for task in family]
            make = partial(measured, family, seeded, folder=request.out)
            kept = Store(request.out).once("cell check", prints, preset, changes(seeded, preset), make=make)
            for row in kept["runs"]:
                tell(
                    f"{row['run']}, seed {seed}: true {row['true spearman']:.2f}, check {row['r']:.2f} ({row['verdict']})"
                )
            found.append(kept)
    rows = [row for kept in found for row in kept["runs"]]
    said = summary(rows, [verdict for kept in found for verdict in kept["random"]])
    seeds = f"{request.seeds} seed{'s' if request.seeds > 1 else ''}"
    text = (
        f"### cell-check: {title(preset, config)}, {seeds}\n\n{words(said)}\n\n{plain_table(by_run(rows))}\n"
    )
    return Outcome(text, {"summary": said, "rows": rows}, {"cell-check": drawn(rows)})


def measured(family: Family, config: Config, *, folder: Path) -> Row:
    """Fit, then place, check and score the cells of every run; and check random cells with the same model."""
    model = fitted(family[0], config, folder=folder)
    return {
        "experiment": "cell-check",
        "seed": config.seed,
        "runs": [_scored(model, task) for task in family],
        "random": [_random(model, family[0], number).verdict for number in range(RANDOM)],
    }


def _scored(model: GEARS, task: Task) -> Row:
    placed = model.reconstruct(task.cells, cells_from=task.setting.get("cells_from"))
    check, worst = placed.cell_check, min(model.fitted_.checks, key=lambda one: one.model["spearman"])
    assert check is not None and task.truth is not None
    error, widened = placement_error(placed.coords, task.truth), float(placed.diagnostics["widened"])
    over = {
        level: error / radius * widened for level, radius in ((50, placed.radius50), (90, placed.radius90))
    }
    return {
        "run": task.name,
        "true spearman": float(task.score(placed.coords)["spearman"]),
        **{name: value for name, value in check.figures().items() if name != "words"},
        "spots": float(worst.model["spearman"]),
        "spots' verdict": worst.verdict,
        "error": float(np.median(error)),
        "radius50": float(np.median(placed.radius50)) / widened,  # as held-out spots or donors gave it
        "widened": widened,
        **{
            f"error / radius{level}": np.quantile(one, QUANTILES).round(4).tolist()
            for level, one in over.items()
        },
    }


def summary(rows: Sequence[Row], random: Sequence[str]) -> dict[str, Any]:
    """Rank correlation of each check with the true Spearman, and how many hopeless cases passed."""
    known = [row for row in rows if row["verdict"] != "not checked"]
    kinds = {
        "all": known,
        "simulated": [row for row in known if row["run"].startswith(SIMULATED)],
        "public data": [row for row in known if not row["run"].startswith(SIMULATED)],
        "all but random": [row for row in known if not _hopeless(row)],
    }
    hopeless = [row["verdict"] for row in rows if _hopeless(row)] + list(random)
    verdicts = {
        verdict: [row["true spearman"] for row in known if row["verdict"] == verdict]
        for verdict in ("good", "fair", "weak", "none")
    }
    return {
        "runs": len(rows),
        "checked": len(known),
        "rank correlation with truth": {
            kind: _rank_correlations(one) for kind, one in kinds.items() if len(one) > 2
        },
        "hopeless": len(hopeless),
        "hopeless that passed": sum(verdict in PASSED for verdict in hopeless),
        "hopeless called weak": hopeless.count("weak"),
        "error by the check": calibration(known),
        "true spearman by verdict": {
            verdict: [round(float(q), 2) for q in (min(one), np.median(one), max(one))]
            for verdict, one in verdicts.items()
            if one
        },
    }


def by_run(rows: Sequence[Row]) -> list[Row]:
    """One line per run, the mean over seeds; radii as held-out spots or donors gave them, then as the check made them."""
    shown = []
    for name in dict.fromkeys(row["run"] for row in rows):
        same = [row for row in rows if row["run"] == name]
        mean = {
            key: np.mean([row[key] for row in same]) for key in ("true spearman", "spots", "widened", *_CHECK)
        }
        covers = {
            f"within {level}%": " → ".join(
                f"{np.mean([covered(row, level, widened=widened) for row in same]):.0%}"
                for widened in (False, True)
            )
            for level in (50, 90)
        }
        verdicts = ", ".join(dict.fromkeys(row["verdict"] for row in same))
        figures = {key: f"{value:.2f}" for key, value in mean.items()}
        shown.append({"run": name, "seeds": len(same), **figures, "verdict": verdicts, **covers})
    return shown


_CHECK = ("r", "reference", "ceiling")


def covered(row: Row, level: int, *, widened: bool) -> float:
    """Share of the cells that are within their radius, as the run gave it or before the check on cells widened it."""
    errors = row[f"error / radius{level}"]
    return float(np.interp(row["widened"] if widened else 1.0, errors, QUANTILES, left=0.0, right=1.0))


def calibration(rows: Sequence[Row]) -> float | None:
    """``LARGEST`` of :mod:`~spatialgears.pipeline.radii`, by the errors of cells that differ from the slides."""
    known = [row for row in rows if row["widened"] > 1 and not _hopeless(row)]
    missing = [1 - reached(row["r"], row["reference"], row["ceiling"]) for row in known]
    errors = [row["error"] for row in known]
    return float(np.exp(np.mean(np.log(errors) - np.log(missing)))) if all(missing) and known else None


def words(found: dict[str, Any]) -> str:
    """The summary, as text."""
    ranks = found["rank correlation with truth"].items()
    by = "; ".join(
        f"{kind}: " + ", ".join(f"{name} {r:.2f}" for name, r in one.items()) for kind, one in ranks
    )
    of = "; ".join(
        f"{verdict} {low:.2f} to {high:.2f} (median {middle:.2f})"
        for verdict, (low, middle, high) in found["true spearman by verdict"].items()
    )
    law = found["error by the check"]
    fits = (
        ""
        if law is None
        else f" Median error of cells whose radii are widened: {law:.2f} (1 - r / sqrt(direct mapping x ceiling)) RMS radii."
    )
    return (
        f"{found['runs']} runs, {found['checked']} of them checked. Rank correlation with the true Spearman: "
        f"{by or 'too few runs'}. Random cells or places that passed: {found['hopeless that passed']} of {found['hopeless']} "
        f"(and {found['hopeless called weak']} called weak). True Spearman by verdict: {of}.{fits}"
    )


def drawn(rows: Sequence[Row]) -> Figure:
    """True accuracy by each check."""
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    known = [row for row in rows if row["verdict"] != "not checked"]
    names = {
        "share": "check on cells: r of kept-out genes / ceiling",
        "spots": "check on held-out spots: Spearman",
    }
    known = [row | {"share": row["r"] / row["ceiling"]} for row in known]
    for ax, (key, label) in zip(figure.subplots(1, 2, sharey=True), names.items(), strict=True):
        for kind, marker in (("simulated", "o"), ("public data", "^")):
            some = [row for row in known if row["run"].startswith(SIMULATED) == (kind == "simulated")]
            true = [row["true spearman"] for row in some]
            ax.plot([row[key] for row in some], true, marker, label=kind)
        ax.set_xlabel(label)
    figure.axes[0].set_ylabel("true Spearman of the cells' distances")
    figure.axes[0].legend()
    return figure


def _task(name: str, tissue: Tissue, **setting: str) -> Task:
    return protocols.of_tissue("cell check", name, tissue, setting=setting)


def _placed(name: str, slides: Sequence[AnnData], task: Task) -> Task:
    """The cells of another task, placed on these slides."""
    return replace(task, name=name, slides=slides)


def _cells(tissue: Tissue, donor: str | None = None) -> tuple[AnnData, AnnData]:
    return tissue.cells if donor is None else protocols.of_donor(tissue.cells, donor), tissue.truth


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


def _hopeless(row: Row) -> bool:
    return any(text in row["run"] for text in HOPELESS)


def _rank_correlations(rows: Sequence[Row]) -> dict[str, float]:
    figures = {
        "r": [row["r"] for row in rows],
        "share of the ceiling": [row["r"] / row["ceiling"] for row in rows],
        "share of direct mapping": [row["r"] / max(row["reference"], 0.05) for row in rows],
        "held-out spots": [row["spots"] for row in rows],
    }
    true = [row["true spearman"] for row in rows]
    return {name: float(spearmanr(one, true).statistic) for name, one in figures.items() if len(set(one)) > 1}
