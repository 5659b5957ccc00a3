"""The gene panel: which shared genes are used, and how spatial each is (Moran's I)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from sklearn.neighbors import NearestNeighbors

from spatialgears.config import ExpressionConfig
from spatialgears.errors import InputError
from spatialgears.expression.normalise import Matrix, log_normalise
from spatialgears.text import number
from spatialgears.validate.coexpression import agreement, agreement_by_gene, best_detected, standardised
from spatialgears.validate.genes import WHOLE_TRANSCRIPTOME

logger = logging.getLogger(__name__)

NEIGHBORS = 6  # of a spot, by which Moran's I is measured: a hexagonal ring
BINS = 20  # groups of genes of similar mean, within which variability is compared
#: Agreement of co-expression between slides and cells above which all genes count fully, and below which each counts as
#: far as its own co-expression agrees; and the least weight of a gene.
ALIKE, UNLIKE, LEAST = 0.75, 0.25, 0.05


@dataclass(frozen=True, eq=False)
class Panel:
    """Genes shared by slides and cells, those of highest mean Moran's I first."""

    genes: np.ndarray  # (G,) names
    #: (G,) float32 with mean square one: the square root of Moran's I, or ones. Where slides and cells differ, genes whose
    #: co-expression differs have less weight.
    weights: np.ndarray
    morans_i: np.ndarray  # (G,) float64, mean over the slides
    target: float = 1e4  # library size that profiles are scaled to before log1p

    def __len__(self) -> int:
        return len(self.genes)

    def __repr__(self) -> str:
        return f"Panel of {number(len(self), 'gene')}: {', '.join(self.genes[:3])}, ..."


def morans_i(
    counts: Matrix, coords: np.ndarray, *, n_neighbors: int = NEIGHBORS, target: float = 1e4, raw: bool = True
) -> np.ndarray:
    """Moran's I (G,) of every gene of counts (n, G) on one slide, with equal weights on the nearest spots; 0 where none varies.

    ``I = sum_i z_i mean_{j in N(i)} z_j / sum_i z_i^2`` with z the centred log-normalised expression, or the values
    themselves if they are not ``raw``. Sparse input stays sparse: the centring is expanded, so the cost is
    ``n_neighbors`` sparse products.
    """
    x = (log_normalise(counts, target) if raw else counts).astype(np.float64)
    n = x.shape[0]
    k = min(n_neighbors, n - 1)
    # (n, k), without self
    neighbors = NearestNeighbors(n_neighbors=k).fit(coords).kneighbors(return_distance=False)
    mean = _column_sums(x) / n
    cross = sum(_column_sums(_product(x, x[neighbors[:, j]])) for j in range(k)) / k
    in_degree = np.bincount(neighbors.ravel(), minlength=n) / k  # how often each spot is a neighbour
    cross -= mean * (x.T @ in_degree)
    total = _column_sums(_product(x, x))
    square = total - n * mean**2
    varies = square > 1e-9 * np.minimum(n, total)
    return np.where(varies, cross / np.where(varies, square, 1.0), 0.0)


def _product(a: Matrix, b: Matrix) -> Matrix:
    return a.multiply(b) if sp.issparse(a) else a * b


def _column_sums(x: Matrix) -> np.ndarray:
    return np.asarray(x.sum(0, dtype=np.float64)).ravel()


def build_panel(
    slides: Sequence[Matrix],
    coords: Sequence[np.ndarray],
    cells: Matrix,
    *,
    genes: np.ndarray,
    config: ExpressionConfig,
    raw: bool = True,
) -> tuple[Panel, np.ndarray]:
    """Choose and weight genes by how spatial they are on the training slides: the panel, and its columns in ``genes``.

    On whole-transcriptome data, genes detected in at most ``config.min_detection`` of the observations (mean over slides
    and cells) are left out first: their Moran's I is noise. So are genes of zero weight.

    ``slides`` and ``cells`` are counts (n_i, G) on the shared ``genes`` (G,), or normalised values if they are not
    ``raw``; ``coords`` (n_i, 2) are of spots, one array per slide.
    """
    target = config.target_sum or typical_depth(cells)
    per_slide = [morans_i(x, xy, target=target, raw=raw) for x, xy in zip(slides, coords, strict=True)]
    moran = np.mean(per_slide, axis=0)
    usable = np.ones(len(genes), dtype=bool)
    if config.min_detection > 0 and len(genes) > WHOLE_TRANSCRIPTOME:
        detection = np.mean([_column_sums(x != 0) / x.shape[0] for x in [*slides, cells]], axis=0)
        usable &= detection > config.min_detection
    if config.gene_weights == "moran":
        usable &= moran > 0
    if usable.sum() < 2:
        raise InputError(
            f"Of {len(genes)} shared genes only {usable.sum()} are detected often enough and vary in space.",
            "Check that coordinates belong to the right spots and that .X (or the layer) holds counts.",
        )
    merit = moran
    if config.gene_selection == "variable":
        merit = np.mean(
            [dispersion(log_normalise(x, target) if raw else x) for x in [*slides, cells]], axis=0
        )
    ranked = np.lexsort((-merit, ~usable))  # the merit of a gene without counts is -inf, and it may be usable
    columns = ranked[: min(config.n_genes, int(usable.sum()))]
    weights = np.sqrt(moran[columns]) if config.gene_weights == "moran" else np.ones(len(columns))
    if config.gene_agreement:
        weights = weights * agreement_weights([x[:, columns] for x in slides], cells[:, columns], raw=raw)
    weights = weights / np.sqrt(np.mean(weights**2))
    logger.info(
        "gene panel: %d of %d shared genes, Moran's I %.2f to %.2f",
        len(columns), len(genes), moran[columns].max(), moran[columns].min(),
    )  # fmt: skip
    target = config.target_sum or typical_depth(cells[:, columns])
    panel = Panel(np.asarray(genes)[columns].astype(str), weights.astype(np.float32), moran[columns], target)
    return panel, columns


def agreement_weights(slides: Sequence[Matrix], cells: Matrix, *, raw: bool = True) -> np.ndarray:
    """Gene weights (G,) by how well co-expression agrees between slides and cells, (n_i, G) each; ones if it agrees well.

    What networks learn about a gene from the slides holds for the cells if it is co-expressed with the same genes in both
    (``agreement_by_gene``). Within one tissue and platform, genes differ in this by noise alone, and keep their weight.
    """
    slides, cells = [sp.csr_matrix(x) for x in slides], sp.csr_matrix(cells)

    def profiles(genes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        *spots, others = (standardised(x, genes, scale=raw, log=raw) for x in (*slides, cells))
        return np.concatenate(spots), others

    agreed = agreement(*profiles(best_detected(slides, cells)))
    if agreed is None or agreed >= ALIKE:
        return np.ones(cells.shape[1])
    by_gene = agreement_by_gene(*profiles(np.arange(cells.shape[1])))
    trust = min((ALIKE - agreed) / (ALIKE - UNLIKE), 1)
    logger.info(
        "slides and cells differ in co-expression (agreement %.2f): genes are weighted by how well theirs agrees",
        agreed,
    )
    return np.maximum(by_gene, LEAST) ** trust


def dispersion(x: Matrix) -> np.ndarray:
    """How much more each gene (G,) varies than genes of similar mean: variance over mean, standardised within bins of mean.

    Of log-normalised expression (n, G); sparse stays sparse. Genes without counts have the lowest values.
    """
    mean = _column_sums(x) / x.shape[0]
    variance = np.maximum(_column_sums(_product(x, x)) / x.shape[0] - mean**2, 0)
    level = np.log(np.where(mean > 0, variance / np.where(mean > 0, mean, 1), 0) + 1e-12)
    rank = np.argsort(np.argsort(mean, kind="stable"), kind="stable")
    group = rank * min(BINS, max(1, len(mean) // 2)) // len(mean)  # (G,) bins of equal numbers of genes
    count = np.maximum(np.bincount(group), 1)
    centre = np.bincount(group, level) / count
    spread = np.sqrt(np.maximum(np.bincount(group, level**2) / count - centre**2, 0)) + 1e-9
    return np.where(mean > 0, (level - centre[group]) / spread[group], -np.inf)


def typical_depth(counts: Matrix) -> float:
    """The median depth of the profiles that are not empty.

    Scaling shallow profiles to a much larger library makes log1p almost binary: one count of 200 becomes 4.0 at a target of
    10,000, and ten counts 6.2. At the typical depth they become 0.7 and 2.4.
    """
    depth = np.asarray(counts.sum(1), dtype=np.float64).ravel()
    return float(np.median(depth[depth > 0])) if (depth > 0).any() else 1e4
