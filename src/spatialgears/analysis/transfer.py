"""Label transfer: labels or numbers of the spots, for the cells."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype
from scipy import sparse

from spatialgears.analysis import lookup
from spatialgears.analysis.calibration import StandIns, sharpened
from spatialgears.analysis.weights import matrix, weigh
from spatialgears.errors import InputError

if TYPE_CHECKING:
    from anndata import AnnData

logger = logging.getLogger(__name__)

NONE = "none"  # the label of cells whose best label is too improbable


def transfer(
    cells: AnnData,
    slide: AnnData | Sequence[AnnData],
    key: str,
    *,
    least: float = 0.5,
    place: float | None = None,
    likeness: float | None = None,
    basis: str | Sequence[str] | None = None,
    layer: str | None = None,
    spatial_key: str = "spatial",
    outside: str | None = lookup.OUTSIDE,
    key_added: str | None = None,
    seed: int = 0,
    copy: bool = False,
) -> AnnData | None:
    """Transfer a column of the spots to the cells: regions or layers with a probability, numbers with a spread.

    Two estimates are averaged: the labels of the spots by :func:`spatialgears.tl.spot_weights`, which use the cell's position,
    and a classifier of expression that was trained on spots with as few counts as cells. The more similar the cells are to the
    spots, the larger the share of the classifier, unless the weights predict labels of spots clearly better. Both are
    calibrated on spots with known labels, made as noisy as cells: a label should be right as often as its probability says.

    Parameters
    ----------
    cells
        Cells with coordinates in ``obsm["X_gears"]``, as a run writes them to ``cells.h5ad``.
    slide
        One slide or several, with ``obs[key]`` and ``obsm[spatial_key]``. Several are averaged.
    key
        Column of ``slide.obs``: labels, or numbers. Spots where it is missing are left out.
    least
        Probability below which the label is "none".
    place, likeness, layer, spatial_key, outside, seed
        As in :func:`spatialgears.tl.spot_weights`. With ``likeness``, labels come from the weights alone.
    basis
        Key of ``cells.obsm`` with coordinates on the slide, one for each slide; None: the cells are registered.
    key_added
        Name of the slots; default ``"gears_" + key``, and ``"gears_slide_" + key`` where that is taken, as "gears_domain" is.
    copy
        Write into a copy and return it.

    Returns
    -------
    ``None``, or the copy. Writes, for labels

    ``obs[key_added]``
        The label of each cell, or "none".
    ``obs[key_added + "_probability"]``
        Probability of the most likely label, whether or not it was given.
    ``obsm[key_added]``
        DataFrame (cells, labels), probability of each label. A row sums to the share of the cell that is on the slide.

    and for numbers

    ``obs[key_added]``, ``obs[key_added + "_sd"]``
        Mean and standard deviation; missing for cells outside.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> tissue = sg.datasets.simulate_tissue(n_cells=400, n_genes=60, spots=80)
    >>> cells, slide = tissue.cells, tissue.slides[0]
    >>> cells.obsm["X_gears"] = sg.metrics.canonical(tissue.truth.obsm["spatial"])  # or rec.to_adata(cells)
    >>> cells.obs["gears_radius50"] = 0.1
    >>> slide.obs["side"] = np.where(slide.obsm["spatial"][:, 0] > slide.obsm["spatial"][:, 0].mean(), "right", "left")
    >>> sg.tl.transfer(cells, slide, "side")
    >>> list(cells.obsm["gears_side"].columns), sorted(cells.obs["gears_side"].cat.categories)
    (['left', 'right'], ['left', 'none', 'right'])
    """
    slides = list(slide) if isinstance(slide, Sequence) else [slide]
    if not slides:
        raise InputError("No slide was given.", "Give one or more.")
    keys = (
        [basis] * len(slides)
        if basis is None or (isinstance(basis, str) and len(slides) == 1)
        else list(basis)
    )
    if (isinstance(basis, str) and len(slides) > 1) or len(keys) != len(slides):
        raise InputError(
            f"basis must name places on each of {len(slides)} slides, found {basis!r}.",
            "Give one key of obsm for each slide, or None to register the cells.",
        )
    if not 0 <= least <= 1:
        raise InputError(f"least must be a probability, found {least}.")
    key_added = key_added or lookup.slot(key)
    known = [lookup.column(one, key, "slide").notna().to_numpy() for one in slides]
    if not all(mine.sum() >= 3 for mine in known):
        raise InputError(f"slide.obs[{key!r}] has fewer than 3 values.", "Name another column.")
    slides = [one if mine.all() else one[mine].copy() for one, mine in zip(slides, known, strict=True)]
    options = {"place": place, "likeness": likeness, "layer": layer}
    found = [
        weigh(cells, one, **options, basis=where, spatial_key=spatial_key, outside=outside, seed=seed)  # type: ignore[arg-type]
        for one, where in zip(slides, keys, strict=True)
    ]
    kinds = [one.obs[key].dtype for one in slides]
    numeric = all(is_numeric_dtype(kind) and not is_bool_dtype(kind) for kind in kinds)
    if numeric:
        values = [one.obs[key].to_numpy(np.float64) for one in slides]
        weights = [matrix(*one, seed=seed) for one in found]
        mass, mean, square = (
            sum(np.asarray(w @ v**power).ravel() for w, v in zip(weights, values, strict=True))
            for power in (0, 1, 2)
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(mass > 0, mean / mass, np.nan)
            spread = np.sqrt(np.maximum(np.where(mass > 0, square / mass, np.nan) - mean**2, 0))
        cells = lookup.target(cells, copy)
        cells.obs[key_added], cells.obs[f"{key_added}_sd"] = mean, spread
        return cells if copy else None
    labels = [lookup.labels(one, key, "slide") for one in slides]
    names = pd.Index(np.concatenate([one.categories for one in labels])).unique().sort_values()
    table = np.zeros((cells.n_obs, len(names)))
    for one, (evidence, settings) in zip(labels, found, strict=True):
        codes = names.get_indexer(one.astype(str))
        there = sparse.csr_matrix(
            (np.ones(len(codes)), (np.arange(len(codes)), codes)), (len(codes), len(names))
        )
        stand_ins = StandIns.of(evidence, settings, there, seed=seed)
        settings, power = stand_ins.calibrated(likeness is None)
        weights = matrix(evidence, settings, seed=seed)
        labelled = sharpened(np.asarray((weights @ there).todense()), power)
        if likeness is None:
            by_expression, share = stand_ins.classified(settings, power)
            mass = evidence.on_slide(settings)[:, None]
            labelled = (1 - share) * labelled + share * mass * by_expression
        table += labelled / len(slides)
    table = table.clip(max=1)  # sums may round above one
    best = table.argmax(1)
    probability = table[np.arange(len(table)), best]
    given = names if NONE in names else names.append(pd.Index([NONE]))
    chosen = np.where(probability >= least, best, given.get_loc(NONE))
    cells = lookup.target(cells, copy)
    cells.obs[key_added] = pd.Categorical.from_codes(chosen, given)
    cells.obs[f"{key_added}_probability"] = probability
    cells.obsm[key_added] = pd.DataFrame(table, cells.obs_names, names)
    logger.info("%s of %s cells have a label", int((probability >= least).sum()), len(chosen))
    return cells if copy else None
