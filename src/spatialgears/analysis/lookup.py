"""What every analysis reads from an AnnData: places, labels, radii and expression, with errors that teach."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from spatialgears.assembly.distances import nearest_cells
from spatialgears.errors import InputError
from spatialgears.expression.normalise import log_normalise
from spatialgears.io.stored import copied
from spatialgears.reconstruction import ON_SLIDE
from spatialgears.text import listed, similar_names
from spatialgears.validate.coordinates import at_one_height
from spatialgears.validate.counts import check_finite, form_of, to_csr, values_of

if TYPE_CHECKING:
    from anndata import AnnData

logger = logging.getLogger(__name__)

#: Column of ``obs`` in which a reconstruction marks the cells that no slide supports.
OUTSIDE = "gears_outside"
#: What placing itself writes about a cell, as ``gears_...`` in ``obs``.
OWN = ("domain", "domain_noise", "outside", "radius50", "uncertainty")
#: Median distance from the centre of a round Gaussian in the plane, in its standard deviations.
MEDIAN_RADIUS = float(np.sqrt(2 * np.log(2)))

_ADVICE = {
    "X_gears": "Write the places first: model.reconstruct(cells).to_adata(cells).",
    "X_gears_slide": "Lay the cells on the slide first: sg.tl.register(cells, slide).",
}


def slot(column: str) -> str:
    """Where cells hold what a column of a slide says of them, apart from what placing itself writes."""
    return f"gears_slide_{column}" if column in OWN else f"gears_{column}"


def places(adata: AnnData, key: str, name: str = "adata") -> NDArray[np.float64]:
    """Finite places (n, 2) of ``obsm[key]``."""
    if key not in adata.obsm:
        raise InputError(
            f"{name} has no obsm[{key!r}]; obsm has {listed(adata.obsm)}.",
            _ADVICE.get(key, "Name one of these."),
        )
    coords = np.array(adata.obsm[key], dtype=np.float64)
    coords = coords[:, :2] if at_one_height(coords) else coords
    if coords.ndim != 2 or coords.shape[1] != 2 or len(coords) < 3:
        raise InputError(f"obsm[{key!r}] of {name} must be (n, 2) with 3 rows or more, found {coords.shape}.")
    bad = ~np.isfinite(coords).all(axis=1)
    if bad.any():
        raise InputError(
            f"obsm[{key!r}] of {name}: {bad.sum():,} of {len(coords):,} places are not finite.",
            f"Leave these out, e.g. {adata.obs_names[int(np.argmax(bad))]}.",
        )
    return coords


def on_slide(
    adata: AnnData, slide: AnnData, basis: str = ON_SLIDE, spatial_key: str = "spatial"
) -> NDArray[np.float64]:
    """Places (n, 2) of the cells in the frame of this slide: ``obsm[basis]``, or the slide's own where a run has several.

    Refused if the cells were laid on other slides only.
    """
    return places(adata, slide_key(adata, slide, basis, spatial_key))


def slide_key(adata: AnnData, slide: AnnData, basis: str = ON_SLIDE, spatial_key: str = "spatial") -> str:
    """The key of ``obsm`` with the cells in the frame of this slide."""
    spots = places(slide, spatial_key, "slide")
    several = [key for key in adata.obsm if str(key).startswith(ON_SLIDE) and key != ON_SLIDE]
    keys = [basis, *sorted(several)] if basis == ON_SLIDE else [basis]
    known = [(key, adata.uns[key]) for key in keys if "corners" in adata.uns.get(key, ())]
    if basis not in adata.obsm or basis not in dict(known):
        return basis
    low, high = spots.min(0), spots.max(0)
    for whole in (True, False):  # first the very slide, then one that holds all of these spots
        for key, fit in known:
            limit, corners = fit["pitch"], np.asarray(fit["corners"])
            within = (low >= corners[0] - limit).all() and (high <= corners[1] + limit).all()
            if within and (not whole or np.abs(np.stack([low, high]) - corners).max() <= limit):
                return key
    names = listed(dict.fromkeys(fit.get("slide", key) for key, fit in known))
    raise InputError(
        f"The cells were laid on {names}, and this slide lies elsewhere (x from {low[0]:.4g} to {high[0]:.4g}, y from "
        f"{low[1]:.4g} to {high[1]:.4g}).",
        "Lay them on this slide: sg.tl.register(cells, slide).",
    )


def column(adata: AnnData, key: str, name: str = "adata") -> pd.Series:
    """``obs[key]``, or an error that names the columns there are."""
    if key not in adata.obs:
        near = similar_names(key, adata.obs.columns)
        raise InputError(
            f"{name} has no obs column {key!r}; there are {listed(adata.obs.columns)}.",
            f"Did you mean {near[0]!r}?"
            if near
            else "Name one of these."
            if len(adata.obs.columns)
            else "Give a file that has it, such as an .h5ad.",
        )
    return adata.obs[key]


def labels(adata: AnnData, key: str, name: str = "adata") -> pd.Categorical:
    """``obs[key]`` as categories that occur, named by text; missing labels have code -1."""
    values = column(adata, key, name)
    if not isinstance(values.dtype, pd.CategoricalDtype):
        text = values.astype(object)
        values = text.where(text.isna(), text.astype(str))
    found = pd.Categorical(values).remove_unused_categories()
    if not len(found.categories):
        raise InputError(f"obs[{key!r}] of {name} has no label at all.", "Name another column.")
    return found.rename_categories([str(category) for category in found.categories])


def counted(adata: AnnData, outside: str | None) -> NDArray[np.bool_]:
    """(n,) cells that count: those ``obs[outside]`` does not mark; all of them where ``outside`` is None.

    Only the reconstruction's own column may be absent, as it is where places come from elsewhere.
    """
    everyone = np.ones(adata.n_obs, dtype=bool)
    if outside is None or (outside == OUTSIDE and outside not in adata.obs):
        return everyone
    marked = column(adata, outside)
    if marked.isna().any() or not marked.isin([0, 1]).all():  # True and False are 1 and 0
        raise InputError(
            f"obs[{outside!r}] must be true or false for every cell.", "outside=None counts all."
        )
    kept = ~marked.to_numpy(bool)
    if kept.sum() < 3:
        raise InputError(
            f"obs[{outside!r}] marks {(~kept).sum():,} of {len(kept):,} cells: too few are left.",
            "outside=None includes all of them, but their coordinates are not to be trusted.",
        )
    if not kept.all():
        logger.info("%s of %s cells are marked in obs[%r] and left out", (~kept).sum(), len(kept), outside)
    return kept


def spreads(adata: AnnData, key: str, kept: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Standard deviation of the position of every cell kept, along each axis, from its 50% radius ``obs[key]``."""
    values = column(adata, key)
    if not pd.api.types.is_numeric_dtype(values):
        raise InputError(
            f"obs[{key!r}] must hold radii, found text.", "radius=None takes the coordinates as exact."
        )
    radius = values.to_numpy(np.float64)[kept]
    if np.isnan(radius).all():
        raise InputError(
            f"obs[{key!r}] holds no radii: the model had no spots to learn them from (geometry.crossfit=0, as in paper).",
            "radius=None takes the coordinates as exact.",
        )
    if not (np.isfinite(radius) & (radius >= 0)).all():
        raise InputError(f"obs[{key!r}] must hold radii, finite and not negative.", _ADVICE["X_gears"])
    return radius / MEDIAN_RADIUS


def gene_columns(
    adata: AnnData, genes: str | Sequence[str], *, layer: str | None, name: str
) -> NDArray[np.int64]:
    """Columns of the named genes in ``X``, a layer or raw."""
    genes = [genes] if isinstance(genes, str) else list(genes)
    names = pd.Index(values_of(adata, layer, name)[1].index.astype(str))
    missing = [gene for gene in genes if gene not in names]
    if missing or not genes:
        near = similar_names(missing[0], names) if missing else []
        raise InputError(
            f"{name} has no gene {listed(missing)}; there are {listed(names)}."
            if missing
            else "No gene was named.",
            f"Did you mean {listed(near)}?" if near else "Name one of these.",
        )
    if len(set(genes)) < len(genes):
        raise InputError("A gene is named twice.", "Name each once.")
    repeated = names[names.duplicated()].intersection(genes)
    if len(repeated):
        raise InputError(
            f"{name} has several genes called {repeated[0]!r}.", "Run adata.var_names_make_unique()."
        )
    return names.get_indexer(pd.Index(genes)).astype(np.int64)


def gene_names(adata: AnnData, layer: str | None, name: str) -> NDArray[Any]:
    """Names (G,) of the genes of ``X``, a layer or raw."""
    return np.asarray(values_of(adata, layer, name)[1].index.astype(str))


def expression(
    adata: AnnData, columns: NDArray[Any] | None = None, *, layer: str | None = None, name: str = "adata"
) -> tuple[sparse.csr_matrix, bool]:
    """Values as CSR (n, G), and whether they are raw counts."""
    values, var = values_of(adata, layer, name)
    matrix = to_csr(values, np.arange(len(var)) if columns is None else columns)
    check_finite(matrix, np.asarray(var.index)[slice(None) if columns is None else columns], name)
    return matrix, form_of(matrix) == "counts"


def log_expression(adata: AnnData, *, layer: str | None = None, name: str = "adata") -> sparse.csr_matrix:
    """Log-normalised expression (n, G): counts are scaled to 10,000 and logged, other values taken as they are."""
    matrix, raw = expression(adata, layer=layer, name=name)
    return log_normalise(matrix) if raw else matrix


def neighbor_matrix(coords: NDArray[np.float64], k: int) -> sparse.csr_matrix:
    """(n, n) CSR of ones: the k nearest others of every row."""
    index, _ = nearest_cells(coords, k)
    n, k = index.shape
    return sparse.csr_matrix((np.ones(n * k, np.float32), index.ravel(), np.arange(n + 1) * k), (n, n))


def target(adata: AnnData, copy: bool) -> AnnData:
    """What results are written to."""
    return copied(adata) if copy else adata


def require(module: str) -> Any:
    """An optional library, or an error with the command that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(
            f"This analysis needs the library {module!r}, which cannot be imported ({error}).",
            'Install it with: pip install "spatialgears[analysis]"',
        ) from None


def adjusted(pvalues: NDArray[np.float64]) -> NDArray[np.float64]:
    """Benjamini-Hochberg adjusted P, of the values that are numbers; same shape."""
    from scipy.stats import false_discovery_control

    out = np.full(np.shape(pvalues), np.nan)
    known = np.isfinite(pvalues)
    if known.any():
        out[known] = false_discovery_control(np.clip(pvalues[known], 0, 1))
    return out
