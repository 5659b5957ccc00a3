"""Label transfer: what is known of the spots, for the cells."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from spatialgears.analysis import lookup
from spatialgears.analysis.evidence import Evidence, Likeness, Settings, similar_cells, unit, weighed
from spatialgears.analysis.weights import matrix, weigh
from spatialgears.errors import InputError
from spatialgears.runtime.seeds import numpy_rng

if TYPE_CHECKING:
    from anndata import AnnData

logger = logging.getLogger(__name__)

NONE = "none"  # the label of cells for which the evidence is thin
SPOTS, CELLS = 1500, 1500  # that calibrate probabilities
POWERS = np.geomspace(0.5, 16, 36)  # of the probabilities, of which the most likely is taken
NOISE = np.linspace(0, 3, 31)  # added to spots, so that they are as unlike other spots as cells are


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

    Probabilities are calibrated on spots, whose label is known: made as noisy as cells, displaced as cells are, and labelled by
    the other spots, they should be right as often as their probability says.

    Parameters
    ----------
    cells
        Cells with places in ``obsm["X_gears"]``, as a run writes them to ``cells.h5ad``.
    slide
        One slide or several, with ``obs[key]`` and ``obsm[spatial_key]``. Several are averaged.
    key
        Column of ``slide.obs``: labels, or numbers. Spots where it is missing are left out.
    least
        Probability below which the evidence is thin and the label is "none".
    place, likeness, layer, spatial_key, outside, seed
        As in :func:`spatialgears.tl.spot_weights`.
    basis
        Key of ``cells.obsm`` with places on the slide, one for each slide; None: the cells are registered.
    key_added
        Name of the slots; default ``"gears_" + key``.
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
    key_added = key_added or f"gears_{key}"
    known = [lookup.column(one, key, "slide").notna().to_numpy() for one in slides]
    if not all(mine.sum() >= 3 for mine in known):
        raise InputError(f"slide.obs[{key!r}] has fewer than 3 values.", "Name another column.")
    slides = [one if mine.all() else one[mine].copy() for one, mine in zip(slides, known, strict=True)]
    options = {"place": place, "likeness": likeness, "layer": layer}
    found = [
        weigh(cells, one, **options, basis=where, spatial_key=spatial_key, outside=outside, seed=seed)  # type: ignore[arg-type]
        for one, where in zip(slides, keys, strict=True)
    ]
    weights = [matrix(*one, seed=seed) for one in found]
    numeric = all(_numeric(one.obs[key]) for one in slides)
    if numeric:
        values = [one.obs[key].to_numpy(np.float64) for one in slides]
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
    for w, one, evidence in zip(weights, labels, found, strict=True):
        there = _indicator(names.get_indexer(one.astype(str)), len(names))
        power = calibrated(*evidence, there, seed=seed)
        table += _sharpened(np.asarray((w @ there).todense()), power) / len(slides)
    best = table.argmax(1)
    probability = table[np.arange(len(table)), best]
    chosen = np.where(probability >= least, best, len(names))
    cells = lookup.target(cells, copy)
    cells.obs[key_added] = pd.Categorical.from_codes(chosen, [*names, *([] if NONE in names else [NONE])])
    cells.obs[f"{key_added}_probability"] = probability
    cells.obsm[key_added] = pd.DataFrame(table, cells.obs_names, names)
    logger.info("%s of %s cells have a label", int((chosen < len(names)).sum()), len(chosen))
    return cells if copy else None


def _numeric(values: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def _indicator(codes: np.ndarray, n: int) -> sparse.csr_matrix:
    """(rows, n) one where a row has the code."""
    return sparse.csr_matrix((np.ones(len(codes)), (np.arange(len(codes)), codes)), (len(codes), n))


def calibrated(evidence: Evidence, settings: Settings, labels: sparse.csr_matrix, *, seed: int) -> float:
    """The power of the probabilities at which they are right as often as they say.

    Spots whose label is known stand in for cells: their counts are drawn anew at the depth of cells, they are made as unlike
    other spots as cells are, and their place is displaced as a cell's is. Each is then labelled by all other spots.
    """
    rng = numpy_rng(seed, "calibration")
    spots = np.sort(rng.permutation(len(evidence.coords))[:SPOTS])
    cells = np.sort(rng.permutation(np.flatnonzero(evidence.kept))[:CELLS])
    profiles = evidence.spots[spots]
    if evidence.depth is not None:
        depth = rng.choice(np.maximum(evidence.depth[cells], 1), len(spots))[:, None]
        drawn = rng.poisson(np.expm1(profiles) / evidence.target * depth)
        profiles = np.log1p(drawn / depth * evidence.target).astype(np.float32)
    stand_in = Evidence(
        logged=sparse.csr_matrix(profiles),
        columns=np.arange(profiles.shape[1]),
        genes=evidence.genes,
        moran=evidence.moran,
        spots=evidence.spots,
        kept=np.ones(len(spots), bool),
        coords=evidence.coords,
        pitch=evidence.pitch,
        similar=similar_cells(sparse.csr_matrix(profiles), np.ones(len(spots), bool), seed=seed),
    )
    everyone, itself = np.arange(len(spots)), (np.arange(len(spots)), spots)
    cosine = distance = None
    if settings.likeness:
        of_cells = evidence.profiles(cells, settings.similar)
        least = np.median(Likeness.of(evidence, of_cells).cosine(of_cells).max(1))
        own = stand_in.profiles(everyone, settings.similar)
        likeness = Likeness.of(evidence, own)
        embedded = likeness.embed(own)
        noise = unit(rng.normal(size=embedded.shape).astype(np.float32))
        for level in NOISE:
            cosine = unit(embedded + np.float32(level) * noise) @ likeness.spots.T
            cosine[itself] = -1
            if np.median(cosine.max(1)) <= least:
                break
    if settings.place and evidence.laid is not None and evidence.spread is not None:
        spread = rng.choice(evidence.spread[evidence.kept], len(spots))
        laid = evidence.coords[spots] + spread[:, None] * rng.normal(size=(len(spots), 2))
        distance = replace(stand_in, laid=laid, spread=spread).distance(everyone)
        distance[itself] = distance.max() + 100
    found = np.asarray(weighed(settings, cosine, distance, evidence.sharing()) @ labels.toarray())
    true = labels[spots].toarray().argmax(1)
    likely = [np.log(_sharpened(found, power)[everyone, true] + 1e-3).mean() for power in POWERS]
    power = float(POWERS[int(np.argmax(likely))])
    logger.info("probabilities are taken to the power %.2g", power)
    return power


def _sharpened(table: NDArray[np.float64], power: float) -> NDArray[np.float64]:
    """Rows to a power, with the sums they had."""
    mass = table.sum(1, keepdims=True)
    share = (table / np.maximum(mass, 1e-300)) ** power
    return mass * share / np.maximum(share.sum(1, keepdims=True), 1e-300)
