"""The check on cells: the placed cells should show the spatial patterns of genes that were masked during placing.

Held-out spots say how well spots are placed, but a spot is not a dissociated cell. Genes test the cells themselves, without
labels and without known positions. Some of the genes are masked, all cells are placed by the others, and each spot's value
of the masked genes is predicted from the cells placed nearest to it. If the cells are where they belong, the prediction
follows the pattern that was measured on the slide.

:mod:`spatialgears.pipeline.gene_reading` makes the predictions; here is what they say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from spatialgears.pipeline.gene_reading import CheckedSlide, Reading

Verdict = Literal["good", "fair", "weak", "none", "not checked"]
TITLE = "Cells, by kept-out genes"
NOT_CHECKED = "Not checked: "
MOST_CELLS = 10_000  # that are looked at
FEWEST_CELLS, FEWEST_GENES = 100, 10  # fewer have no power
LEAST_CEILING = 0.2  # if noise allows less than this, single genes say nothing
#: Share of cells that fit their position no better than others do, from which there is a warning.
MANY_UNMATCHED = 0.2
ABOVE_CHANCE = 4.0  # standard deviations of shuffled cells by which the correlation must exceed theirs
#: Smallest share of the ceiling for each verdict; below the last one the cells do not show the patterns.
LEVELS: tuple[tuple[float, Verdict], ...] = ((0.5, "good"), (0.3, "fair"), (0.1, "weak"))
FIGURES = (
    "r",
    "se",
    "reference",
    "shuffled",
    "ceiling",
    "n_genes",
    "n_cells",
    "verdict",
    "words",
    "unmatched",
)
#: Quantiles of the correlation at which genes are shown: a good, a typical and a poor one.
SHOWN = (0.9, 0.5, 0.1)
UNMATCHED = (
    "About {:.0%} of the cells fit their predicted position no better than other cells would, judged by genes that were "
    "masked. They may be empty droplets, debris or doublets, or of a type that the slides lack. Filter the cells more "
    "strictly, or read only what many cells show."
)
MEANING: Mapping[Verdict, str] = {
    "good": "The placed cells show the spatial patterns of genes that the placing did not see.",
    "fair": "The placed cells show the spatial patterns of genes that the placing did not see, but only in outline: read "
    "regions, not single cells.",
    "weak": "The placed cells show little of the spatial patterns of genes that the placing did not see: read only the "
    "large-scale layout.",
    "none": "The placed cells do not show the spatial patterns of genes that the placing did not see. Do not use the "
    "coordinates.",
}


@dataclass(frozen=True, eq=False)
class Patterns:
    """Three kept-out genes over the spots of one slide, as measured and as predicted from the cells.

    Attributes
    ----------
    genes, r
        Their names, and the correlation of prediction and measurement.
    slide
        The number of the slide.
    coords
        (m, 2) coordinates of the spots, in the slide's own units.
    measured, predicted
        (m, 3) each.
    """

    genes: Sequence[str]
    r: Sequence[float]
    slide: int
    coords: NDArray[np.float64]
    measured: NDArray[np.float32]
    predicted: NDArray[np.float32]

    def tensors(self) -> dict[str, torch.Tensor]:
        """The numbers, by name."""
        arrays = {"coords": self.coords, "measured": self.measured, "predicted": self.predicted}
        return {name: torch.from_numpy(np.ascontiguousarray(one)) for name, one in arrays.items()}


@dataclass(frozen=True, eq=False)
class CellCheck:
    """Whether the placed cells show the spatial patterns of genes that were masked during placing.

    Attributes
    ----------
    r, se
        Mean correlation over spots of kept-out genes with their prediction from the nearest placed cells, and its
        standard error over genes.
    reference
        The same by direct mapping: predicted from the most similar cells, without placing any.
    shuffled
        The same with the cells shuffled over their positions.
    ceiling
        The largest correlation that the noise of the slides allows.
    n_genes, n_cells
        How many were used.
    verdict
        ``good``, ``fair``, ``weak``, ``none``, or ``not checked``.
    words
        What that means.
    by_gene
        Name, ``r``, ``reference`` and ``ceiling`` of each gene, the most spatial first.
    patterns
        Three genes, measured beside predicted; None if not checked.
    unmatched
        Share of the cells whose kept-out genes fit the spots where they were placed no better than those of other cells do.
    """

    r: float
    se: float
    reference: float
    shuffled: float
    ceiling: float
    n_genes: int
    n_cells: int
    verdict: Verdict
    words: str
    by_gene: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    patterns: Patterns | None = None
    unmatched: float = float("nan")

    @property
    def title(self) -> str:
        """What was checked."""
        return TITLE

    @property
    def sentence(self) -> str:
        """What was checked and what that says."""
        return f"{TITLE}: {self.words}"

    @property
    def checked(self) -> bool:
        """Whether the check could be made."""
        return self.verdict != "not checked"

    def __repr__(self) -> str:
        return f"{TITLE}: {self.verdict}" + (f", r {self.r:.2f}" if self.checked else "")

    def figures(self) -> dict[str, Any]:
        """The numbers and the verdict, by name."""
        return {name: getattr(self, name) for name in FIGURES}

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the figures, and the genes one by one; what is not known is None."""
        found = {name: None if one != one else one for name, one in self.figures().items()}
        return found | {"by_gene": {name: list(values) for name, values in self.by_gene.items()}}

    def meta(self) -> dict[str, Any]:
        """The facts, for a model folder."""
        shown = self.patterns
        about = None if shown is None else {"genes": shown.genes, "r": shown.r, "slide": shown.slide}
        return self.to_dict() | {"patterns": about}

    @classmethod
    def restore(cls, meta: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> CellCheck:
        """Back from :meth:`meta` and the tensors of the patterns."""
        figures: dict[str, Any] = {
            name: float("nan") if meta.get(name) is None else meta[name] for name in FIGURES
        }
        shown: Any = meta["patterns"]
        arrays: dict[str, Any] = {name: one.numpy() for name, one in tensors.items()}
        return cls(
            **figures, by_gene=meta["by_gene"], patterns=Patterns(**shown, **arrays) if shown else None
        )


def judge(
    reading: Reading,
    slides: Sequence[CheckedSlide],
    *,
    genes: Sequence[str],
    coords: NDArray[np.float64],
    n_cells: int,
) -> CellCheck:
    """The verdict on a reading, in words.

    ``genes`` are the names of the K genes compared, ``coords`` (m, 2) where the spots of the first slide are, in its own
    units.
    """
    r, reference, ceiling = (part.mean(0) for part in (reading.r, reading.reference, reading.ceiling))
    if len(r) < FEWEST_GENES:
        return not_checked(f"{len(r)} genes are too few.", n_cells=n_cells, n_genes=len(r))
    if ceiling.mean() < LEAST_CEILING:
        why = "the slides are too noisy to compare single genes with."
        return not_checked(why, n_cells=n_cells, n_genes=len(r))
    chance = reading.shuffled.mean((1, 2))  # genes are correlated, and so is what chance makes of them
    share = float(r.mean() / ceiling.mean())
    seen = bool(r.mean() > chance.mean() + ABOVE_CHANCE * chance.std(ddof=1))
    verdict: Verdict = next((word for level, word in LEVELS if seen and share >= level), "none")
    se = float(r.std(ddof=1) / np.sqrt(len(r)))
    names = [str(genes[i]) for i in reading.genes]
    figures = (
        f"{len(r):,} genes were kept out and read from the cells placed nearest to each spot. They correlate "
        f"{r.mean():.2f} ± {se:.2f} with the slides; direct mapping, which places no cell, reaches {reference.mean():.2f}, "
        f"shuffled cells {chance.mean():.2f}, and noise allows {ceiling.mean():.2f}."
    )
    return CellCheck(
        r=float(r.mean()),
        se=se,
        reference=float(reference.mean()),
        shuffled=float(chance.mean()),
        ceiling=float(ceiling.mean()),
        n_genes=len(r),
        n_cells=n_cells,
        verdict=verdict,
        words=f"{verdict.capitalize()}. {MEANING[verdict]} {figures}",
        by_gene={
            "gene": names,
            "r": r.round(4).tolist(),
            "reference": reference.round(4).tolist(),
            "ceiling": ceiling.round(4).tolist(),
        },
        patterns=_patterns(reading, slides[0], names, coords),
        unmatched=min(1.0, 2 * float((reading.match[0] < np.median(reading.match[1])).mean())),
    )


def warnings(check: CellCheck, *, spots: bool) -> list[str]:
    """Warnings from the check; ``spots`` says whether held-out spots support the coordinates."""
    if not check.checked:
        return [
            f"The cells were not checked: {check.words.removeprefix(NOT_CHECKED)} Held-out spots are not cells."
        ]
    if check.verdict not in ("weak", "none"):
        return [UNMATCHED.format(check.unmatched)] if check.unmatched >= MANY_UNMATCHED else []
    words = (
        f"{'Weak' if check.verdict == 'weak' else 'Failed'} check on cells: kept-out genes, read from the cells where they "
        f"were placed, correlate {check.r:.2f} with the slides, and noise allows {check.ceiling:.2f}. "
    )
    words += "Do not use the coordinates." if check.verdict == "none" else "Read only the large-scale layout."
    if spots:
        words += " Held-out spots are placed well, but spots are not cells: this check counts."
    return [words]


def not_checked(why: str, *, n_cells: int, n_genes: int = 0) -> CellCheck:
    """The check that could not be made, and why."""
    nan = float("nan")
    return CellCheck(nan, nan, nan, nan, nan, n_genes, n_cells, "not checked", f"{NOT_CHECKED}{why}")


def _patterns(
    reading: Reading, slide: CheckedSlide, names: Sequence[str], coords: NDArray[np.float64]
) -> Patterns:
    ranked = np.argsort(reading.r[0])
    chosen = [int(ranked[round(q * (len(ranked) - 1))]) for q in SHOWN]
    return Patterns(
        genes=[names[i] for i in chosen],
        r=[round(float(reading.r[0, i]), 4) for i in chosen],
        slide=0,
        coords=coords,
        measured=slide.values[:, reading.genes[chosen]],
        predicted=reading.predicted[0][:, chosen],
    )
