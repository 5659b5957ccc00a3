"""Read genes from placed cells that were masked while they were placed.

Some of the genes are masked, and all cells are placed by the others. Each spot's value of the masked genes is predicted from
the cells placed nearest to it, and correlated with the measurement over spots. Two things limit the correlation: the noise
of the slide (the ceiling), and how well cells and slide agree at all (the reference, which predicts the same genes from the
most similar cells without placing any). :mod:`spatialgears.pipeline.cell_check` turns the reading into a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from scipy.spatial import KDTree

from spatialgears.expression.normalise import Matrix, Standardiser, dense, log_normalise
from spatialgears.expression.panel import Panel
from spatialgears.runtime.seeds import numpy_rng

#: Masked genes (G,) in; positions of the cells (N, 2), and of each slide's spots (m_i, 2) in the same frame, out.
Place = Callable[[NDArray[np.bool_]], tuple[NDArray[np.float64], Sequence[NDArray[np.float64]]]]

PARTS = 7  # of the panel, masked one after the other
NEAREST = 30  # placed cells whose mean predicts a spot
SPLITS = 3  # of the counts into halves, from which the noise is estimated
SHUFFLES = 20  # of the cells: the correlation reached by chance
TEMPERATURE = 0.07  # of the direct mapping: a spot whose cosine is lower by this has e times less weight
MOST_SPOTS = 1000  # of each slide that are looked at
MOST_GENES, MOST_SCORED = 2000, 500  # that cells and spots are compared by, and that are predicted


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
    part = balanced_parts(morans_i, seed=seed)  # (G,)
    genes = _scored(morans_i, kept, missing)
    orders = np.stack([numpy_rng(seed, "shuffled", i).permutation(len(cells)) for i in range(SHUFFLES)])
    whole = [_products(slide.values, cells) for slide in slides]
    predicted = [np.zeros((len(slide.values), len(genes)), np.float32) for slide in slides]
    r, reference = (np.zeros((len(slides), len(genes))) for _ in range(2))
    shuffled, match = np.zeros((SHUFFLES, *r.shape)), np.zeros((2, len(cells)))
    for number in range(PARTS):
        hidden = part[kept] == number  # (K,)
        mine = np.flatnonzero(hidden[genes])
        if not len(mine):
            continue
        coords, spots = place((part == number) | missing)
        own = cells[:, genes[mine]]
        for s, slide in enumerate(slides):
            measured, near = slide.values[:, genes[mine]], nearest_cells(coords, spots[s], _some(len(cells)))
            masked = _products(slide.values[:, hidden], cells[:, hidden])
            direct = soft_mapping(*(a - b for a, b in zip(whole[s], masked, strict=True)))
            predicted[s][:, mine] = near @ own
            r[s, mine] = correlations(measured, predicted[s][:, mine])
            reference[s, mine] = correlations(measured, direct @ own)
            shuffled[:, s, mine] = [correlations(measured, near @ own[order]) for order in orders]
            around = nearest_cells(spots[s], coords, _some(len(measured))) @ measured
            match += _matches(around, own, orders[0]) / len(slides)
    ceiling = np.stack([slide.ceiling[genes] for slide in slides])
    return Reading(genes, predicted, r, reference, ceiling, shuffled, match)


def _some(available: int) -> int:
    """How many of the nearest cells or spots are averaged: of few, a tenth."""
    return min(NEAREST, available // 10)


def _matches(
    around: NDArray[np.float32], own: NDArray[np.float32], order: NDArray[np.int64]
) -> NDArray[np.float32]:
    """(2, N) how well the mean of the spots ``around`` each cell (N, g) fits its ``own`` genes, and those of another cell."""
    around = around - around.mean(0)
    return np.stack([np.einsum("ng,ng->n", around, one) for one in (own, own[order])])


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
