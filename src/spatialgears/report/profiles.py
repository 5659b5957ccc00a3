"""Spots and cells side by side, in plain expression and as the network sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse
from scipy.spatial import KDTree

from spatialgears.analysis import lookup
from spatialgears.analysis.domains import components
from spatialgears.analysis.subject import Subject
from spatialgears.errors import InputError
from spatialgears.metrics.points import spot_pitch
from spatialgears.pipeline.fitted import KeptSlide
from spatialgears.runtime.seeds import numpy_rng
from spatialgears.validate import read_other_genes, validate_cells

if TYPE_CHECKING:
    from spatialgears.model import GEARS

MOST_CELLS = 2000
BEFORE, AFTER = "before: plain expression", "after: as the network sees it"


def seen_profiles(model: GEARS, subject: Subject, cells: AnnData, *, seed: int) -> AnnData:
    """Spots of the slides and some cells, with both embeddings in ``obsm``.

    Plain expression is 20 principal components of the log-normalised most variable genes. What the network sees of
    spots are the views that the model kept, thinned to the depth of cells.
    """
    fitted = model.fitted_
    spots = _kept_spots(fitted.given_slides, subject.slides)
    limit = min(MOST_CELLS, sum(map(len, spots)))
    some = np.sort(numpy_rng(seed, "mixed cells").permutation(subject.cells.n_obs)[:limit])
    counts, missing, _ = validate_cells(
        cells,
        fitted.panel.genes,
        fitted.panel.weights,
        rows=subject.rows[some],
        normalised=not fitted.raw,
    )
    others = fitted.others_of(*read_other_genes(cells, fitted.other_genes, rows=subject.rows[some]))
    seen = fitted.features(counts, model.config, missing=missing, others=others)
    plain = [lookup.log_expression(slide)[rows] for slide, rows in zip(subject.slides, spots, strict=True)]
    plain.append(lookup.log_expression(subject.cells)[some])
    sizes = [len(rows) for rows in spots]
    obs = pd.DataFrame(
        {
            "spots or cells": np.repeat(["spots", "cells"], [sum(sizes), len(some)]),
            "slides": np.append(np.repeat(np.asarray(subject.titles, object), sizes), [None] * len(some)),
        },
        index=np.arange(sum(sizes) + len(some)).astype(str),
    )
    shown = [slide.features for slide in fitted.given_slides] + [seen[np.arange(len(seen))]]
    after = np.concatenate([one.seen.numpy() for one in shown])
    before = components(sparse.csr_matrix(sparse.vstack(plain)), seed=seed)
    return AnnData(obs=obs, obsm={BEFORE: before, AFTER: after})


def _kept_spots(known: Sequence[KeptSlide], given: Sequence[AnnData]) -> list[np.ndarray]:
    """Rows of the spots whose views the model kept, by their places."""
    others = InputError(
        "These are not the slides that the model was fitted on.", "Give those, in their order."
    )
    if len(known) != len(given):
        raise others
    found = []
    for slide, adata in zip(known, given, strict=True):
        coords = adata.obsm["spatial"]
        gap, rows = KDTree(coords).query(slide.frame.to_slide(slide.coords[slide.anchors]))
        if gap.max() > 0.1 * spot_pitch(coords):
            raise others
        found.append(rows)
    return found
