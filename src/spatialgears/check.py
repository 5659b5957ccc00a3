"""The report on inputs before a run: what they are, warnings, and what a run will cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from scipy import sparse

from spatialgears.config import Config, Preset
from spatialgears.metrics.points import spot_pitch
from spatialgears.text import duration, number, size
from spatialgears.validate import input_names
from spatialgears.validate.agreement import SlideCellAgreement, depths
from spatialgears.validate.donors import CellsFrom, Donors
from spatialgears.validate.sampling import validate_sampled

if TYPE_CHECKING:
    from anndata import AnnData

    from spatialgears.pipeline.cost import Cost


@dataclass(frozen=True)
class InputSummary:
    """One input in numbers: medians per observation on the shared genes; for slides the spacing of spots."""

    name: str
    observations: int
    genes: int
    depth: float
    detected: float
    empty: int
    spacing: float | None = None


@dataclass(frozen=True)
class CheckReport:
    """What :func:`check_inputs` found.

    Attributes
    ----------
    slides, cells
        Each input in numbers.
    kind
        ``"counts"``, ``"normalised"``, or ``"mixed"``: the cells are counts and a slide is not.
    shared_genes, panel_genes, spatial_genes
        Genes in every input; those that a run uses; of these, those with a mean Moran's I above 0.1, and above what
        chance gives on so many spots.
    other_genes
        Genes that only the cells have and that help to place them: 0 where slides show a whole transcriptome.
    depth_ratio
        Median depth of spots over that of cells; None without cells or counts.
    agreement
        Pearson correlation between slides and cells of the log mean expression of genes; None without cells.
    coexpression
        The same for the correlations between genes, divided by the largest value that noise allows; None without cells, or
        where all is noise.
    unknown
        Why one of these three is None, by its name.
    donors
        The donor of each slide, and whether that was stated.
    warnings
        Warnings about a run on these inputs, in words.
    cost
        Expected time and memory of a run with this configuration.
    """

    slides: list[InputSummary]
    cells: InputSummary | None
    kind: str
    shared_genes: int
    panel_genes: int
    spatial_genes: int
    other_genes: int
    depth_ratio: float | None
    agreement: float | None
    coexpression: float | None
    unknown: Mapping[str, str]
    donors: Donors
    warnings: list[str]
    cost: Cost

    def __repr__(self) -> str:
        spots = sum(one.observations for one in self.slides)
        inputs = [f"{number(len(self.slides), 'slide')} with {number(spots, 'spot')}"]
        inputs += [number(self.cells.observations, "cell")] if self.cells else []
        lines = [
            f"{', '.join(inputs)}: {self.kind}",
            f"{number(self.shared_genes, 'gene')} in every input, of which {self.spatial_genes:,} vary in space",
            f"Donors: {self.donors.words}",
            f"A run takes about {duration(self.cost.seconds)} and {size(self.cost.peak_bytes)} of memory.",
            *(
                ["Warnings", *(f"  - {text}" for text in self.warnings)]
                if self.warnings
                else ["No warnings."]
            ),
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def check_inputs(
    slides: Sequence[AnnData] | AnnData,
    cells: AnnData | None = None,
    *,
    config: Config | Preset = "default",
    names: Sequence[str] | None = None,
    layer: str | None = None,
    spatial_key: str = "spatial",
    normalised: bool = False,
    donors: Sequence[str] | None = None,
    cells_from: CellsFrom | None = None,
) -> CheckReport:
    """Check slides and cells as a run would, and describe them. Nothing is changed.

    Of very many cells a random sample is described; the cost is that of all.

    Parameters
    ----------
    slides, cells
        As for :meth:`spatialgears.GEARS.fit`; without cells, the slides alone.
    config
        The configuration whose cost is predicted, or the name of a preset.
    names
        What to call slides and cells, in this order.
    layer, spatial_key, normalised, donors, cells_from
        As for :meth:`spatialgears.GEARS.fit`.

    Returns
    -------
    CheckReport
        Numbers of each input, shared and spatial genes, ``warnings``, and the expected ``cost``.

    Raises
    ------
    InputError
        If they cannot be used.

    Examples
    --------
    >>> import spatialgears as sg
    >>> tissue = sg.datasets.simulate_tissue(n_cells=300, n_genes=100, spots=150, seed=0)
    >>> found = sg.check_inputs(tissue.slides, tissue.cells)
    >>> found.shared_genes, found.kind
    (100, 'counts')
    """
    config = config if isinstance(config, Config) else Config.preset(config)
    slides = [slides] if hasattr(slides, "obsm") else list(slides)
    names = input_names(names, len(slides))
    valid = validate_sampled(
        slides,
        cells,
        seed=config.seed,
        layer=layer,
        spatial_key=spatial_key,
        normalised=normalised,
        names=names,
        donors=donors,
        cells_from=cells_from,
    )
    from spatialgears.expression.panel import NEIGHBORS
    from spatialgears.pipeline.prepare import prepare  # torch comes with it: only once the input is valid
    from spatialgears.pipeline.self_check import SPATIAL

    prepared = prepare(valid, config)
    # spread of Moran's I without any pattern
    chance = (2 / (NEIGHBORS * sum(map(len, prepared.slides)))) ** 0.5
    summaries = [
        _summary(names[i], valid.slides[i], slide.n_vars, valid.empty_spots[i], valid.coords[i])
        for i, slide in enumerate(slides)
    ]
    placed = None
    if valid.cells is not None and cells is not None:
        placed = _summary(names[len(slides)], valid.cells, cells.n_vars, valid.empty_cells)
        share = cells.n_obs / len(valid.empty_cells)  # of very many cells some were looked at
        placed = replace(placed, observations=cells.n_obs, empty=round(placed.empty * share))
    cost = prepared.cost(config, n_cells=0 if cells is None else cells.n_obs)
    agreement = SlideCellAgreement.of(prepared.inputs)
    return CheckReport(
        slides=summaries,
        cells=placed,
        kind=valid.kind,
        shared_genes=len(valid.genes),
        panel_genes=len(prepared.panel),
        spatial_genes=int((prepared.panel.morans_i > max(SPATIAL, 3 * chance)).sum()),
        other_genes=prepared.other_genes,
        depth_ratio=agreement.depth_ratio,
        agreement=agreement.agreement,
        coexpression=agreement.coexpression,
        unknown=agreement.unknown,
        donors=valid.donors,
        warnings=[*prepared.warnings, *_memory(cost), *prepared.foreseen],
        cost=cost,
    )


def _summary(
    name: str, counts: sparse.csr_matrix, n_genes: int, empty: np.ndarray, coords: np.ndarray | None = None
) -> InputSummary:
    spacing = None if coords is None else spot_pitch(coords)
    return InputSummary(
        name=name,
        observations=counts.shape[0],
        genes=n_genes,
        depth=float(np.median(depths(counts))),
        detected=float(np.median(np.diff(counts.indptr))),
        empty=int(empty.sum()),
        spacing=spacing,
    )


def _memory(cost: Cost) -> list[str]:
    available = psutil.virtual_memory().available
    if cost.peak_bytes <= available:
        return []
    return [
        f"A run needs about {cost.peak_bytes / 1e9:.1f} GB, {available / 1e9:.1f} GB are free; "
        "try --preset quick or fewer genes (--set expression.n_genes=500)."
    ]
