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
from spatialgears.analysis.evidence import Evidence, Settings, Trial
from spatialgears.analysis.weights import matrix, weigh
from spatialgears.errors import InputError
from spatialgears.pipeline.cell_check import correlations
from spatialgears.runtime.seeds import numpy_rng

if TYPE_CHECKING:
    from anndata import AnnData

logger = logging.getLogger(__name__)

GENES = 500  # predicted at once
NEAREST = 6  # spots that a place between them is read from


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
    """Predict genes at the spots of a slide from the cells, and say how far each gene is to be believed.

    The value at a spot is the mean of the cells' log-normalised expression, weighted by
    :func:`spatialgears.tl.spot_weights`. Genes that the slide has are predicted without themselves, and their correlation with
    the slide is their score, less what the model's check on cells shows that places know of genes they were made with. The
    score of a gene that the slide lacks is what genes as well detected and as reliable reach.

    Parameters
    ----------
    cells
        Cells with places in ``obsm["X_gears"]``, as a run writes them to ``cells.h5ad``.
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
        ``X`` float32, log-normalised expression; missing where no cell is near. ``obsm["spatial"]``.
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
        averaged=True, seed=seed,
    )  # fmt: skip
    logged = evidence.logged
    names = lookup.gene_names(cells, layer, "cells")
    weights = matrix(evidence, settings, seed=seed)
    reader = Reader.of(weights, evidence.kept, seed=seed)
    table = _scores(evidence, settings, reader, logged, names, slide, layer=layer, columns=columns, seed=seed)
    values = reader.read(logged[:, columns])
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
    """Reads genes at spots by weights (N, M): from all cells, and from two halves of them."""

    def __init__(self, halves: list[sparse.csr_matrix]) -> None:
        self.halves = halves
        self.mass = [np.asarray(half.sum(1)).ravel() for half in halves]

    @classmethod
    def of(cls, weights: sparse.csr_matrix, kept: NDArray[np.bool_], *, seed: int) -> Reader:
        """Halves are drawn at random from the cells that count."""
        first = numpy_rng(seed, "halves").random(len(kept)) < 0.5
        turned = weights.T.tocsr()
        return cls([(turned @ sparse.diags(mine.astype(np.float32))).tocsr() for mine in (first, ~first)])

    def read(self, values: sparse.csr_matrix) -> NDArray[np.float32]:
        """Mean (M, g) of the values (N, g) of the cells; NaN where there are none."""
        return self._mean(sum(half @ values for half in self.halves).toarray(), sum(self.mass))

    def reliability(self, values: sparse.csr_matrix) -> NDArray[np.float64]:
        """(g,) correlation of what the two halves of the cells predict, as far as both reach."""
        both = (self.mass[0] > 0) & (self.mass[1] > 0)
        first, second = (
            self._mean((half @ values).toarray(), mass)[both]
            for half, mass in zip(self.halves, self.mass, strict=True)
        )
        return correlations(first, second)

    @staticmethod
    def _mean(total: Any, mass: Any) -> NDArray[np.float32]:
        with np.errstate(invalid="ignore", divide="ignore"):
            return (np.asarray(total) / mass[:, None]).astype(np.float32)


def _scores(
    evidence: Evidence,
    settings: Settings,
    reader: Reader,
    logged: sparse.csr_matrix,
    names: NDArray[Any],
    slide: AnnData,
    *,
    layer: str | None,
    columns: NDArray[np.int64],
    seed: int,
) -> pd.DataFrame:
    """One row per gene: score, whether it was measured, and what an unmeasured score rests on."""
    trial = Trial(evidence, genes=len(evidence.genes), seed=seed)
    r, known = trial.scores(settings), evidence.columns[trial.genes]
    measured = pd.Series(r, evidence.genes[trial.genes])
    detected = np.asarray((logged[evidence.kept] > 0).mean(0)).ravel()
    reliable = reader.reliability(logged[:, np.concatenate([known, columns])])
    describe = np.column_stack([np.ones(len(reliable)), reliable, detected[np.concatenate([known, columns])]])
    slope = np.linalg.lstsq(describe[: len(known)], r, rcond=None)[0]
    expected = np.clip(describe[len(known) :] @ slope, r.min(), r.max())
    own = measured.reindex(names[columns]).to_numpy()
    return pd.DataFrame(
        {
            "score": np.where(np.isfinite(own), own, expected),
            "measured": np.isfinite(own),
            "detected": detected[columns],
            "reliability": reliable[len(known) :],
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
