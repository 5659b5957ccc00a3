"""Expression of the cells' genes at the spots of a slide, or anywhere on it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.spatial import KDTree

from spatialgears.analysis import lookup
from spatialgears.analysis.choice import Trial
from spatialgears.analysis.evidence import CHUNK, Evidence, Settings, compared, corrected
from spatialgears.analysis.weights import matrix, weigh
from spatialgears.errors import InputError
from spatialgears.pipeline.gene_reading import correlations
from spatialgears.runtime.seeds import numpy_rng

if TYPE_CHECKING:
    from anndata import AnnData

logger = logging.getLogger(__name__)

GENES = 500  # predicted at once
LEARNT = 300  # genes from which the scores of others are predicted
NEAREST = 6  # spots from which a position between them is predicted


def impute(
    cells: AnnData,
    slide: AnnData,
    genes: str | Sequence[str] | None = None,
    *,
    places: ArrayLike | None = None,
    place: float | None = None,
    likeness: float | None = None,
    basis: str | None = None,
    layer: str | None = None,
    spatial_key: str = "spatial",
    outside: str | None = lookup.OUTSIDE,
    seed: int = 0,
) -> AnnData:
    """Predict genes at the spots of a slide from the cells, with a score of how far to trust each gene.

    The value at a spot is the mean of the cells' log-normalised expression, weighted by
    :func:`spatialgears.tl.spot_weights`. A regression on the cells corrects it by what the spot shows beyond these cells in the
    shared genes. If the slide has values other than counts, such as intensities, normalised counts are averaged instead of logs
    where kept-out genes then follow the slide better.

    The score of a gene on the slide is its correlation with the slide when it is kept out, less the leakage through coordinates
    that were predicted with it. The score of a gene that the slide lacks is the one that equally well detected and reliable
    genes reach.

    Parameters
    ----------
    cells
        Cells with coordinates in ``obsm["X_gears"]``, as a run writes them to ``cells.h5ad``.
    slide
        Spots with ``obsm[spatial_key]``.
    genes
        Genes of the cells, one or many; None: all.
    places
        (m, 2) places in the slide's frame to predict at instead of the spots.
    place, likeness, basis, layer, spatial_key, outside, seed
        As in :func:`spatialgears.tl.spot_weights`.

    Returns
    -------
    AnnData (spots or places, genes)
        ``X`` float32, log-normalised expression, or normalised counts where ``uns["gears_impute"]["logged"]`` is False; missing
        where no cell is near. ``obsm["spatial"]``.
        ``obs["gears_cells"]``: how many cells the prediction rests on.
        ``var["score"]``: correlation with the slide over spots, measured for a gene that was kept out, expected for others.
        ``var["measured"]``: whether the score was measured. ``var["detected"]``: share of the cells that show the gene.
        ``var["reliability"]``: correlation of the predictions from two halves of the cells.
        ``uns["gears_impute"]``: ``likeness``, ``place``, and ``score``, the mean of the measured scores.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> tissue = sg.datasets.simulate_tissue(n_cells=400, n_genes=60, spots=80)
    >>> cells = tissue.cells
    >>> cells.obsm["X_gears"] = sg.metrics.canonical(tissue.truth.obsm["spatial"])  # or rec.to_adata(cells)
    >>> cells.obs["gears_radius50"] = 0.1
    >>> slide = tissue.slides[0]
    >>> found = sg.tl.impute(cells, slide[:, 10:], genes=list(cells.var_names[:3]))
    >>> found.shape == (slide.n_obs, 3), list(found.var["measured"])
    (True, [False, False, False])
    """
    columns = (
        np.arange(len(lookup.gene_names(cells, layer, "cells")))
        if genes is None
        else lookup.gene_columns(cells, genes, layer=layer, name="cells")
    )
    at = None if places is None else _checked(places)
    evidence, settings = weigh(
        cells, slide, place=place, likeness=likeness, basis=basis, layer=layer, spatial_key=spatial_key, outside=outside,
        averaged=True, genes=True, seed=seed,
    )  # fmt: skip
    names = lookup.gene_names(cells, layer, "cells")
    weights = matrix(evidence, settings, seed=seed)
    reader = Reader.of(weights, seed=seed)
    expression = evidence.logged if settings.logged else evidence.logged.expm1()
    values, reliable = reader.read(expression, columns)
    if settings.corrected:
        values = _corrected(values, evidence, settings, weights, expression[:, columns], seed=seed)
    table = _scores(
        evidence,
        settings,
        reader,
        names,
        expression=expression,
        columns=columns,
        reliable=reliable,
        seed=seed,
    )
    mass, coords = np.asarray(weights.sum(0)).ravel(), evidence.coords
    obs = pd.DataFrame({"gears_cells": mass}, index=slide.obs_names)
    if at is not None:
        between = _between(evidence, at)
        values, coords = between @ values, at
        values[np.asarray(between.sum(1)).ravel() == 0] = np.nan
        obs = pd.DataFrame(
            {"gears_cells": between @ mass}, index=pd.Index([f"place{i}" for i in range(len(at))])
        )
    from anndata import AnnData

    found = AnnData(np.asarray(values, np.float32), obs=obs, var=table, obsm={"spatial": coords.copy()})
    found.uns["gears_impute"] = settings.figures()
    return found


class Reader:
    """Reads genes at spots by weights (M, N), and compares what two halves of the cells predict."""

    def __init__(self, halves: list[sparse.csr_matrix]) -> None:
        self.halves = halves
        self.mass = [np.asarray(half.sum(1)).ravel() for half in halves]
        self.both = (self.mass[0] > 0) & (self.mass[1] > 0)

    @classmethod
    def of(cls, weights: sparse.csr_matrix, *, seed: int) -> Reader:
        """By weights (N, M); halves of the cells are drawn at random."""
        first = numpy_rng(seed, "halves").random(weights.shape[0]) < 0.5
        return cls([(sparse.diags(mine.astype(np.float32)) @ weights).T.tocsr() for mine in (first, ~first)])

    def read(
        self, logged: sparse.csr_matrix, columns: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Mean (M, g) of some genes over the cells, NaN where there are none, and the correlation (g,) of the halves."""
        found, reliable = np.empty((len(self.both), len(columns)), np.float32), np.zeros(len(columns))
        for start in range(0, len(columns), GENES):
            part = slice(start, start + GENES)
            values = logged[:, columns[part]]
            totals = [(half @ values).toarray() for half in self.halves]
            found[:, part] = _mean(totals[0] + totals[1], self.mass[0] + self.mass[1])
            halves = (_mean(total, mass)[self.both] for total, mass in zip(totals, self.mass, strict=True))
            reliable[part] = correlations(*halves)
        return found, reliable


def _corrected(
    read: NDArray[np.float32],
    evidence: Evidence,
    settings: Settings,
    weights: sparse.csr_matrix,
    values: sparse.csr_matrix,
    *,
    seed: int,
) -> NDArray[np.float32]:
    """Genes (M, g) that were read from values (N, g) by weights (N, M), corrected."""
    similarity, counted = compared(evidence, settings, seed=seed), np.flatnonzero(evidence.kept)
    parts = (counted[start : start + CHUNK] for start in range(0, len(counted), CHUNK))
    cells = np.vstack([similarity.embed(evidence.profiles(rows, settings.similar)) for rows in parts])
    near = weights[counted].T
    shown = (near @ cells) / np.maximum(np.asarray(near.sum(1)), 1e-30)
    return corrected(read, similarity.spots, shown, cells, values[counted])


def _mean(total: NDArray[Any], mass: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(invalid="ignore", divide="ignore"):
        return (total / mass[:, None]).astype(np.float32)


def _scores(
    evidence: Evidence,
    settings: Settings,
    reader: Reader,
    names: NDArray[Any],
    *,
    expression: sparse.csr_matrix,
    columns: NDArray[np.int64],
    reliable: NDArray[np.float64],
    seed: int,
) -> pd.DataFrame:
    """One row per gene: score, whether it was measured, and what an unmeasured score rests on."""
    trial = Trial(evidence, genes=len(evidence.genes), seed=seed)
    r = trial.scores(settings)
    own = pd.Series(r, evidence.genes[trial.genes]).reindex(names[columns]).to_numpy()
    detected = np.asarray((evidence.logged[evidence.kept] > 0).mean(0)).ravel()
    expected = np.full(len(columns), np.nan)
    if not np.isfinite(own).all():
        some = np.arange(0, len(r), -(-len(r) // LEARNT))  # from the most spatial to the least
        known = evidence.columns[trial.genes[some]]
        describe = np.column_stack([np.ones(len(some)), reader.read(expression, known)[1], detected[known]])
        slope = np.linalg.lstsq(describe, r[some], rcond=None)[0]
        expected = np.column_stack([np.ones(len(columns)), reliable, detected[columns]]) @ slope
        expected = np.clip(expected, r.min(), r.max())
    return pd.DataFrame(
        {
            "score": np.where(np.isfinite(own), own, expected),
            "measured": np.isfinite(own),
            "detected": detected[columns],
            "reliability": reliable,
        },
        index=pd.Index(names[columns], name="gene"),
    )


def _checked(places: ArrayLike) -> NDArray[np.float64]:
    at = np.asarray(places, dtype=np.float64)
    if at.ndim != 2 or at.shape[1] != 2 or not len(at) or not np.isfinite(at).all():
        raise InputError(
            f"places must be finite coordinates (m, 2) on the slide, found shape {at.shape}.",
            "None predicts at the spots.",
        )
    return at


def _between(evidence: Evidence, at: NDArray[np.float64]) -> sparse.csr_matrix:
    """(m, M) weights of the nearest spots of each place; none where it is further than 1.5 pitches from all of them."""
    k = min(NEAREST, len(evidence.coords))
    gap, index = KDTree(evidence.coords).query(at, k=np.arange(1, k + 1))
    weights = np.exp(-np.square(gap / evidence.pitch) * 2) * (gap[:, :1] <= 1.5 * evidence.pitch)
    weights /= np.maximum(weights.sum(1, keepdims=True), 1e-300)
    return sparse.csr_matrix(
        (weights.ravel(), index.ravel(), np.arange(len(at) + 1) * k), (len(at), len(evidence.coords))
    )
