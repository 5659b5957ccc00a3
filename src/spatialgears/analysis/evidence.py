"""What speaks for each spot as the origin of a cell: how near it lies to the cell's place, and how like it the cell is.

The weight of spot j for cell i is ``exp(likeness cos_ij - place d_ij^2 / (2 s_i^2))``: cosine of their expression, distance on
the slide, and spread of the cell's place. Where places are poor likeness should count, where expression is noise places should.
Genes decide: some are kept out, the weights are computed without them, and these genes, read from the cells, are compared with
the slide.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.spatial import KDTree

from spatialgears.analysis import lookup
from spatialgears.analysis.correspondences import by_expression, shared
from spatialgears.analysis.registration import lay
from spatialgears.errors import InputError
from spatialgears.expression.normalise import Standardiser, dense, log_normalise
from spatialgears.expression.panel import morans_i, typical_depth
from spatialgears.metrics.points import spot_pitch
from spatialgears.pipeline.cell_check import balanced_parts, correlations, most_spatial
from spatialgears.runtime.seeds import numpy_rng

if TYPE_CHECKING:
    from anndata import AnnData

logger = logging.getLogger(__name__)

CHUNK = 2000  # cells whose weights for all spots are held at once
COMPONENTS = 100  # of the spots' expression, by which cells and spots are compared where there are more genes
PARTS = 5  # of the genes, kept out one after the other
SOME_CELLS, SOME_SPOTS, SOME_GENES = 4000, 1000, 300  # that choose the strengths
LIKENESS = (0.0, 7.0, 14.0, 28.0)
PLACE = (0.0, 0.1, 0.3, 1.0)
LEAST_EXPLAINED = 0.1  # by registration; slides of another tissue explain less


@dataclass(frozen=True)
class Strengths:
    """How much likeness and place count, and the mean correlation of kept-out genes that these strengths reach."""

    likeness: float = 14.0
    place: float = 0.3
    score: float = float("nan")
    tried: dict[tuple[float, float], float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Evidence:
    """N cells and M spots in what they share.

    Attributes
    ----------
    genes, moran
        (K,) the most spatial genes of the slide that both have, and their Moran's I.
    cells, spots
        (N, K) and (M, K) log-normalised expression.
    raw
        Whether they were counts.
    kept
        (N,) cells that count.
    coords, pitch
        (M, 2) of the spots, and their spacing.
    laid, spread
        (N, 2) places of the cells on the slide, (N,) standard deviation of each along an axis; None: places do not count.
    """

    genes: NDArray[Any]
    moran: NDArray[np.float64]
    cells: sparse.csr_matrix
    spots: NDArray[np.float32]
    raw: bool
    kept: NDArray[np.bool_]
    coords: NDArray[np.float64]
    pitch: float
    laid: NDArray[np.float64] | None = None
    spread: NDArray[np.float64] | None = None

    def weigher(self, strengths: Strengths, *, hidden: NDArray[np.bool_] | None = None) -> Weigher:
        """Computes weights with these strengths, without the genes ``hidden`` (K,)."""
        weights = np.sqrt(np.clip(self.moran, 1e-6, None)).astype(np.float32)
        if hidden is not None:
            weights = np.where(hidden, 0, weights)
        spots = Standardiser.fit(self.spots, raw=self.raw)(dense(self.spots)).numpy() * weights
        basis = np.eye(spots.shape[1], dtype=np.float32)
        if spots.shape[1] > COMPONENTS:
            from sklearn.utils.extmath import randomized_svd

            basis = randomized_svd(spots, COMPONENTS, n_iter=4, random_state=0)[2].T.astype(np.float32)
        unit = _unit(spots @ basis)
        standardise = Standardiser.fit(self.cells[self.kept], raw=self.raw)
        return Weigher(self, strengths, unit, basis * weights[:, None], standardise)

    def subset(self, cells: NDArray[np.int64], spots: NDArray[np.int64]) -> Evidence:
        """Of some cells and some spots."""
        return Evidence(
            genes=self.genes,
            moran=self.moran,
            cells=self.cells[cells],
            spots=self.spots[spots],
            raw=self.raw,
            kept=self.kept[cells],
            coords=self.coords[spots],
            pitch=self.pitch,
            laid=None if self.laid is None else self.laid[cells],
            spread=None if self.spread is None else self.spread[cells],
        )


@dataclass(frozen=True, eq=False)
class Weigher:
    """Rows of the matrix of weights, in chunks of cells."""

    evidence: Evidence
    strengths: Strengths
    spots: NDArray[np.float32]
    projection: NDArray[np.float32]
    standardise: Standardiser

    def cosine(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """(n, M) cosine of some cells with all spots."""
        z = self.standardise(dense(self.evidence.cells[rows])).numpy() @ self.projection
        return _unit(z) @ self.spots.T

    def distance(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """(n, M) half the squared distance of some cells from all spots, in the spread of each cell's place."""
        laid, spread, spots = self.evidence.laid, self.evidence.spread, self.evidence.coords
        assert laid is not None and spread is not None
        centre = spots.mean(0)
        x, y = laid[rows] - centre, spots - centre
        square = (x**2).sum(1)[:, None] + (y**2).sum(1) - 2 * x @ y.T
        return (square / (2 * spread[rows, None] ** 2)).astype(np.float32)

    def chunks(self, size: int = CHUNK) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Cells that count, by position, and their weights (n, M), each row with a sum of one."""
        counted = np.flatnonzero(self.evidence.kept)
        for start in range(0, len(counted), size):
            rows = counted[start : start + size]
            yield rows, softmax(self.logits(rows))

    def logits(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """(n, M) log weights of some cells, up to a constant for each cell."""
        out = np.zeros((len(rows), len(self.spots)), np.float32)
        if self.strengths.likeness:
            out += np.float32(self.strengths.likeness) * self.cosine(rows)
        if self.strengths.place and self.evidence.laid is not None:
            out -= np.float32(self.strengths.place) * self.distance(rows)
        return out


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each row as weights with a sum of one; changes its argument."""
    logits -= logits.max(1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(1, keepdims=True)
    return logits


def gather(
    adata: AnnData,
    slide: AnnData,
    *,
    basis: str | None,
    places: bool,
    layer: str | None,
    spatial_key: str,
    outside: str | None,
    seed: int,
) -> Evidence:
    """What cells and slide share; registers the cells if ``basis`` names no places on the slide."""
    coords = lookup.places(slide, spatial_key, "slide")
    kept = lookup.counted(adata, outside)
    (counts, raw), spot_counts, genes = shared(adata, slide, layer)
    target = typical_depth(counts[kept]) if raw else 1.0
    moran = morans_i(spot_counts, coords, target=target, raw=raw)
    chosen = most_spatial(moran)
    logged = (log_normalise(x, target) if raw else x for x in (counts, spot_counts))
    cells, spots = (sparse.csr_matrix(x[:, chosen], dtype=np.float32) for x in logged)
    laid, spread, pitch = None, None, spot_pitch(coords)
    if places:
        laid, unit = _on_slide(adata, slide, coords, kept, basis=basis, layer=layer, seed=seed)
        own = lookup.spreads(adata, "gears_radius50", np.ones(adata.n_obs, bool)) if _radii(adata) else 0.0
        spread = np.sqrt((unit * own) ** 2 + (pitch / 2) ** 2) * np.ones(adata.n_obs)
    return Evidence(
        genes[chosen], moran[chosen], cells, spots.toarray(), raw, kept, coords, pitch, laid, spread
    )


def _radii(adata: AnnData) -> bool:
    return "gears_radius50" in adata.obs and bool(np.isfinite(adata.obs["gears_radius50"]).any())


def _on_slide(
    adata: AnnData,
    slide: AnnData,
    coords: NDArray[np.float64],
    kept: NDArray[np.bool_],
    *,
    basis: str | None,
    layer: str | None,
    seed: int,
) -> tuple[NDArray[np.float64], float]:
    """Places (N, 2) of the cells on the slide, and the length there of a unit of the reconstruction."""
    own = lookup.places(adata, "X_gears")
    if basis is not None:
        laid = lookup.places(adata, basis)
        return laid, float(np.sqrt(laid[kept].var(0).sum() / max(own[kept].var(0).sum(), 1e-300)))
    matches = by_expression(
        adata, slide, coords=own, kept=np.flatnonzero(kept), spots=coords, layer=layer, seed=seed
    )
    laid, fit = lay(own, coords, matches, scale=True, deform=False, seed=seed)
    if fit["explained"] < LEAST_EXPLAINED:
        raise InputError(
            f"The cells cannot be laid on this slide: registration explains {max(fit['explained'], 0):.0%} of where its "
            f"most similar spots lie, at least {LEAST_EXPLAINED:.0%} are needed. Slide and cells may be of different tissues.",
            "Check that they belong together. Places on the slide from elsewhere: basis=. By likeness alone: place=0.",
        )
    return laid, float(fit["scale"])


def choose(evidence: Evidence, *, place: float | None, likeness: float | None, seed: int) -> Strengths:
    """The strengths with which kept-out genes, read from the cells, follow the slide best.

    Strengths that are given stay as they are. Some cells, some spots and the most spatial genes decide.
    """
    places = (PLACE if place is None else (place,)) if evidence.laid is not None else (0.0,)
    tried = [
        Strengths(b, a) for b in (LIKENESS if likeness is None else (likeness,)) for a in places if a or b
    ]
    if not tried:
        raise InputError("Neither place nor likeness counts.", "Give one of them a strength above 0.")
    if len(tried) == 1:
        return tried[0]
    some = _some(evidence, seed)
    scores = np.stack([kept_out(some, one, seed=seed)[0] for one in tried])  # (tried, genes)
    mean = scores.mean(1)
    best = int(np.argmax(mean))
    found = {(one.likeness, one.place): float(score) for one, score in zip(tried, mean, strict=True)}
    logger.info(
        "likeness %g, place %g: kept-out genes r %.3f", tried[best].likeness, tried[best].place, mean[best]
    )
    return Strengths(tried[best].likeness, tried[best].place, float(mean[best]), found)


def _some(evidence: Evidence, seed: int) -> Evidence:
    rng = numpy_rng(seed, "strengths")
    cells = np.sort(rng.permutation(np.flatnonzero(evidence.kept))[:SOME_CELLS])
    return evidence.subset(cells, np.sort(rng.permutation(len(evidence.coords))[:SOME_SPOTS]))


def kept_out(
    evidence: Evidence, strengths: Strengths, *, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float32]]:
    """Correlation (g,) of kept-out genes with the slide, which genes they are (g,), and their prediction (M, g)."""
    genes = np.argsort(-evidence.moran, kind="stable")[:SOME_GENES]
    part = balanced_parts(evidence.moran, PARTS, seed=seed)
    predicted = np.zeros((len(evidence.coords), len(genes)), np.float32)
    for number in range(PARTS):
        mine = np.flatnonzero(part[genes] == number)
        if len(mine):
            weigher = evidence.weigher(strengths, hidden=part == number)
            predicted[:, mine] = read(weigher, evidence.cells[:, genes[mine]])
    return correlations(evidence.spots[:, genes], predicted), genes, predicted


def read(weigher: Weigher, values: sparse.csr_matrix) -> NDArray[np.float32]:
    """Mean (M, g) of the cells' values (N, g) at each spot."""
    total, mass = np.zeros((len(weigher.spots), values.shape[1]), np.float32), np.zeros(len(weigher.spots))
    for rows, weights in weigher.chunks():
        total += np.asarray((values[rows].T @ weights).T)
        mass += weights.sum(0)
    mean: NDArray[np.float32] = (total / np.maximum(mass, 1e-30)[:, None]).astype(np.float32)
    return mean


def on_slide(evidence: Evidence, strengths: Strengths) -> NDArray[np.float32]:
    """(N,) how much of each cell is on the slide: one up to a pitch from the nearest spot, and less beyond."""
    share = evidence.kept.astype(np.float32)
    if strengths.place and evidence.laid is not None and evidence.spread is not None:
        gap = np.maximum(KDTree(evidence.coords).query(evidence.laid)[0] - evidence.pitch, 0)
        share *= np.exp(-(gap**2) / (2 * evidence.spread**2))
    return share


def _unit(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-6)
