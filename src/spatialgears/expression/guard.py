"""Choosing the embedding: the trained encoder, or the simple reference if that places held-out spots better.

Spots and cells can be perfectly mixed in an embedding that says nothing about position. Held-out spots, thinned to the
depth of cells, are therefore placed by their nearest neighbours in each embedding, and the better embedding is used.
Stage A uses coordinates only here, to choose, and for the weights of genes and components; never as a training target.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from spatialgears.expression.encoder import Encoder
from spatialgears.expression.reference import Place, knn_places
from spatialgears.metrics import spearman
from spatialgears.runtime.seeds import numpy_rng

logger = logging.getLogger(__name__)

#: Spots of one slide that are placed, spots whose distances are compared, folds of the cross-validation, and spots of a
#: tile that is held out as a whole.
MAX_PLACED, MAX_SPOTS, N_FOLDS, TILE = 5000, 1000, 5, 4


@dataclass(frozen=True)
class Guard:
    """How well held-out spots are placed by neighbours in the trained embedding and in the reference."""

    #: Scores by ``"spots"`` (tiles of each slide held out) and, with several slides, ``"slides"`` (each slide placed from
    #: those of other donors, or from the others of one donor): Spearman correlation of predicted with true distances, mean
    #: over slides.
    encoder: dict[str, float]
    reference: dict[str, float]
    #: The embedding to use: the better one over slides, or over spots if there is only one slide.
    choice: Literal["encoder", "reference"]
    forced: bool = False  # whether the configuration decided


def run_guard(
    encoder: Encoder,
    reference: Encoder,
    *,
    known: Sequence[Tensor],
    queries: Sequence[Tensor],
    coords: Sequence[np.ndarray],
    seed: int,
    force: Literal["auto", "encoder", "reference"] = "auto",
    place: Place = knn_places,
    wholes: Sequence[int] | None = None,
) -> Guard:
    """Score both embeddings on held-out spots and choose, or take the one that ``force`` names whatever the scores.

    ``known`` is the weighted expression (n_i, G) of every slide's spots as measured, ``queries`` the same spots thinned,
    to the depth of cells, and ``coords`` (n_i, 2) their canonical coordinates. ``place`` places spots by their neighbours,
    ideally in the way cells will be placed. Slides with the same number in ``wholes``, such as those of one donor, are left
    out together; by default each slide alone.
    """
    some = [
        np.sort(numpy_rng(seed, "guard", i).permutation(len(x))[:MAX_PLACED]) for i, x in enumerate(known)
    ]
    known, queries = ([x[rows] for x, rows in zip(each, some, strict=True)] for each in (known, queries))
    places = [xy[rows] for xy, rows in zip(coords, some, strict=True)]
    scores = [
        held_out_scores(
            [e.embed(x) for x in known],
            [e.embed(x) for x in queries],
            places,
            seed=seed,
            place=place,
            wholes=wholes,
        )
        for e in (encoder, reference)
    ]
    over = "slides" if "slides" in scores[0] else "spots"
    better: Literal["encoder", "reference"] = "encoder" if scores[0][over] >= scores[1][over] else "reference"
    guard = Guard(scores[0], scores[1], better if force == "auto" else force, forced=force != "auto")
    logger.info(
        "held-out %s placed by neighbours: Spearman %.3f in the trained embedding, %.3f in the reference; using the %s%s",
        over, scores[0][over], scores[1][over], guard.choice, " (forced)" if guard.forced else "",
    )  # fmt: skip
    return guard


def held_out_scores(
    known: Sequence[Tensor],
    queries: Sequence[Tensor],
    coords: Sequence[np.ndarray],
    *,
    seed: int,
    place: Place = knn_places,
    wholes: Sequence[int] | None = None,
) -> dict[str, float]:
    """Spearman correlation of distances of held-out spots, over ``spots`` and, with several slides, ``slides``.

    As for :func:`run_guard`, with embedded spots (n_i, h) as measured and thinned; the seed decides the tiles that are
    held out.
    """
    scores = {
        "spots": np.mean(
            [_over_spots(*slide, seed, place) for slide in zip(known, queries, coords, strict=True)]
        )
    }
    if len(known) > 1:
        wholes, over_slides = wholes or range(len(known)), []
        for i, query in enumerate(queries):
            others = [j for j in range(len(known)) if wholes[j] != wholes[i]]
            places = place([known[j] for j in others], [coords[j] for j in others], query)
            over_slides.append(_score(places, coords[i], seed))
        scores["slides"] = np.mean(over_slides)
    return {name: float(value) for name, value in scores.items()}


def _over_spots(known: Tensor, query: Tensor, coords: np.ndarray, seed: int, place: Place) -> float:
    """Every spot placed from the other folds. Whole tiles are held out, so that a spot's neighbours are missing too."""
    fold = tile_folds(coords, seed=seed)
    places = np.empty(coords.shape)
    for i in np.unique(fold):
        held = fold == i
        places[held] = place([known[~held]], [coords[~held]], query[held])
    return _score(places, coords, seed)


def tile_folds(coords: np.ndarray, *, seed: int) -> np.ndarray:
    """Folds (n,) of spots. Square tiles of about four spots belong to one fold; outlying spots do not change their size."""
    low, extent = coords.min(0), np.ptp(coords, axis=0)
    middle = np.subtract(*np.quantile(coords, [0.75, 0.25], axis=0))  # half the extent of an even slide
    extent = np.where(middle > 0, np.minimum(extent, 3 * middle), extent)
    side = np.sqrt(np.prod(np.maximum(extent, 1e-9)) * TILE / len(coords))
    column, row = np.floor((coords - low) / side).astype(np.int64).T
    _, tile = np.unique(column * (row.max() + 1) + row, return_inverse=True)
    return numpy_rng(seed, "tiles").permutation(tile.max() + 1)[tile] % N_FOLDS


def _score(places: np.ndarray, coords: np.ndarray, seed: int) -> float:
    if not np.ptp(places, axis=0).any():  # an embedding without information puts all spots at one point
        return 0.0
    rows = numpy_rng(seed, "scored spots").permutation(len(coords))[:MAX_SPOTS]
    return spearman(places[rows], coords[rows])
