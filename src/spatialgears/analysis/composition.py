"""How many cells of each type lie in each spot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from spatialgears.analysis import lookup
from spatialgears.analysis.weights import matrix, weigh
from spatialgears.errors import InputError
from spatialgears.runtime.seeds import numpy_rng

if TYPE_CHECKING:
    from anndata import AnnData


def abundance(
    cells: AnnData,
    slide: AnnData,
    key: str = "cell_type",
    *,
    cells_per_spot: float | str | ArrayLike | None = None,
    level: float = 0.9,
    n_samples: int = 100,
    place: float | None = None,
    likeness: float | None = None,
    basis: str | None = None,
    layer: str | None = None,
    spatial_key: str = "spatial",
    outside: str | None = lookup.OUTSIDE,
    seed: int = 0,
) -> AnnData:
    """Estimate how many cells of each type lie in each spot, with intervals.

    The types of the cells are summed at the spots by :func:`spatialgears.tl.spot_weights`. Intervals come from samples, in each
    of which every cell lies in one spot, drawn by its weights.

    Parameters
    ----------
    cells
        Cells with coordinates in ``obsm["X_gears"]`` and types in ``obs[key]``. Cells without a type are left out.
    slide
        Spots with ``obsm[spatial_key]``.
    key
        Column of ``cells.obs``.
    cells_per_spot
        Known totals: one number for every spot, (spots,) numbers such as counts of nuclei, or a column of ``slide.obs`` with
        them. None: a spot holds as many of the given cells as lie there.
    level
        Probability that an interval should hold.
    n_samples
        Samples that intervals come from.
    place, likeness, basis, layer, spatial_key, outside, seed
        As in :func:`spatialgears.tl.spot_weights`.

    Returns
    -------
    AnnData (spots, types)
        ``X`` float32, expected number of cells; ``layers["proportion"]``, their share of the spot; ``layers["low"]`` and
        ``layers["high"]``, the interval of the number. ``obs["gears_cells"]``, cells in all. ``obsm["spatial"]``.

    Examples
    --------
    >>> import spatialgears as sg
    >>> tissue = sg.datasets.simulate_tissue(n_cells=400, n_genes=60, spots=80)
    >>> cells = tissue.cells
    >>> cells.obsm["X_gears"] = sg.metrics.canonical(tissue.truth.obsm["spatial"])  # or rec.to_adata(cells)
    >>> cells.obs["gears_radius50"] = 0.1
    >>> found = sg.tl.abundance(cells, tissue.slides[0], "cell_type", cells_per_spot=8)
    >>> bool(abs(found.X.sum(1) - 8).max() < 1e-3)
    True
    """
    if not 0 < level < 1 or n_samples < 1:
        raise InputError(
            f"level must lie between 0 and 1 and n_samples be at least 1, found {level} and {n_samples}."
        )
    types = lookup.labels(cells, key, "cells")
    totals = _totals(slide, cells_per_spot)
    evidence, settings = weigh(
        cells, slide, place=place, likeness=likeness, basis=basis, layer=layer, spatial_key=spatial_key, outside=outside,
        averaged=True,
        seed=seed,
    )  # fmt: skip
    weights = matrix(evidence, settings, seed=seed)
    codes = np.asarray(types.codes)
    typed = np.flatnonzero(codes >= 0)
    shape = (slide.n_obs, len(types.categories))
    kind = sparse.csr_matrix(
        (np.ones(len(typed), np.float32), (typed, codes[typed])), (cells.n_obs, shape[1])
    )
    number = np.asarray((weights.T @ kind).todense(), dtype=np.float64)
    rng, draws = numpy_rng(seed, "abundance"), np.empty((n_samples, *shape), np.float32)
    draw = Draw(weights)
    for i in range(n_samples):
        spot = draw(rng)
        there = (spot >= 0) & (codes >= 0)
        drawn = np.bincount(spot[there] * shape[1] + codes[there], minlength=shape[0] * shape[1]).reshape(
            shape
        )
        draws[i] = drawn if totals is None else _scaled(drawn, totals)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    share = _scaled(number, np.ones(len(number)))
    if totals is not None:
        number = _scaled(number, totals)
    from anndata import AnnData

    found = AnnData(
        number.astype(np.float32),
        obs=pd.DataFrame({"gears_cells": number.sum(1)}, index=slide.obs_names),
        var=pd.DataFrame(index=pd.Index(types.categories, name=key)),
        obsm={"spatial": evidence.coords.copy()},
    )
    found.layers["proportion"] = share.astype(np.float32)
    found.layers["low"], found.layers["high"] = low.astype(np.float32), high.astype(np.float32)
    found.uns["gears_abundance"] = settings.figures() | {"level": level}
    return found


class Draw:
    """Draws a spot for every cell by its weights (N, M); -1 for what lies outside."""

    def __init__(self, weights: sparse.csr_matrix) -> None:
        self.indices, self.ends = weights.indices, weights.indptr
        self.cumulative = np.concatenate([[0.0], np.cumsum(weights.data, dtype=np.float64)])

    def __call__(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """(N,) spots by position."""
        start = self.cumulative[self.ends[:-1]]
        wanted = start + rng.random(len(start))
        entry = np.searchsorted(self.cumulative, wanted, side="right") - 1
        inside = entry < self.ends[1:]
        return np.where(inside, self.indices[np.minimum(entry, len(self.indices) - 1)], -1)


def _scaled(number: NDArray[Any], totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each row (n, types) with the given sum; a row without cells stays empty."""
    mass = number.sum(1)
    return number * np.where(mass > 0, totals / np.where(mass > 0, mass, 1), 0)[:, None]


def _totals(slide: AnnData, given: float | str | ArrayLike | None) -> NDArray[np.float64] | None:
    if given is None:
        return None
    if isinstance(given, str):
        values = pd.to_numeric(lookup.column(slide, given, "slide"), errors="coerce").to_numpy(np.float64)
    else:
        values = np.asarray(given, dtype=np.float64)
        values = np.full(slide.n_obs, float(values)) if values.ndim == 0 else values
    if values.shape != (slide.n_obs,):
        raise InputError(
            f"cells_per_spot must have a number for each of the {slide.n_obs:,} spots, found shape {values.shape}.",
            f"Give one number, {slide.n_obs:,} of them, or a column of slide.obs: {lookup.listed(slide.obs.columns)}.",
        )
    if not (sound := np.isfinite(values) & (values >= 0)).all():
        spot = int(np.argmin(sound))
        found = repr(slide.obs[given].iloc[spot]) if isinstance(given, str) else f"{values[spot]:g}"
        raise InputError(
            f"cells_per_spot must be numbers, finite and not negative, found {found} for spot {slide.obs_names[spot]!r}.",
            "Give 0 for a spot without cells, or name another column.",
        )
    return values
