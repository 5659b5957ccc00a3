"""The check on cells: the placed cells should show the spatial patterns of genes that were masked during placing.

Held-out spots say how well spots are placed, but a spot is not a dissociated cell. Genes test the cells themselves, without
labels and without known positions. Some of the genes are masked, all cells are placed by the others, and each spot's value
of the masked genes is predicted from the cells placed nearest to it. If the cells are where they belong, the prediction
follows the pattern that was measured on the slide.

Two things limit the correlation: the noise of the slide (the ceiling), and how well cells and slide agree at all (the
reference, which predicts the same genes from the most similar cells without placing any).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from scipy.spatial import KDTree

from spatialgears.expression.normalise import Matrix, Standardiser, dense, log_normalise
from spatialgears.expression.panel import Panel
from spatialgears.runtime.seeds import numpy_rng

Verdict = Literal["good", "fair", "weak", "none", "not checked"]
#: Masked genes (G,) in; positions of the cells (N, 2), and of each slide's spots (m_i, 2) in the same frame, out.
Place = Callable[[NDArray[np.bool_]], tuple[NDArray[np.float64], Sequence[NDArray[np.float64]]]]

TITLE = "Cells, by kept-out genes"
NOT_CHECKED = "Not checked: "
PARTS = 7  # of the panel, masked one after the other
NEAREST = 30  # placed cells whose mean predicts a spot
SPLITS = 3  # of the counts into halves, from which the noise is estimated
SHUFFLES = 20  # of the cells: the correlation reached by chance
TEMPERATURE = 0.07  # of the direct mapping: a spot whose cosine is lower by this has e times less weight
MOST_CELLS, MOST_SPOTS = 10_000, 1000  # that are looked at; spots of each slide
MOST_GENES, MOST_SCORED = 2000, 500  # that cells and spots are compared by, and that are predicted
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
class CheckedSlide:
    """What a fitted model keeps of a slide for the check.

    Attributes
    ----------
    spots
        (m,) some spots, by position.
    values
        (m, K) their expression in the K most spatial genes of the panel: log-normalised, standardised, weighted.
    ceiling
        (K,) the largest correlation over spots that the noise of each gene allows.
    """

    spots: NDArray[np.int64]
    values: NDArray[np.float32]
    ceiling: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        counts: Matrix,
        coords: NDArray[np.float64],
        panel: Panel,
        *,
        raw: bool,
        counted: bool = True,
        seed: int,
    ) -> CheckedSlide:
        """Of a slide with counts (n, G) on the panel, or values if not ``raw``, at coordinates (n, 2).

        The noise of counts that were not ``counted``, but matched to values, is that of the values.
        """
        spots = np.sort(numpy_rng(seed, "checked spots").permutation(counts.shape[0])[:MOST_SPOTS])
        genes = most_spatial(panel.morans_i)
        values = expression(counts, panel, raw=raw, rows=spots).astype(np.float16).astype(np.float32)
        if raw and counted:
            ceiling = noise_ceiling(counts[spots], target=panel.target, seed=seed)[genes]
        else:
            ceiling = smooth_ceiling(values, coords[spots])
        return cls(spots, values, ceiling)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The numbers, by name."""
        return {
            "spots": torch.from_numpy(self.spots),
            "values": torch.from_numpy(self.values).half(),
            "ceiling": torch.from_numpy(self.ceiling),
        }

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> CheckedSlide:
        """Back from :meth:`tensors`."""
        return cls(
            tensors["spots"].numpy(), tensors["values"].float().numpy(), tensors["ceiling"].double().numpy()
        )


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


def most_spatial(morans_i: NDArray[Any], most: int = MOST_GENES) -> NDArray[np.int64]:
    """The genes of highest Moran's I (G,), in their order in the panel."""
    return np.sort(np.argsort(-np.asarray(morans_i), kind="stable")[:most])


def expression(
    counts: Matrix, panel: Panel, *, raw: bool, rows: NDArray[np.int64] | slice = slice(None)
) -> NDArray[np.float32]:
    """Expression (n, K) of the most spatial genes in some profiles of a slide or of cells with counts (N, G).

    Log-normalised, standardised over all profiles, and weighted by the square root of Moran's I.
    """
    genes = most_spatial(panel.morans_i)
    x = (log_normalise(counts, panel.target) if raw else counts)[:, genes]
    weights = np.sqrt(np.clip(panel.morans_i[genes], 1e-6, None))
    found: NDArray[np.float32] = Standardiser.fit(x, raw=raw)(dense(x[rows])).numpy() * np.float32(weights)
    return found


def noise_ceiling(counts: Matrix, *, target: float, seed: int) -> NDArray[np.float64]:
    """The largest correlation (G,) over spots that a perfect prediction of counts (n, G) could reach, by gene.

    The counts of every spot are split into two binomial halves, whose correlation is r. By Spearman and Brown the
    reliability of the whole is 2 r / (1 + r), and the ceiling is its square root.
    """
    whole, r = sp.csr_matrix(counts, dtype=np.float64), np.zeros(counts.shape[1])
    for split in range(SPLITS):
        first, rng = whole.copy(), numpy_rng(seed, "halves", split)
        first.data = rng.binomial(whole.data.astype(np.int64), 0.5).astype(np.float64)
        halves = (log_normalise(half, target / 2).toarray() for half in (first, whole - first))
        r += correlations(*halves) / SPLITS
    r = np.clip(r, 0, 1)
    ceiling: NDArray[np.float64] = np.sqrt(2 * r / (1 + r))
    return ceiling


def smooth_ceiling(values: NDArray[Any], coords: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same for values (n, G) that are not counts: differences between nearest spots (n, 2) are taken as noise."""
    x = np.asarray(values, dtype=np.float64)
    nearest = KDTree(coords).query(coords, k=2)[1][:, 1]
    variance, noise = x.var(0), np.square(x - x[nearest]).mean(0) / 2
    varies = variance > 0
    share = np.where(varies, 1 - noise / np.where(varies, variance, 1), 0)
    ceiling: NDArray[np.float64] = np.sqrt(np.clip(share, 0, 1))
    return ceiling


def balanced_parts(morans_i: NDArray[Any], parts: int = PARTS, *, seed: int) -> NDArray[np.int64]:
    """The part (G,) of each gene; of every ``parts`` genes of successive Moran's I, each part has one."""
    rng, ranked = numpy_rng(seed, "parts"), np.argsort(-np.asarray(morans_i), kind="stable")
    part = np.empty(len(ranked), dtype=np.int64)
    for start in range(0, len(ranked), parts):
        block = ranked[start : start + parts]
        part[block] = rng.permutation(parts)[: len(block)]
    return part


def correlations(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float64]:
    """Pearson correlation (G,) of the columns of a and b (n, G); 0 where one of them is constant."""
    a, b = (np.asarray(x, dtype=np.float64) - np.mean(x, axis=0, dtype=np.float64) for x in (a, b))
    product, square = (a * b).sum(0), (a**2).sum(0) * (b**2).sum(0)
    varies = square > 1e-18
    r: NDArray[np.float64] = np.where(varies, product / np.sqrt(np.where(varies, square, 1)), 0)
    return r


def nearest_cells(coords: NDArray[np.float64], spots: NDArray[np.float64], k: int) -> sp.csr_matrix:
    """The matrix (m, N) that averages, for every spot (m, 2), the k cells placed (N, 2) nearest to it."""
    found = KDTree(coords).query(spots, k=k)[1].reshape(len(spots), k)
    ends = np.arange(0, found.size + 1, k)
    return sp.csr_matrix((np.full(found.size, 1 / k), found.ravel(), ends), shape=(len(spots), len(coords)))


def soft_mapping(
    products: NDArray[np.float32], spots: NDArray[np.float32], cells: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Weights (m, N) of cells for spots by similarity alone: softmax of the cosine over the spots, then one per spot.

    ``products`` (m, N) are inner products, ``spots`` (m,) and ``cells`` (N,) squared norms.
    """
    norms = np.sqrt(np.maximum(spots, 1e-12))[:, None] * np.sqrt(np.maximum(cells, 1e-12))
    weights: NDArray[np.float32] = np.exp((products / norms - 1) / TEMPERATURE)
    weights /= weights.sum(0)
    weights /= weights.sum(1, keepdims=True)
    return weights


@dataclass(frozen=True, eq=False)
class Reading:
    """How well kept-out genes were predicted, before a verdict.

    Attributes
    ----------
    genes
        (g,) the genes that were predicted, by position among the K that are compared; the most spatial first.
    predicted
        (m_i, g) per slide.
    r, reference, ceiling
        (slides, g) correlation with the prediction from the nearest placed cells, with that from the most similar cells,
        and the largest that noise allows.
    shuffled
        (shuffles, slides, g) like ``r``, with shuffled cells.
    match
        (2, N) how well the spots around each cell fit its own masked genes, and those of another cell.
    """

    genes: NDArray[np.int64]
    predicted: list[NDArray[np.float32]]
    r: NDArray[np.float64]
    reference: NDArray[np.float64]
    ceiling: NDArray[np.float64]
    shuffled: NDArray[np.float64]
    match: NDArray[np.float64]


def read_kept_out(
    place: Place,
    cells: NDArray[np.float32],
    slides: Sequence[CheckedSlide],
    morans_i: NDArray[Any],
    *,
    missing: NDArray[np.bool_] | None = None,
    seed: int,
) -> Reading:
    """Mask one part of the panel at a time, place the cells by the rest, and predict the masked genes from them.

    Parameters
    ----------
    place
        Places the cells with some genes of the panel masked.
    cells
        (N, K) their expression in the most spatial genes, from :func:`expression`.
    slides
        The same of spots.
    morans_i
        (G,) of all genes of the panel.
    missing
        (G,) genes that the cells lack: always masked, never predicted.
    seed
        Decides the parts.

    Notes
    -----
    ``PARTS`` calls of ``place``. The direct mapping costs one product of spots and cells, O(m N K): the masked part is
    subtracted from the whole.
    """
    missing = np.zeros(len(morans_i), dtype=bool) if missing is None else missing
    kept = most_spatial(morans_i)  # (K,)
    cells = np.where(missing[kept], 0, cells)
    part, genes = balanced_parts(morans_i, seed=seed), _scored(morans_i, kept, missing)
    k = min(NEAREST, len(cells) // 10)  # of few cells, a tenth
    shuffles = [numpy_rng(seed, "shuffled", i).permutation(len(cells)) for i in range(SHUFFLES)]
    whole = [_products(slide.values, cells) for slide in slides]
    predicted = [np.zeros((len(slide.values), len(genes)), np.float32) for slide in slides]
    r, reference = (np.zeros((len(slides), len(genes))) for _ in range(2))
    shuffled = np.zeros((SHUFFLES, *r.shape))
    match = np.zeros((2, len(cells)))
    for number in range(PARTS):
        mine, hidden = np.flatnonzero(part[kept][genes] == number), np.flatnonzero(part[kept] == number)
        if not len(mine):
            continue
        coords, spots = place((part == number) | missing)
        own = cells[:, genes[mine]]
        for s, slide in enumerate(slides):
            measured, near = slide.values[:, genes[mine]], nearest_cells(coords, spots[s], k)
            predicted[s][:, mine] = near @ own
            r[s, mine] = correlations(measured, predicted[s][:, mine])
            for i, order in enumerate(shuffles):
                shuffled[i, s, mine] = correlations(measured, near @ own[order])
            near_spots = nearest_cells(spots[s], coords, min(NEAREST, len(measured) // 10))
            around = near_spots @ measured  # (N, genes) mean of the spots around each cell
            around = (around - around.mean(0)) / len(slides)
            match += [np.einsum("ng,ng->n", around, own[order]) for order in (slice(None), shuffles[0])]
            masked = _products(slide.values[:, hidden], cells[:, hidden])
            direct = soft_mapping(*(a - b for a, b in zip(whole[s], masked, strict=True)))
            reference[s, mine] = correlations(measured, direct @ own)
    ceiling = np.stack([slide.ceiling[genes] for slide in slides])
    return Reading(genes, predicted, r, reference, ceiling, shuffled, match)


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


def _scored(morans_i: NDArray[Any], kept: NDArray[np.int64], missing: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The genes to predict, by position among those kept: the more spatial half of the panel, the most spatial first."""
    ranked = np.argsort(-np.asarray(morans_i)[kept], kind="stable")
    ranked = ranked[~missing[kept][ranked]]
    found: NDArray[np.int64] = ranked[: min(MOST_SCORED, -(-int((~missing).sum()) // 2))]
    return found


def _products(
    spots: NDArray[np.float32], cells: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Inner products (m, N) and squared norms (m,) and (N,)."""
    return spots @ cells.T, np.square(spots).sum(1), np.square(cells).sum(1)


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
