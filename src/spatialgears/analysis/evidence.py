"""Evidence for each spot as the origin of a cell: distance to the cell's position, and similarity of expression.

The weight of spot j for cell i is ``exp(likeness cos_ij - place d_ij^2 / (2 s_i^2))``: cosine of their expression, distance on
the slide, and spread of the cell's position. A cell is noisy, so its profile is averaged with those of similar cells before it
is compared. Neighbouring spots are correlated, so a weight is shared with the nearest spots.

Similarity should weigh more where positions are poor, and position more where expression is noisy:
:mod:`spatialgears.analysis.choice` chooses how much.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.spatial import KDTree
from sklearn.neighbors import NearestNeighbors

from spatialgears.analysis import lookup
from spatialgears.analysis.correspondences import by_expression, shared_columns
from spatialgears.analysis.domains import components
from spatialgears.analysis.registration import lay
from spatialgears.errors import InputError
from spatialgears.expression.normalise import STD_FLOOR, log_normalise
from spatialgears.expression.panel import WHOLE_TRANSCRIPTOME, morans_i, typical_depth
from spatialgears.metrics.points import spot_pitch
from spatialgears.pipeline.gene_reading import most_spatial
from spatialgears.runtime.seeds import numpy_rng

if TYPE_CHECKING:
    from anndata import AnnData

CHUNK = 2000  # cells whose weights for all spots are held at once
#: Principal components of the spots by which cells and spots are compared, for a panel and a transcriptome: first for single
#: cells, then for genes, which are averaged over cells, so that noise cancels.
COMPONENTS = (100, 30), (300, 100)
SIMILAR = 15  # cells that a profile is averaged with
AMONG = 10_000  # cells among which similar ones are searched
NEAREST = 6  # spots that a weight is shared with
SOME_CELLS = 3000  # that show how profiles are distributed
#: How far genes at spots are corrected by what spots show beyond the cells there, and penalty of the regression on cells, in
#: mean squares of a component.
CORRECTED, PENALTY = 0.5, 3.0


@dataclass(frozen=True)
class Settings:
    """How weights are computed, and the mean correlation of kept-out genes that they reach.

    Attributes
    ----------
    likeness, place
        Strengths.
    similar
        Share of a cell's profile that is taken from similar cells.
    spread
        Whether a weight is shared with the nearest spots.
    corrected
        Whether genes are corrected by what spots show beyond the cells there.
    logged
        Whether genes are averaged as logs, or as normalised counts.
    score
        Mean correlation over kept-out genes; NaN if it was not measured.
    """

    likeness: float = 14.0
    place: float = 0.03
    similar: float = 0.6
    spread: bool = True
    corrected: bool = True
    logged: bool = True
    score: float = float("nan")

    def figures(self) -> dict[str, float | bool]:
        """By name, for ``uns``."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Evidence:
    """What N cells and M spots have in common.

    Attributes
    ----------
    logged
        (N, G) log-normalised expression of the cells in all their genes.
    columns, genes, moran
        (K,) the most spatial genes of the slide that both have: columns of ``logged``, names, and Moran's I.
    spots
        (M, K) log-normalised expression of the spots.
    kept
        (N,) cells that count.
    coords, pitch
        (M, 2) of the spots, and their spacing.
    similar
        (N, N) the mean over the most similar cells of each.
    depth, target
        (N,) counts of each cell, and the depth they were scaled to; no depth if cells or spots have none.
    unlike
        Whether the cells have counts and the slide has other values.
    rank
        Components by which they are compared.
    checked
        Correlation of kept-out genes with the slides in the model's check on cells, which placed them again without these
        genes.
    explained
        Share of where the most similar spots lie that registration explains; None if it was not done.
    laid, spread
        (N, 2) positions of the cells on the slide, (N,) standard deviation of each along an axis; None: positions are not used.
    """

    logged: sparse.csr_matrix
    columns: NDArray[np.int64]
    genes: NDArray[Any]
    moran: NDArray[np.float64]
    spots: NDArray[np.float32]
    kept: NDArray[np.bool_]
    coords: NDArray[np.float64]
    pitch: float
    similar: sparse.csr_matrix
    depth: NDArray[np.float64] | None = None
    target: float = 1e4
    unlike: bool = False
    rank: int = COMPONENTS[0][0]
    checked: float | None = None
    explained: float | None = None
    laid: NDArray[np.float64] | None = None
    spread: NDArray[np.float64] | None = None

    def some(self, cells: int, spots: int, seed: int) -> tuple[NDArray[np.int64], Evidence]:
        """Random cells that count, and the evidence on random spots."""
        rng = numpy_rng(seed, "some cells and spots")
        rows = np.sort(rng.permutation(np.flatnonzero(self.kept))[:cells])
        few = np.sort(rng.permutation(len(self.coords))[:spots])
        return rows, replace(self, spots=self.spots[few], coords=self.coords[few])

    def profiles(self, rows: NDArray[np.int64], similar: float) -> NDArray[np.float32]:
        """(n, K) of some cells, averaged with similar ones."""
        own = self.logged[rows][:, self.columns]
        if similar:
            near = self.similar[rows]
            met, position = np.unique(near.indices, return_inverse=True)
            near = sparse.csr_matrix((near.data, position, near.indptr), (len(rows), len(met)))
            own = (1 - similar) * own + similar * (near @ self.logged[met][:, self.columns])
        return np.asarray(own.toarray(), np.float32)

    def distance(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """(n, M) half the squared distance of some cells from all spots, in units of the spread of each cell's position."""
        assert self.laid is not None and self.spread is not None
        centre, unit_length = (
            self.coords.mean(0),
            self.pitch,
        )  # small numbers, so that single precision is enough
        x, y = (((part - centre) / unit_length).astype(np.float32) for part in (self.laid[rows], self.coords))
        square = x @ (-2 * y.T)
        square += (x**2).sum(1)[:, None]
        square += (y**2).sum(1)
        square *= (unit_length**2 / (2 * self.spread[rows, None] ** 2)).astype(np.float32)
        return square

    def sharing(self) -> sparse.csr_matrix:
        """(M, M) the matrix that shares a spot's weight equally with its nearest."""
        k = min(NEAREST + 1, len(self.coords))
        index = KDTree(self.coords).query(self.coords, k=np.arange(1, k + 1))[1]
        ends = np.arange(0, index.size + 1, k)
        return sparse.csr_matrix((np.full(index.size, 1 / k, np.float32), index.ravel(), ends))

    def on_slide(self, settings: Settings) -> NDArray[np.float32]:
        """(N,) how much of each cell is on the slide: one up to a pitch from the nearest spot, and less beyond."""
        share = self.kept.astype(np.float32)
        if settings.place and self.laid is not None and self.spread is not None:
            gap = np.maximum(KDTree(self.coords).query(self.laid)[0] - self.pitch, 0)
            share *= np.exp(-(gap**2) / (2 * self.spread**2))
        return share


@dataclass(frozen=True, eq=False)
class Similarity:
    """Compares profiles (n, K) of cells with those of spots, each standardised over its own kind, genes weighted."""

    mean: NDArray[np.float32]
    projection: NDArray[np.float32]
    spots: NDArray[np.float32]

    @classmethod
    def of(
        cls, evidence: Evidence, typical: NDArray[np.float32], hidden: NDArray[np.bool_] | None = None
    ) -> Similarity:
        """Of all spots, and cells that are like ``typical`` ones (n, K) in mean and spread; without genes ``hidden`` (K,)."""
        weights = np.sqrt(np.clip(evidence.moran, 1e-6, None)).astype(np.float32)
        if hidden is not None:
            weights = np.where(hidden, 0, weights)
        own = evidence.spots
        spots = (own - own.mean(0)) * (weights / (own.std(0) + _floor(own)))
        basis = np.eye(len(weights), dtype=np.float32)
        if min(spots.shape) > evidence.rank:
            from sklearn.utils.extmath import randomized_svd

            basis = randomized_svd(spots, evidence.rank, n_iter=4, random_state=0)[2].T.astype(np.float32)
        scale = weights / (typical.std(0) + _floor(typical))
        return cls(typical.mean(0), basis * scale[:, None], unit(np.asarray(spots @ basis, np.float32)))

    def embed(self, profiles: NDArray[np.float32]) -> NDArray[np.float32]:
        """(n, h) of unit length."""
        return unit(np.asarray((profiles - self.mean) @ self.projection, np.float32))

    def cosine(self, profiles: NDArray[np.float32]) -> NDArray[np.float32]:
        """(n, M)."""
        return self.embed(profiles) @ self.spots.T


def compared(evidence: Evidence, settings: Settings, *, seed: int) -> Similarity:
    """The comparison of all cells with all spots."""
    some = evidence.some(SOME_CELLS, len(evidence.coords), seed)[0]
    return Similarity.of(evidence, evidence.profiles(some, settings.similar))


def corrected(
    read: NDArray[np.float32],
    spots: NDArray[np.float32],
    shown: NDArray[np.float32],
    cells: NDArray[np.float32],
    values: Any,
) -> NDArray[np.float32]:
    """Genes (M, g) predicted from cells (``read``), corrected by what spots show beyond these cells.

    Components of ``spots`` (M, h) are compared with the mean ``shown`` (M, h) by the cells of each; a ridge regression of
    ``values`` (N, g) on the components of ``cells`` (N, h) says what a difference means for a gene.
    """
    x = cells - cells.mean(0)
    gram = x.T @ x
    gram[np.diag_indices_from(gram)] += PENALTY * np.trace(gram) / len(gram)
    slopes = np.linalg.solve(gram, np.asarray(values.T @ x).T)
    a, b = ((one - one.mean(0)) / np.maximum(one.std(0), 1e-9) for one in (spots, shown))
    found = read + CORRECTED * ((a - b) * x.std(0)) @ slopes
    return np.asarray(np.maximum(found, values.min()), np.float32)  # no lower than in any cell


def chunks(
    evidence: Evidence, settings: Settings, *, seed: int, size: int | None = None
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Cells that count, by position, and their weights (n, M), each row with a sum of one."""
    counted, size = np.flatnonzero(evidence.kept), size or CHUNK
    similarity, sharing = compared(evidence, settings, seed=seed), evidence.sharing()
    for start in range(0, len(counted), size):
        rows = counted[start : start + size]
        cosine = similarity.cosine(evidence.profiles(rows, settings.similar)) if settings.likeness else None
        distance = evidence.distance(rows) if settings.place and evidence.laid is not None else None
        yield rows, weighed(settings, cosine, distance, sharing)


def weighed(
    settings: Settings,
    cosine: NDArray[np.float32] | None,
    distance: NDArray[np.float32] | None,
    sharing: sparse.csr_matrix,
) -> NDArray[np.float32]:
    """Weights (n, M) with rows that sum to one."""
    logits: Any = np.float32(0)
    if cosine is not None:
        logits = np.float32(settings.likeness) * cosine
    if distance is not None:
        logits = logits - np.float32(settings.place) * distance
    weights: NDArray[np.float32] = np.exp(logits - np.max(logits, axis=1, keepdims=True))
    if settings.spread:
        weights = (sharing @ weights.T).T
    weights /= weights.sum(1, keepdims=True)
    return weights


def gather(
    adata: AnnData,
    slide: AnnData,
    *,
    basis: str | None,
    places: bool,
    layer: str | None,
    spatial_key: str,
    outside: str | None,
    genes: bool,
    seed: int,
) -> Evidence:
    """What cells and slide have in common; the cells are registered unless positions are not used."""
    coords = lookup.places(slide, spatial_key, "slide")
    kept = lookup.counted(adata, outside)
    of_cells, of_spots, names = shared_columns(adata, slide, layer)
    laid, spread, explained, pitch = None, None, None, spot_pitch(coords)
    if places:
        laid, length, explained = _on_slide(adata, slide, coords, kept, basis=basis, layer=layer, seed=seed)
        own = lookup.spreads(adata, "gears_radius50", np.ones(adata.n_obs, bool)) if _radii(adata) else 0.0
        spread = np.sqrt((length * own) ** 2 + (pitch / 2) ** 2) * np.ones(adata.n_obs)
    logged, depth, target = _logged(adata, layer, "cells", None, kept)
    spots, counted, _ = _logged(slide, layer, "slide", None if genes else target)
    spots = spots[:, of_spots]
    moran = morans_i(spots, coords, raw=False)
    chosen = most_spatial(moran)
    return Evidence(
        logged=logged,
        columns=of_cells[chosen],
        genes=names[chosen],
        moran=moran[chosen],
        spots=spots[:, chosen].toarray(),
        kept=kept,
        coords=coords,
        pitch=pitch,
        similar=similar_cells(logged, kept, seed=seed),
        depth=None if counted is None else depth,
        target=target,
        unlike=depth is not None and counted is None,
        rank=COMPONENTS[genes][len(chosen) > WHOLE_TRANSCRIPTOME],
        checked=_checked(adata),
        explained=explained,
        laid=laid,
        spread=spread,
    )


def _logged(
    adata: AnnData,
    layer: str | None,
    name: str,
    target: float | None,
    kept: NDArray[np.bool_] | None = None,
) -> tuple[sparse.csr_matrix, NDArray[np.float64] | None, float]:
    """Log-normalised values (n, G), counts of each profile (n,) and the depth they were scaled to.

    Values that are not counts stay as they are.
    """
    values, raw = lookup.expression(adata, layer=layer, name=name)
    if not raw:
        return values, None, target or 1.0
    target = target or typical_depth(values if kept is None else values[kept])
    return log_normalise(values, target), np.asarray(values.sum(1), np.float64).ravel(), target


def _checked(adata: AnnData) -> float | None:
    """What the model's check on cells found, where a run has written it."""
    check = adata.uns.get("gears", {}).get("cells_check", {})
    r = float(check.get("r", np.nan))
    return r if np.isfinite(r) else None


def similar_cells(logged: sparse.csr_matrix, kept: NDArray[np.bool_], *, seed: int) -> sparse.csr_matrix:
    """(N, N) the mean over the cells most similar to each in the principal components of all genes."""
    rows = np.flatnonzero(kept)
    embedded = unit(components(logged[rows], seed=seed).astype(np.float32))
    among = np.sort(numpy_rng(seed, "similar").permutation(len(rows))[:AMONG])
    k = min(SIMILAR, len(among) - 1)
    index = (
        NearestNeighbors(n_neighbors=k + 1, algorithm="brute")
        .fit(embedded[among])
        .kneighbors(embedded, return_distance=False)
    )
    found = rows[among[index]]
    other = found != rows[:, None]
    other[other.all(1), -1] = False  # a cell that is not among them has k + 1 others
    lengths = np.zeros(len(kept), np.int64)
    lengths[rows] = other.sum(1)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    data = np.repeat((1 / np.maximum(other.sum(1), 1)).astype(np.float32), other.sum(1))
    return sparse.csr_matrix((data, found[other], ends), (len(kept), len(kept)))


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
) -> tuple[NDArray[np.float64], float, float | None]:
    """Positions (N, 2) of the cells on the slide, the length of one unit there, and what registration explains.

    Given positions are registered as well: a slide is recognised by its corners, which does not check its expression.
    """
    own = lookup.places(adata, "X_gears")
    given = None if basis is None else lookup.places(adata, basis)
    try:
        matches = by_expression(
            adata, slide, coords=own, kept=np.flatnonzero(kept), spots=coords, layer=layer, seed=seed
        )
        laid, fit = lay(own, coords, matches, scale=True, deform=False, seed=seed)
    except InputError:  # values that cannot be matched
        if given is None:
            raise
        laid, fit = given, {"explained": None}
    if given is None:
        return laid, fit["scale"], fit["explained"]
    length = float(np.sqrt(given[kept].var(0).sum() / max(own[kept].var(0).sum(), 1e-300)))
    return given, length, fit["explained"]


def _floor(x: NDArray[np.float32]) -> float:
    """Added to standard deviations, so that a gene hardly expressed is not inflated."""
    std = x.std(0)
    return min(STD_FLOOR, 0.1 * float(np.median(std[std > 0]))) if (std > 0).any() else STD_FLOOR


def unit(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of unit length."""
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-6)
