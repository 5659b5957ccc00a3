"""The data of the benchmark: public sets and simulated tissue, as tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from spatialgears import datasets
from spatialgears.bench import protocols
from spatialgears.bench.protocols import Task
from spatialgears.runtime.seeds import numpy_rng
from spatialgears.text import number

#: Data folder and seed in, tasks out.
Tasks = Callable[[Path | None, int], Iterator[Task]]
SIMULATED: dict[str, Any] = {"n_cells": 1000, "n_genes": 200, "n_sections": 1, "spots": 350}
STRONG_SHIFT = 3.0  # between platforms: accuracy falls


def public(
    protocol: str,
    name: str,
    title: str,
    heldout: str | None = None,
    *,
    donors: tuple[str, str],
    **options: Any,
) -> Tasks:
    """One task of a public set; ``heldout`` names the section to place, None: the set's default.

    ``donors`` are those of the slides and of the cells, ``options`` further attributes of the :class:`Task`.
    """

    def tasks(root: Path | None, seed: int) -> Iterator[Task]:
        found = datasets.load(name, root, heldout=heldout)
        slides = [protocols.of_donor(slide, donors[0]) for slide in found.slides]
        tissue = replace(found, slides=slides, cells=protocols.of_donor(found.cells, donors[1]))
        yield protocols.of_tissue(protocol, title, tissue, **options)

    return tasks


def together(*parts: Tasks) -> Tasks:
    """All tasks of several sets."""

    def tasks(root: Path | None, seed: int) -> Iterator[Task]:
        for part in parts:
            yield from part(root, seed)

    return tasks


def every_nth(n: int, part: Tasks) -> Tasks:
    """The tasks with every n-th of the cells that they place."""

    def tasks(root: Path | None, seed: int) -> Iterator[Task]:
        for task in part(root, seed):
            yield protocols.with_cells(task, np.arange(0, task.cells.n_obs, n), f"1 of {n} cells")

    return tasks


MOUSE_ATLAS = public("pseudo-visium", "mouse_atlas", "Mouse Atlas", donors=("E1", "E1"), truth_on_slide=True)
DLPFC = public("leave-section-out", "dlpfc", "DLPFC 151673 + 151674 → 151675", donors=("Br8100", "Br8100"))
HER2ST = {
    patient: public(
        "leave-section-out",
        f"her2st_{patient}",
        f"her2st {patient}1 + {patient}2 → {patient}3",
        donors=(patient, patient),
    )
    for patient in "ADE"
}
HER2ST_SECTIONS = together(
    *(
        public(
            "leave-section-out", f"her2st_{p}", f"her2st {p}{a} + {p}{b} → {p}{c}", f"{p}{c}", donors=(p, p)
        )
        for p in "ADE"
        for a, b, c in ("123", "132", "231")
    )
)
STARMAP = together(
    *(
        public("unpaired", "starmap_mpfc", f"STARmap {a} → {b}", b, donors=(a, b))
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


EMBRYOS = (
    ("E1z2", "E3z2"),
    ("E3z2", "E1z2"),
    ("E1z2 + E1z5", "E3z2"),
    ("half of E1z2", "E3z2"),
    ("half of E3z2", "E1z2"),
)
PLACED = 3000  # cells of an embryo that are placed, at random


def embryos(root: Path | None, seed: int) -> Iterator[Task]:
    """Cells of one mouse embryo from pseudo-Visium spots of the other: a section, two sections, half a section."""
    for slides, placed in EMBRYOS:
        tissue = datasets.load("mouse_embryos", root, heldout=placed)
        names = [name for name in datasets.REGISTRY["mouse_embryos"].sections if name != placed]
        sections = dict(zip(names, tissue.slides, strict=True))
        given = []
        for name in slides.removeprefix("half of ").split(" + "):
            spots = datasets.pseudo_visium(sections[name], grid=(30, 40))
            if slides.startswith("half"):
                along = np.asarray(spots.obsm["spatial"])[:, 1]
                spots = spots[along < np.median(along)]
            given.append(protocols.of_donor(spots, name[:2]))
        some = _some(tissue.cells.n_obs, placed)
        cells = protocols.of_donor(tissue.cells[some], placed[:2])
        found = replace(tissue, slides=given, cells=cells, truth=tissue.truth[some].copy())
        yield protocols.of_tissue("other donor", f"embryo {slides} → {placed}", found)


def _some(n_cells: int, section: str) -> np.ndarray:
    """Positions of the cells of an embryo's section that are used."""
    return np.sort(numpy_rng(0, "placed", section).permutation(n_cells)[:PLACED])


def patients(root: Path | None, seed: int) -> Iterator[Task]:
    """A section of one her2st patient from sections of two others."""
    first = {p: datasets.load(f"her2st_{p}", root, heldout=f"{p}3").slides[0] for p in "ADE"}
    sections = {f"{p}1": protocols.of_donor(slide, p) for p, slide in first.items()}
    for task in protocols.leave_section_out(sections):
        yield replace(task, protocol="other donor", name=f"her2st {task.name}")


def simulated_donors(_: Path | None, seed: int) -> Iterator[Task]:
    """Simulated cells of another individual, from slides of one, two, four and eight."""
    for n_donors in (1, 2, 4, 8):
        tissue = datasets.simulate_tissue(seed=seed, unpaired=True, n_donors=n_donors, **SIMULATED)
        cells = protocols.of_donor(tissue.cells, "another donor")
        slides = [protocols.of_donor(one, f"donor {i + 1}") for i, one in enumerate(tissue.slides)]
        name = f"simulated, {number(n_donors, 'donor')}"
        setting = {"donors": n_donors}
        found = replace(tissue, slides=slides, cells=cells)
        yield protocols.of_tissue("other donor", name, found, setting=setting, seeded=True)


DONORS = together(embryos, STARMAP, patients, simulated_donors)
AROUND = (5, 20)  # nearest true neighbours whose counts are added


def with_neighbours(part: Tasks) -> Tasks:
    """The tasks of ``part``, each followed by easier ones: cells carry the counts of their true neighbours, too.

    Such a profile keeps what cells at one position share, and loses what a single cell has of its own.
    """

    def tasks(root: Path | None, seed: int) -> Iterator[Task]:
        for task in part(root, seed):
            yield task
            for n in AROUND:
                yield protocols.with_neighbours(task, n)

    return tasks


def one_section(root: Path | None, seed: int) -> Iterator[Task]:
    """Cells of one mouse embryo from a section of the other."""
    yield from islice(embryos(root, seed), 2)


def sections_as_cells(root: Path | None, seed: int) -> Iterator[Task]:
    """The same from cells of that section, at their true positions, instead of spots."""
    for task, (source, _) in zip(one_section(root, seed), EMBRYOS, strict=False):
        other = datasets.load("mouse_embryos", root, heldout=source)
        some = _some(other.cells.n_obs, source)
        slide = protocols.of_donor(other.cells[some], source[:2])
        slide.obsm["spatial"] = np.asarray(other.truth.obsm["spatial"])[some]
        yield replace(task, name=f"{task.name}, from {number(PLACED, 'cell')}", slides=[slide])


DONOR_LIMITS = together(with_neighbours(together(one_section, STARMAP, patients)), sections_as_cells)


def small_panels(root: Path | None, seed: int) -> Iterator[Task]:
    """Slides that show a part of the genes that the cells have."""
    for task in every_nth(4, MOUSE_ATLAS)(root, seed):
        yield protocols.with_panel(task, 100)
    for task in one_section(root, seed):
        yield protocols.with_panel(task, 100)
    for task in STARMAP(root, seed):
        yield protocols.with_panel(task, 60)
    for task in HER2ST["E"](root, seed):
        yield protocols.with_panel(task, 150, among=600)


def simulated_small_panel(root: Path | None, seed: int) -> Iterator[Task]:
    """Simulated cells of another individual, from a slide that shows a fifth of their genes."""
    for task in other_individual(root, seed):
        yield protocols.with_panel(task, 40)


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
