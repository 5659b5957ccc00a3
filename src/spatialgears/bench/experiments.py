"""The paper's experiments, and each protocol, by name: which tasks, which methods, which figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spatialgears import datasets
from spatialgears.bench import figures, protocols
from spatialgears.bench.protocols import Task
from spatialgears.bench.store import Row, Store
from spatialgears.bench.tables import COVERAGE, DEPTH, TABLE1
from spatialgears.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Root = Path | None
STRONG = 3.0  # a shift between platforms at which accuracy falls
SIMULATED: dict[str, Any] = {"n_cells": 1000, "n_genes": 200, "n_sections": 1, "spots": 350}


@dataclass(frozen=True)
class Experiment:
    """What ``gears bench NAME`` runs.

    Attributes
    ----------
    words
        What it shows.
    tasks
        Root of the data files and seed in, tasks out.
    methods
        Names for :func:`~spatialgears.bench.methods.choose`.
    columns
        Metrics of its table; None: those of Table 1.
    needs_data
        Whether its tasks are of data files.
    simulated
        What stands in for these; None: one simulated tissue.
    """

    words: str
    tasks: Callable[[Root, int], Iterable[Task]]
    methods: tuple[str, ...]
    columns: Sequence[str] | None = None
    needs_data: bool = True
    simulated: Callable[[Root, int], Iterable[Task]] | None = None


def _simulated(_: Root, seed: int) -> Iterator[Task]:
    yield from protocols.simulated(seed=seed, **SIMULATED)


def _sweeps(_: Root, seed: int) -> Iterator[Task]:
    for sweep in protocols.SWEEPS:
        yield from protocols.simulated(seed=seed, sweep=sweep, **SIMULATED)


def _loaded(
    protocol: str, name: str, title: str, heldout: str | None = None
) -> Callable[[Root, int], Iterator[Task]]:
    """The task of a set of the registry, with the section it holds out or another, whatever the seed."""

    def tasks(root: Root, seed: int) -> Iterator[Task]:
        yield protocols.of_tissue(protocol, title, datasets.load(name, root, heldout=heldout))

    return tasks


_ATLAS = _loaded("pseudo-visium", "mouse_atlas", "Mouse Atlas")
_HER2 = [_loaded("leave-section-out", f"her2st_{p}", f"her2st {p}1 + {p}2 → {p}3") for p in "ADE"]
_DLPFC = _loaded("leave-section-out", "dlpfc", "DLPFC 151673 + 151674 → 151675")
_STARMAP = [
    _loaded("unpaired", "starmap_mpfc", f"STARmap {a} → {b}", b) for a, b in (("BZ5", "BZ9"), ("BZ9", "BZ5"))
]
_SECTIONS = [
    _loaded("leave-section-out", f"her2st_{p}", f"her2st {p}{a} + {p}{b} → {p}{c}", f"{p}{c}")
    for p in "ADE"
    for a, b, c in ("123", "132", "231")
]


def _all_of(*parts: Callable[[Root, int], Iterable[Task]]) -> Callable[[Root, int], Iterator[Task]]:
    def tasks(root: Root, seed: int) -> Iterator[Task]:
        for part in parts:
            yield from part(root, seed)

    return tasks


def _grids(root: Root, seed: int) -> Iterator[Task]:
    tissue = datasets.load("mouse_atlas", root)
    cells = tissue.cells.copy()
    cells.obsm["spatial"] = tissue.truth.obsm["spatial"]
    yield from protocols.pseudo_visium(
        cells, name="Mouse Atlas", fractions=(0.4, 0.55, 0.8), grid=(30, 40), types="cell_type"
    )


def _other_individual(_: Root, seed: int) -> Iterator[Task]:
    yield from protocols.simulated(seed=seed, unpaired=True, **SIMULATED)
    yield from protocols.simulated(seed=seed, unpaired=True, sweep="shift", values=(STRONG,), **SIMULATED)


def _simulated_sections(_: Root, seed: int) -> Iterator[Task]:
    slides = datasets.simulate_tissue(seed=seed, **{**SIMULATED, "n_sections": 3}).slides
    named = {f"section {i + 1}": slide for i, slide in enumerate(slides)}
    for task in protocols.leave_section_out(named, held_out=[list(named)[-1]]):
        yield replace(task, seeded=True)


def _tasic(root: Root, seed: int) -> Iterator[Task]:
    tissue = datasets.load("seqfish_tasic", root)
    cells = tissue.cells.copy()
    cells.obs["layer"] = tissue.truth.obs["layer"].to_numpy()
    yield from protocols.real_unpaired(
        tissue.slides, cells, known="layer", name="Tasic → seqFISH", types="cell_type"
    )


_EVERYTHING = ("default", "references", "peers")
_OURS = ("default", "references")
EXPERIMENTS: dict[str, Experiment] = {
    "quick": Experiment(
        "simulated tissue, our quick preset and the references: runs anywhere",
        _simulated,
        ("quick", "references"),
        needs_data=False,
    ),
    "mouse-atlas": Experiment("the paper's first benchmark alone, without peers", _ATLAS, _OURS),
    "table1": Experiment(
        "the paper's Table 1 on Mouse Atlas, her2st A, D, E and DLPFC with every peer",
        _all_of(_ATLAS, *_HER2, _DLPFC),
        _EVERYTHING,
    ),
    "diagnostics": Experiment(
        "calibration error, multiscale local RMSE and edge ROC on Mouse Atlas",
        _ATLAS,
        ("default", "kNN on weighted PCA", "stem", "tangram", "novosparc", "celery"),
        ("cal_error", "lrmse_10", "lrmse_20", "lrmse_50", "lrmse_100", "edge_auc"),
    ),
    "uncertainty": Experiment(
        "coverage of the stated radii, beside CeLEry's regions",
        _ATLAS,
        ("default", "celery_region"),
        ("spearman", *COVERAGE),
    ),
    "pseudo-visium": Experiment(
        "square and hexagonal grids, three spot sizes, on Mouse Atlas", _grids, _OURS
    ),
    "leave-section-out": Experiment(
        "place one section from the others", _all_of(*_HER2, _DLPFC), _OURS, simulated=_simulated_sections
    ),
    "every-section": Experiment(
        "each section of the three her2st patients from the other two",
        _all_of(*_SECTIONS),
        _OURS,
        simulated=_simulated_sections,
    ),
    "unpaired": Experiment(
        "spots of one individual, cells of another",
        _all_of(_other_individual, *_STARMAP),
        _OURS,
        simulated=_other_individual,
    ),
    "simulated": Experiment(
        "sweeps of domain shift, composition mismatch, depth and number of spots",
        _sweeps,
        _OURS,
        needs_data=False,
    ),
    "real-unpaired": Experiment("dissociated cells, scored by dissected layer", _tasic, _OURS),
}


def tasks_of(name: str, *, root: Root = None, simulated: bool = False) -> Callable[[int], Iterable[Task]]:
    """The tasks of an experiment by seed; on simulated tissue instead of data files if asked."""
    if name not in EXPERIMENTS:
        raise InputError(f"There is no experiment {name!r}.", f"Choose one of {', '.join(EXPERIMENTS)}.")
    chosen = EXPERIMENTS[name]
    tasks = (chosen.simulated or _simulated) if simulated and chosen.needs_data else chosen.tasks
    return lambda seed: tasks(root, seed)


def draw(name: str, rows: Sequence[Row], store: Store, tasks: Iterable[Task]) -> dict[str, Figure]:
    """The figures of an experiment, by file name."""
    placed = [row for row in rows if row["metrics"]]
    if not placed:
        return {}
    made = {name: figures.comparison(placed, columns=EXPERIMENTS[name].columns or (*TABLE1, *DEPTH))}
    if name == "simulated":
        made |= {f"{name}-{sweep}": figures.sweep(placed, sweep) for sweep in protocols.SWEEPS}
    if name == "uncertainty":
        truth = {task.name: task.truth for task in tasks if task.truth is not None}
        judged = [row for row in placed if row["seed"] == 0 and "cover90" in row["metrics"]]
        if judged:
            made[f"{name}-curves"] = figures.calibration(
                {
                    f"{row['method']}, {row['task']}": (store.arrays(row["key"]), truth[row["task"]])
                    for row in judged
                }
            )
    if name == "diagnostics":
        for task in tasks:
            first = {row["method"]: row for row in reversed(placed) if row["task"] == task.name}
            layouts = {method: store.arrays(row["key"])["coords"] for method, row in first.items()}
            if task.truth is not None and layouts:
                made[f"{name}-curves"] = figures.diagnostics(layouts, task.truth)
                color = task.cells.obs[task.types].to_numpy() if task.types else None
                made[f"{name}-layouts"] = figures.layouts(layouts, task.truth, color)
    return made
