"""Protocols: data with known positions, or known layers, as tasks for any method.

A :class:`Task` has slides to learn from, cells to place, and a score. Protocols take any AnnData with raw counts in
``.X`` and coordinates in ``obsm["spatial"]``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from anndata import AnnData
from scipy.spatial import KDTree

from spatialgears import datasets, metrics
from spatialgears.bench.depth import score_depth
from spatialgears.datasets import Tissue
from spatialgears.datasets.spots import Layout
from spatialgears.errors import InputError
from spatialgears.runtime.seeds import numpy_rng
from spatialgears.validate.donors import KEY

Score = Callable[[np.ndarray], dict[str, float]]

#: Depth of the cortical layers that Tasic et al. dissected; "upper" and "lower" span several layers.
CORTEX = {
    "L1": 1.0,
    "L1-L2/3": 2.0,
    "upper": 2.5,
    "L4": 4.0,
    "L5": 5.0,
    "lower": 5.5,
    "L6a": 6.0,
    "L6": 6.2,
    "L6b": 6.5,
}


@dataclass(frozen=True, eq=False)
class Task:
    """One placement problem."""

    #: The protocol, and the name in tables.
    protocol: str
    name: str
    slides: Sequence[AnnData]  # sections with ``obsm["spatial"]``
    cells: AnnData  # the cells to place, without coordinates
    score: Score  # coordinates (n, 2) in, metrics out
    #: (n, 2) true positions where they are known. Only the supervised ceiling is given them.
    truth: np.ndarray | None = None
    #: Column of ``cells.obs`` with cell types, for peers that need them; None: clusters are computed.
    types: str | None = None
    #: What was varied, for example ``{"shift": 0.5}``.
    setting: Mapping[str, Any] = field(default_factory=dict)
    seeded: bool = False  # whether the data depend on the seed, as simulated data do
    truth_on_slide: bool = False  # whether the true positions are in the coordinate frame of the (one) slide

    def fingerprint(self) -> str:
        """A digest of all values and names, for the keys of rows."""
        digest = hashlib.sha256()
        for adata in [*self.slides, self.cells]:
            counts = sp.csr_matrix(adata.X)
            counts.sort_indices()
            for part in (counts.indptr, counts.indices, counts.data, adata.obsm.get("spatial", np.empty(0))):
                digest.update(np.ascontiguousarray(part).tobytes())
            digest.update("\n".join([*adata.obs_names, *adata.var_names, *donor(adata).values()]).encode())
        return digest.hexdigest()[:16]


def _task(
    protocol: str,
    name: str,
    slides: Sequence[AnnData],
    cells: AnnData,
    *,
    types: str | None = None,
    **options: Any,
) -> Task:
    """A task that is scored against ``cells.obsm["spatial"]``, which methods do not see."""
    truth = np.asarray(cells.obsm["spatial"], dtype=np.float64)[:, :2]
    return Task(
        protocol,
        name,
        slides,
        blind(cells, types),
        lambda coords: metrics.evaluate(coords, truth),
        truth,
        types,
        **options,
    )


def with_cells(task: Task, rows: np.ndarray, note: str) -> Task:
    """The task with some of its cells, whose true positions are known."""
    assert task.truth is not None
    truth, cells = task.truth[rows], task.cells[rows].copy()
    name = f"{task.name}, {note}"
    return replace(
        task, name=name, cells=cells, truth=truth, score=lambda coords: metrics.evaluate(coords, truth)
    )


def with_neighbours(task: Task, n: int) -> Task:
    """The task with the counts of the ``n`` cells nearest to its true position added to each cell."""
    assert task.truth is not None
    near = KDTree(task.truth).query(task.truth, k=n + 1)[1]  # (N, n + 1), the cell itself among them
    rows = np.repeat(np.arange(len(near)), n + 1)
    adds = sp.csr_matrix((np.ones(near.size, np.float32), (rows, near.ravel())), shape=(len(near),) * 2)
    cells = task.cells.copy()
    cells.X = adds @ sp.csr_matrix(cells.X)
    return replace(task, name=f"{task.name}, with {n} neighbours", cells=cells)


def with_panel(task: Task, n: int, *, among: int | None = None) -> Task:
    """The task with slides that show a random ``n`` of the genes only, of those ``among`` that most cells show; cells keep all.

    Cells without a count of these genes are left out.
    """
    assert task.truth is not None
    shared = set.intersection(*(set(one.var_names) for one in [*task.slides, task.cells]))
    there = task.cells.var_names[task.cells.var_names.isin(shared)]
    detected = np.asarray((sp.csr_matrix(task.cells[:, there].X) > 0).sum(0)).ravel()
    genes = np.sort(there[np.argsort(-detected, kind="stable")[:among]].to_numpy(dtype=str))
    panel = np.sort(numpy_rng(0, "panel", task.name).permutation(genes)[:n])
    rows = np.flatnonzero(np.asarray(task.cells[:, panel].X.sum(1)).ravel() > 0)
    found = with_cells(task, rows, f"slides of {n} genes")
    return replace(found, slides=[one[:, panel].copy() for one in task.slides])


def of_tissue(protocol: str, name: str, tissue: Tissue, **options: Any) -> Task:
    """The task of a :class:`~spatialgears.datasets.Tissue` with known positions."""
    cells = tissue.cells.copy()
    cells.obsm["spatial"] = tissue.truth.obsm["spatial"]
    types = "cell_type" if "cell_type" in cells.obs else None
    return _task(protocol, name, tissue.slides, cells, types=types, **options)


def blind(cells: AnnData, types: str | None = None) -> AnnData:
    """The cells' counts, names, types and donor, and nothing else that could reveal positions."""
    return AnnData(
        X=sp.csr_matrix(cells.X),
        obs=cells.obs[[types] if types else []].copy(),
        var=cells.var[[]].copy(),
        uns=donor(cells),
    )


def donor(adata: AnnData) -> dict[str, str]:
    """What ``uns`` says of the donor; empty if nothing."""
    return {KEY: str(adata.uns[KEY])} if KEY in adata.uns else {}


def of_donor(adata: AnnData, name: str) -> AnnData:
    """A copy that says whose it is."""
    adata = adata.copy()
    adata.uns[KEY] = name
    return adata


def pseudo_visium(
    cells: AnnData,
    *,
    name: str = "cells",
    layouts: Sequence[Layout] = ("square", "hex"),
    fractions: Sequence[float] = (0.55,),
    grid: tuple[int, int] | None = None,
    min_cells: int = 3,
    types: str | None = None,
) -> Iterator[Task]:
    """Cells with known positions are summed into spots, then placed from these spots (section 4.1).

    One task for each of ``layouts`` (``"square"``, ``"hex"``) and ``fractions`` (spot widths in units of the pitch).
    ``grid`` and ``min_cells`` are those of :func:`spatialgears.datasets.pseudo_visium`; by default the grid has as many
    cells per position as that of Mouse Atlas.
    """
    grid = grid or _grid_for(np.asarray(cells.obsm["spatial"])[:, :2])
    for layout in layouts:
        for fraction in fractions:
            slide = datasets.pseudo_visium(
                cells, grid=grid, min_cells=min_cells, layout=layout, spot_fraction=fraction
            )
            setting = {"layout": layout, "spot_fraction": fraction}
            yield _task(
                "pseudo-visium",
                f"{name}, {layout} {fraction:g}",
                [slide],
                cells,
                types=types,
                setting=setting,
                truth_on_slide=True,
            )


def _grid_for(coords: np.ndarray, *, cells_per_position: float = 8.5) -> tuple[int, int]:
    """Columns and rows of a grid with so many cells per position."""
    width, height = np.ptp(coords, axis=0)
    columns = np.sqrt(len(coords) / cells_per_position * width / height)
    return max(2, round(columns)), max(2, round(columns * height / width))


def leave_section_out(
    sections: Mapping[str, AnnData], *, held_out: Sequence[str] | None = None
) -> Iterator[Task]:
    """Learn from all sections but one, and place the spots of that one (the paper's hSCC protocol).

    Each of ``held_out``, by default of all sections, is held out in turn.
    """
    if len(sections) < 2:
        raise InputError(
            f"leave-section-out needs at least two sections, found {len(sections)}.", "Give --st twice."
        )
    for name in held_out or sections:
        others = [key for key in sections if key != name]
        yield _task(
            "leave-section-out",
            f"{' + '.join(others)} → {name}",
            [sections[key] for key in others],
            sections[name],
        )


def unpaired(
    slides: Sequence[AnnData], cells: AnnData, *, name: str = "unpaired", types: str | None = None
) -> Iterator[Task]:
    """Learn from slides of one individual, place the cells of another; their known positions are hidden."""
    yield _task("unpaired", name, slides, cells, types=types)


#: Properties of simulated tissue that the sweeps vary, and their values.
SWEEPS: dict[str, tuple[Any, ...]] = {
    "shift": (0.0, 1.0, 2.0, 4.0),
    "composition_shift": (0.0, 0.5, 1.0, 2.0),
    "cell_depth": (150, 600, 2400),
    "spots": (150, 400, 1000),
}


def simulated(
    *, seed: int = 0, sweep: str | None = None, values: Sequence[float] | None = None, **options: Any
) -> Iterator[Task]:
    """Simulated tissue with known positions; a sweep varies domain shift, composition, depth or spots.

    ``sweep`` is a key of :data:`SWEEPS`, whose values are used unless others are given; None: one task with the
    simulator's defaults. ``options`` are passed to :func:`spatialgears.datasets.simulate_tissue`.
    """
    if sweep is not None and sweep not in SWEEPS:
        raise InputError(
            f"There is no sweep {sweep!r}; there are {', '.join(SWEEPS)}.", "Choose one of them."
        )
    for value in (values or SWEEPS[sweep]) if sweep else (None,):
        setting = {sweep: value} if sweep else {}
        tissue = datasets.simulate_tissue(seed=seed, **{**options, **setting})
        name = "simulated, other individual" if options.get("unpaired") else "simulated"
        name += f", {sweep} {value:g}" if sweep else ""
        yield of_tissue("simulated", name, tissue, setting=setting, seeded=True)


def real_unpaired(
    slides: Sequence[AnnData],
    cells: AnnData,
    *,
    known: str = "layer_dissected",
    order: Mapping[str, float] = CORTEX,
    name: str = "dissociated",
    types: str | None = None,
) -> Iterator[Task]:
    """Dissociated cells with unknown positions, scored by the layer ``known`` that each was dissected from.

    ``order`` has the depth of each label. Cells with another label (for example "All") are placed with the others but not
    scored.
    """
    labels = cells.obs[known].astype(str)
    depth = labels.map(order).to_numpy(dtype=np.float64)
    scored = np.isfinite(depth)
    if len(np.unique(depth[scored])) < 2:
        raise InputError(
            f"obs[{known!r}] holds {', '.join(sorted(labels.unique())[:8])}, "
            f"fewer than two of {', '.join(order)}.",
            "Pass order={label: depth}.",
        )

    def score(coords: np.ndarray) -> dict[str, float]:
        return score_depth(np.asarray(coords)[scored], depth[scored])

    yield Task("real-unpaired", name, slides, blind(cells, types), score, types=types)
