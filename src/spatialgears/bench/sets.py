"""The data of the benchmark: public sets and simulated tissue, as tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from spatialgears import datasets
from spatialgears.bench import protocols
from spatialgears.bench.protocols import Task

#: Data folder and seed in, tasks out.
Tasks = Callable[[Path | None, int], Iterator[Task]]
SIMULATED: dict[str, Any] = {"n_cells": 1000, "n_genes": 200, "n_sections": 1, "spots": 350}
STRONG_SHIFT = 3.0  # between platforms: accuracy falls


def public(protocol: str, name: str, title: str, heldout: str | None = None, **options: Any) -> Tasks:
    """One task of a public set; ``heldout`` names the section to place, None: the set's default.

    ``options`` are further attributes of the :class:`Task`.
    """

    def tasks(root: Path | None, seed: int) -> Iterator[Task]:
        yield protocols.of_tissue(protocol, title, datasets.load(name, root, heldout=heldout), **options)

    return tasks


def together(*parts: Tasks) -> Tasks:
    """All tasks of several sets."""

    def tasks(root: Path | None, seed: int) -> Iterator[Task]:
        for part in parts:
            yield from part(root, seed)

    return tasks


MOUSE_ATLAS = public("pseudo-visium", "mouse_atlas", "Mouse Atlas", truth_on_slide=True)
DLPFC = public("leave-section-out", "dlpfc", "DLPFC 151673 + 151674 → 151675")
HER2ST = {
    patient: public("leave-section-out", f"her2st_{patient}", f"her2st {patient}1 + {patient}2 → {patient}3")
    for patient in "ADE"
}
HER2ST_SECTIONS = together(
    *(
        public("leave-section-out", f"her2st_{p}", f"her2st {p}{a} + {p}{b} → {p}{c}", f"{p}{c}")
        for p in "ADE"
        for a, b, c in ("123", "132", "231")
    )
)
STARMAP = together(
    *(
        public("unpaired", "starmap_mpfc", f"STARmap {a} → {b}", b)
        for a, b in (("BZ5", "BZ9"), ("BZ9", "BZ5"))
    )
)


def simulated(_: Path | None, seed: int) -> Iterator[Task]:
    """One simulated tissue; every seed is another tissue."""
    yield from protocols.simulated(seed=seed, **SIMULATED)


def sweeps(_: Path | None, seed: int) -> Iterator[Task]:
    """Simulated tissues that differ in one property at a time."""
    for sweep in protocols.SWEEPS:
        yield from protocols.simulated(seed=seed, sweep=sweep, **SIMULATED)


def other_individual(_: Path | None, seed: int) -> Iterator[Task]:
    """Simulated cells of another individual, without and with a strong shift between platforms."""
    yield from protocols.simulated(seed=seed, unpaired=True, **SIMULATED)
    yield from protocols.simulated(
        seed=seed, unpaired=True, sweep="shift", values=(STRONG_SHIFT,), **SIMULATED
    )


def simulated_sections(_: Path | None, seed: int) -> Iterator[Task]:
    """Three simulated sections; the last is placed from the others."""
    slides = datasets.simulate_tissue(seed=seed, **{**SIMULATED, "n_sections": 3}).slides
    named = {f"section {i + 1}": slide for i, slide in enumerate(slides)}
    for task in protocols.leave_section_out(named, held_out=[list(named)[-1]]):
        yield replace(task, seeded=True)


def spot_grids(root: Path | None, seed: int) -> Iterator[Task]:
    """Mouse Atlas with square and hexagonal spots of three widths."""
    tissue = datasets.load("mouse_atlas", root)
    cells = tissue.cells.copy()
    cells.obsm["spatial"] = tissue.truth.obsm["spatial"]
    yield from protocols.pseudo_visium(
        cells, name="Mouse Atlas", fractions=(0.4, 0.55, 0.8), grid=(30, 40), types="cell_type"
    )


def dissociated_cortex(root: Path | None, seed: int) -> Iterator[Task]:
    """Dissociated cells whose layer is known, on a seqFISH slide of cortex."""
    tissue = datasets.load("seqfish_tasic", root)
    cells = tissue.cells.copy()
    cells.obs["layer"] = tissue.truth.obs["layer"].to_numpy()
    yield from protocols.real_unpaired(
        tissue.slides, cells, known="layer", name="Tasic → seqFISH", types="cell_type"
    )


def demo(_: Path | None, seed: int) -> Iterator[Task]:
    """The tissue of ``gears demo``, the same for all seeds."""
    yield protocols.of_tissue(
        "simulated", "demo", datasets.simulate_tissue(n_cells=2000, n_sections=2, seed=0)
    )
