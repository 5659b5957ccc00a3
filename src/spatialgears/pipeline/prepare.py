"""From valid inputs to what a fit learns from: folds, gene panel, canonical slides, and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from spatialgears.config import Config
from spatialgears.expression.matching import matched_counts
from spatialgears.expression.other_genes import MOST, enough
from spatialgears.expression.panel import WHOLE_TRANSCRIPTOME, Panel, build_panel
from spatialgears.pipeline.cost import Cost, predict_cost
from spatialgears.pipeline.foreseen import foreseen
from spatialgears.pipeline.likeness import Likeness
from spatialgears.supervision.folds import Folds, models_left_out
from spatialgears.supervision.slides import Frame, canonicalise
from spatialgears.validate import ValidInputs
from spatialgears.validate.agreement import SlideCellAgreement
from spatialgears.validate.order import canonical_order
from spatialgears.validate.repeats import without_repeats


@dataclass(frozen=True, eq=False)
class Prepared:
    """Everything that a fit learns from, as arrays on the genes of the panel."""

    inputs: ValidInputs  # what was validated, in canonical order
    order: list[int]  # for each slide, in the order given, its position in ``slides`` and ``inputs``
    spots: list[sparse.csr_matrix]  # counts (n_i, G) of each slide; spots without any count are left out
    rows: list[NDArray[np.int64]]  # the row (n_i,) of each of these in its slide as given
    #: Canonical coordinates (n_i, 2) of each slide's spots, and the way back to the slide's own.
    slides: list[NDArray[np.float64]]
    frames: list[Frame]
    #: Counts (n, G), cells without any count left out; None where only slides are checked.
    cells: sparse.csr_matrix | None
    panel: Panel  # the genes and their weights
    folds: Folds  # which spots are held out of which model
    likeness: Likeness  # how far cells are averaged, given their similarity to the slides
    warnings: list[str]  # warnings about the inputs, in words
    foreseen: list[str]  # warnings that the run will end with however training goes, in words
    #: Whether slides had values that are not counts, and counts were matched to those of the cells.
    matched: bool = False
    #: Counts (n, E) of the same cells in genes that the slides lack (``inputs.other_genes``); None where they are not used.
    others: sparse.csr_matrix | None = None

    @property
    def other_genes(self) -> int:
        """How many genes that the slides lack help to place the cells."""
        return 0 if self.others is None else min(MOST, self.others.shape[1])

    @property
    def raw(self) -> bool:
        """Whether the values are counts."""
        return self.inputs.kind == "counts"

    def cost(self, config: Config, *, n_cells: int | None = None) -> Cost:
        """Expected time and memory of a run on these inputs, whose cells may be a sample of ``n_cells``."""
        given = 0 if self.inputs.cells is None else self.inputs.cells.shape[0]
        n_cells = given if n_cells is None else n_cells
        stored = sum(one.nnz for one in self.inputs.slides)
        if self.inputs.cells is not None:
            stored += round(self.inputs.cells.nnz * n_cells / given)
        if self.inputs.others is not None:
            stored += self.inputs.others.nnz
        return predict_cost(
            sum(one.shape[0] for one in self.inputs.slides),
            n_cells,
            len(self.panel),
            config,
            stored=stored,
            n_slides=len(self.slides),
            wholes=self.folds.wholes,
            shared_genes=len(self.inputs.genes),
        )


def prepare(inputs: ValidInputs, config: Config) -> Prepared:
    """Decide folds and genes on valid inputs. ``gears check`` and a run both call this, so that they agree."""
    matched = inputs.kind == "mixed"
    inputs, order = canonical_order(inputs)
    inputs = as_counts(without_repeats(inputs, order))
    spots, places, cells = inputs.without_empty()
    folds = draw_folds([len(coords) for coords in places], config, wholes=inputs.donors.left_out)
    panel, columns = choose_panel(spots, places, cells, folds, inputs=inputs, config=config)
    agreement = SlideCellAgreement.of(inputs)
    left_out = folds.left_out > 0 and inputs.donors.count > 1
    likeness = Likeness.of(
        None if matched else agreement.coexpression,  # intensities and counts of one donor differ in it, too
        config,
        other_donor=inputs.cells_from == "other-donor",
        left_out=left_out,
    )
    canonical, frames = zip(*(canonicalise(coords) for coords in places), strict=True)
    return Prepared(
        inputs=inputs,
        order=order,
        spots=[counts[:, columns] for counts in spots],
        rows=[rows[~empty] for rows, empty in zip(inputs.spot_rows, inputs.empty_spots, strict=True)],
        slides=list(canonical),
        frames=list(frames),
        cells=None if cells is None else cells[:, columns],
        panel=panel,
        folds=folds,
        warnings=[*inputs.warnings, *agreement.warnings(config), *filter(None, [likeness.words])],
        foreseen=foreseen(panel.morans_i, inputs.donors, folds, [len(coords) for coords in places]),
        matched=matched,
        likeness=likeness,
        others=_others(inputs, config),
    )


def _others(inputs: ValidInputs, config: Config) -> sparse.csr_matrix | None:
    """Counts (n, E) of cells that are not empty in genes that the slides lack, where they are enough to be used."""
    wanted = config.expression.other_genes > 0 and config.geometry.inputs != "embedding"
    if not wanted or inputs.others is None:
        return None
    others = inputs.others[np.flatnonzero(~inputs.empty_cells)]
    return others if enough(others) else None


def as_counts(inputs: ValidInputs) -> ValidInputs:
    """The inputs, with counts matched to those of the cells for slides that have none; others as they are."""
    if inputs.kind != "mixed":
        return inputs
    assert inputs.cells is not None
    slides, forms = zip(inputs.slides, inputs.forms, strict=False), inputs.forms
    found = [one if form == "counts" else matched_counts(one, inputs.cells) for one, form in slides]
    warning = (
        "The slides have values that are not counts, and the cells have counts: each gene's values are quantile-matched to "
        "its rates in the cells."
    )
    return replace(
        inputs,
        slides=found,
        kind="counts",
        forms=["counts"] * len(forms),
        warnings=[*inputs.warnings, warning],
    )


def draw_folds(sizes: Sequence[int], config: Config, *, wholes: Sequence[int] | None = None) -> Folds:
    """The folds of a run on slides with ``sizes`` spots each; slides with equal ``wholes`` are left out together."""
    g, wholes = config.geometry, range(len(sizes)) if wholes is None else wholes
    left_out = models_left_out(len(set(wholes))) if g.slide_steps else 0
    return Folds.draw(
        sizes, crossfit=g.generators(left_out), left_out=left_out, seed=config.seed, wholes=wholes
    )


def choose_panel(
    spots: Sequence[sparse.csr_matrix],
    places: Sequence[NDArray[np.float64]],
    cells: sparse.csr_matrix | None,
    folds: Folds,
    *,
    inputs: ValidInputs,
    config: Config,
) -> tuple[Panel, NDArray[np.int64]]:
    """The gene panel of a run and its columns among the shared genes; without cells, the spots alone choose it.

    Gene selection can leak positions. Of thousands of genes, some look spatial on a few hundred spots by chance, because
    neighbouring spots share noise. Such a gene reveals the position of these spots, but of no cell. On one slide of a whole
    transcriptome, held-out spots therefore take no part in the selection. Several slides do not share noise.
    """
    known = np.ones(len(folds.part), dtype=bool)
    if len(places) == 1 and len(inputs.genes) > WHOLE_TRANSCRIPTOME and 2 * folds.held_out.sum() < len(known):
        known = ~folds.held_out
    rows = np.split(known, np.cumsum([len(coords) for coords in places])[:-1])
    return build_panel(
        [counts if keep.all() else counts[keep] for counts, keep in zip(spots, rows, strict=True)],
        [coords[keep] for coords, keep in zip(places, rows, strict=True)],
        sparse.vstack(spots) if cells is None else cells,
        genes=inputs.genes,
        config=config.panel_settings,
        raw=inputs.kind == "counts",
    )
