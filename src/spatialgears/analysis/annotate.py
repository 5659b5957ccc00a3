"""What every run adds to the coordinates: the pose of the cells on each slide, and spatial domains."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from spatialgears.analysis import lookup
from spatialgears.analysis.domains import compare, components, leiden, majority
from spatialgears.analysis.registration import register
from spatialgears.analysis.subject import Subject, subject_of
from spatialgears.errors import InputError
from spatialgears.pipeline.pose import OnSlide, fit_pose, known_poses

if TYPE_CHECKING:
    from anndata import AnnData

    from spatialgears.expression.panel import Panel
    from spatialgears.reconstruction import Reconstruction

logger = logging.getLogger(__name__)

DOMAIN = "gears_domain"
FEWEST_FOR_DOMAINS = 100
MOST_SLIDES = 4  # that cells are matched with by expression, to see which fits best
SHUFFLES, NEIGHBORS, RESOLUTION = 100, 15, 0.2


def described(
    placed: Reconstruction,
    cells: AnnData,
    slides: Sequence[AnnData] = (),
    *,
    titles: Sequence[str] = (),
    panel: Panel,
    spatial_key: str = "spatial",
    types: str | None = None,
    seed: int = 0,
) -> Reconstruction:
    """:func:`annotated`, from the inputs of a run; the arguments are those of :func:`subject_of`."""
    subject = subject_of(
        placed, cells, slides, titles=titles, panel=panel, spatial_key=spatial_key, types=types, seed=seed
    )
    named = None if subject.types is None else cells.obs[subject.types].map(str, na_action="ignore")
    return annotated(placed, subject, types=None if named is None else pd.Categorical(named), seed=seed)


def annotated(
    placed: Reconstruction, subject: Subject, *, types: pd.Categorical | None = None, seed: int = 0
) -> Reconstruction:
    """The reconstruction with the cells laid on the subject's slides, and with spatial domains.

    ``types`` (n,) are those of all cells, to name domains by; None where they are unknown. The same seed gives the same
    domains.
    """
    obs, uns = domains(placed, subject, types=types, seed=seed)
    found = laid(placed, subject) if subject.slides else list(placed.laid)
    return replace(placed, laid=found, obs={**placed.obs, **obs}, uns={**placed.uns, **uns}, annotated=True)


def laid(placed: Reconstruction, subject: Subject) -> list[OnSlide]:
    """How the cells lie on each slide: as the model knows it, else by matching; slides that match nothing are left out."""
    spots = [np.asarray(slide.obsm["spatial"], dtype=np.float64) for slide in subject.slides]
    measured = [one.pose(spots) for one, spots in zip(placed.laid, placed.slides, strict=False)]
    found = []
    for i, known in enumerate(known_poses(placed.slides, measured, spots)):
        fit = _matched(subject, i) if i < MOST_SLIDES else {}
        if known is not None or "scale" in fit:
            one = OnSlide.of(
                subject.titles[i],
                known or fit_pose(fit),
                spots[i],
                coords=placed.coords,
                outside=placed.outside,
            )
            found.append(replace(one, matched=fit))
    return found


def _matched(subject: Subject, i: int) -> Mapping[str, Any]:
    """The cells matched to a slide by expression, without knowing the pose; or why that failed."""
    cells = subject.cells
    try:
        register(cells, subject.slides[i], key_added="laid")
    except InputError as error:
        logger.info("cells could not be matched with %s: %s", subject.titles[i], error)
        return {"failed": error}
    del cells.obsm["laid"]
    return dict(cells.uns.pop("laid"))


def domains(
    placed: Reconstruction, subject: Subject, *, types: pd.Categorical | None, seed: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Columns of ``obs`` and entries of ``uns`` as :func:`spatialgears.tl.spatial_domains` writes them.

    Empty for few cells, and where Leiden is not installed. Of many cells the subject's are compared with shuffles.
    """
    inside = ~placed.outside
    if inside.sum() < FEWEST_FOR_DOMAINS or find_spec("leidenalg") is None:
        return {}, {}
    coords = placed.coords[inside].astype(np.float64)
    codes = np.full(len(inside), -1)
    codes[inside] = leiden(coords, n_neighbors=NEIGHBORS, resolution=RESOLUTION, seed=seed)
    size = np.bincount(codes[inside])
    table = pd.DataFrame({"n_cells": size}, index=[str(i) for i in range(len(size))])
    if types is not None and len(types.categories):
        table = table.join(majority(codes[inside], types[inside], table.index))
    rows = np.flatnonzero(codes[subject.rows] >= 0)
    found, code = np.unique(codes[subject.rows[rows]], return_inverse=True)
    obs = {DOMAIN: pd.Categorical.from_codes(codes, table.index)}
    try:
        embedding = components(lookup.log_expression(subject.cells)[rows], seed=seed)
        compared = compare(code, embedding, table.index[found], n_shuffles=SHUFFLES, seed=seed)
    except InputError as error:
        logger.info("domains were not compared with shuffled cells: %s", error)
    else:
        table = table.join(compared)
        table["noise"] = table["noise"].eq(True)
        obs[f"{DOMAIN}_noise"] = np.append(table["noise"], False)[codes]  # the last is for no domain
    params = {"n_neighbors": NEIGHBORS, "resolution": RESOLUTION, "n_shuffles": SHUFFLES, "basis": "X_gears"}
    params |= {"labels": subject.types or "", "seed": seed, "n_outside": int((~inside).sum())}
    return obs, {DOMAIN: {"table": table, "params": params}}
