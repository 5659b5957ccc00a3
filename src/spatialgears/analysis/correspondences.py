"""Matches of cells with positions on a slide: by expression, or by the shapes of both layouts alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse
from scipy.spatial import KDTree
from sklearn.neighbors import NearestNeighbors

from spatialgears.analysis import lookup
from spatialgears.config import ExpressionConfig
from spatialgears.errors import InputError
from spatialgears.expression.matching import matched_counts
from spatialgears.expression.panel import build_panel
from spatialgears.expression.reference import reference_encoder
from spatialgears.expression.views import cell_features
from spatialgears.metrics.points import canonical, spot_pitch
from spatialgears.runtime.seeds import numpy_rng

if TYPE_CHECKING:
    from anndata import AnnData

MAX_ANCHORS = 4000  # cells that are matched; more do not place the layout better
POOL = 10  # cells pooled around each, about what a spot holds
BEST_SPOTS = 3
MIN_GENES = 5
GW_POINTS, GW_STARTS = 250, 12


@dataclass(frozen=True, eq=False)
class Matches:
    """Cells (by position) and the place on the slide that each corresponds to, (m, 2), with trust (m,)."""

    cells: NDArray[np.int64]
    places: NDArray[np.float64]
    weights: NDArray[np.float64]
    ambiguity: float | None = None


def by_expression(
    adata: AnnData,
    slide: AnnData,
    *,
    coords: NDArray[np.float64],
    kept: NDArray[np.int64],
    spots: NDArray[np.float64],
    layer: str | None,
    seed: int,
) -> Matches:
    """The spots most similar to each cell and its surroundings; slide and cells are standardised separately.

    A cell is pooled with its nearest in the reconstruction, about as many as a spot holds: its profile is then as
    deep and as mixed as a spot's. Both are standardised by gene, weighted by Moran's I on the slide and projected on
    its principal components; the place is the mean of the three spots of highest cosine. Only cells ``kept`` are
    matched and pooled.
    """
    cells_raw, slide_counts, genes = _shared(adata, slide, layer)
    counts, raw = cells_raw
    anchors = np.sort(numpy_rng(seed, "anchors").permutation(kept)[:MAX_ANCHORS])
    # (anchors, pool), itself included
    _, near = KDTree(coords[kept]).query(coords[anchors], k=min(POOL, len(kept)))
    pool = sparse.csr_matrix(
        (np.full(near.size, 1.0 if raw else 1 / near.shape[1], np.float32), kept[near].ravel(),
         np.arange(len(anchors) + 1) * near.shape[1]),
        (len(anchors), len(coords)),
    )  # fmt: skip
    pooled = sparse.csr_matrix(pool @ counts)
    config = ExpressionConfig()
    panel, columns = build_panel([slide_counts], [spots], pooled, genes=genes, config=config, raw=raw)
    x, _ = cell_features(slide_counts[:, columns], panel, config, raw=raw)
    y, _ = cell_features(pooled[:, columns], panel, config, raw=raw)
    encoder = reference_encoder(x, seed=seed)
    embedded = (encoder.embed(part).numpy() for part in (x, y))
    known, query = (z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12) for z in embedded)
    k = min(BEST_SPOTS, len(known))
    index = NearestNeighbors(n_neighbors=k).fit(known).kneighbors(query, return_distance=False)
    found = spots[index]  # (anchors, k, 2)
    centre = found.mean(1)
    scatter = np.square(found - centre[:, None]).sum(2).mean(1)  # spots that disagree are a poor match
    return Matches(anchors, centre, 1 / (scatter + spot_pitch(spots) ** 2))


def by_shape(
    coords: NDArray[np.float64], kept: NDArray[np.int64], spots: NDArray[np.float64], *, seed: int
) -> Matches:
    """Gromov-Wasserstein: a plan between cells ``kept`` and spots that keeps distances, from several starting poses.

    Uses no expression. A tissue that looks the same turned or mirrored cannot be placed so; ``ambiguity`` is the
    cost of the best plan over that of the best plan in another pose (1: undecided).
    """
    ot = lookup.require("ot")
    rng = numpy_rng(seed, "gromov")
    chosen = np.sort(rng.permutation(kept)[:GW_POINTS])
    ends = np.sort(rng.permutation(len(spots))[:GW_POINTS])
    x, y = canonical(coords[chosen]), canonical(spots[ends])
    p, q = np.full(len(x), 1 / len(x)), np.full(len(y), 1 / len(y))
    inner = [ot.dist(z, metric="euclidean") for z in (x, y)]
    plans, costs, poses = [], [], []
    for start in range(GW_STARTS):
        angle = 4 * np.pi * (start // 2) / GW_STARTS
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        turn = turn * [1, (-1) ** start]  # every other start is mirrored
        initial = ot.emd(p, q, ot.dist(x @ turn, y))
        plan, log = ot.gromov.gromov_wasserstein(
            *inner, p, q, G0=initial, max_iter=100, tol_rel=1e-6, log=True
        )
        left, _, right = np.linalg.svd(x.T @ plan @ y)
        plans.append(plan)
        costs.append(float(log["gw_dist"]))
        poses.append(left @ right)
    best = int(np.argmin(costs))
    other = [cost for cost, pose in zip(costs, poses, strict=True) if np.trace(pose.T @ poses[best]) < 1.4]
    ambiguity = costs[best] / max(min(other), 1e-300) if other else 0.0
    places = plans[best] @ spots[ends] / plans[best].sum(1, keepdims=True)
    return Matches(chosen, places, np.ones(len(chosen)), ambiguity)


def given(pairs: Any, n_cells: int, spots: NDArray[np.float64]) -> Matches:
    """Matches that the user knows: (m, 2) positions of cells and spots."""
    pairs = np.asarray(pairs)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or len(pairs) < 3 or pairs.dtype.kind not in "iu":
        raise InputError(
            f"matches must be whole numbers (m, 2) with 3 rows or more, found {pairs.dtype} {pairs.shape}.",
            "Give the position of a cell in adata and of its spot in slide in each row.",
        )
    if pairs.min() < 0 or (pairs.max(0) >= [n_cells, len(spots)]).any():
        raise InputError(
            f"matches must lie within {n_cells:,} cells and {len(spots):,} spots, found up to {pairs.max(0)}.",
            "Count from zero.",
        )
    return Matches(pairs[:, 0].astype(np.int64), spots[pairs[:, 1]], np.ones(len(pairs)))


def shared_columns(
    adata: AnnData, slide: AnnData, layer: str | None
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any]]:
    """Columns of the genes that cells and slide share, in each, and their names (G,); of a repeated name, the first."""
    names = [
        pd.Index(lookup.gene_names(one, layer, name)) for one, name in ((adata, "adata"), (slide, "slide"))
    ]
    genes = names[0].unique().intersection(names[1].unique(), sort=False)
    if len(genes) < MIN_GENES:
        raise InputError(
            f"adata and slide share {len(genes)} genes; {MIN_GENES} or more are needed. adata has "
            f"{lookup.listed(names[0], 4)}; slide has {lookup.listed(names[1], 4)}.",
            'Use the same kind of gene names, or register with method="gromov", which needs none.',
        )
    cells, spots = (
        pd.Series(np.arange(len(index)), index)[~index.duplicated()][genes].to_numpy() for index in names
    )
    return cells, spots, np.asarray(genes)


def _shared(
    adata: AnnData, slide: AnnData, layer: str | None
) -> tuple[tuple[sparse.csr_matrix, bool], sparse.csr_matrix, NDArray[Any]]:
    """Values of the shared genes in cells (n, G), whether they are counts, those in spots (m, G), and the genes' names.

    A slide of values that are not counts is matched to cells that are.
    """
    *columns, genes = shared_columns(adata, slide, layer)
    cells, cells_raw = lookup.expression(adata, columns[0], layer=layer)
    spots, spots_raw = lookup.expression(slide, columns[1], layer=layer, name="slide")
    if spots_raw and not cells_raw:
        raise InputError(
            "slide holds counts, adata normalised values.",
            "Give counts in both: layer=, or, if slide has no such layer, adata read with sg.read(path, layer=...).",
        )
    if cells_raw and not spots_raw:
        spots = matched_counts(spots, cells)
    return (cells, cells_raw), spots, genes
