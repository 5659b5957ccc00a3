"""What held-out spots and slides tell: the self-checks, and how far off cells may be."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spatialgears.assembly.confidence import Confidence, error_of_mean
from spatialgears.engine import child_seed, numpy_rng, torch_rng
from spatialgears.expression.reference import knn_places, reference_encoder
from spatialgears.expression.views import SpotViews
from spatialgears.geometry.ensemble import dropout_spread
from spatialgears.geometry.heldout import Draw
from spatialgears.geometry.nearest import NearestSpots
from spatialgears.geometry.training import Folds, GeometryFit
from spatialgears.selfcheck import MISSED_SLIDE, SelfCheck, score
from spatialgears.supervision.targets import procrustes

logger = logging.getLogger(__name__)

VIEWS = 4  # views of each held-out spot that the confidence is learnt from
EXAMINED = 5000  # spots of a slide that are looked at: more tell no more


@dataclass(frozen=True)
class Unseen:
    """Spots as placed by models that had not seen them, in the frames of their slides.

    Attributes
    ----------
    spot
        (m,) number of the spot among all; several views of each.
    slide
        (m,) its slide.
    features
        (m, f) the view that was placed.
    places, truth
        (m, 2) where it was put, and where it is.
    nearest
        (m, 2) where the nearest spots put it, of those the model has seen; ``places`` without such.
    view
        (m,) number of the view.
    spread
        (m,) how far it moves under dropout.
    """

    spot: Tensor
    slide: Tensor
    features: Tensor
    places: Tensor
    nearest: Tensor
    truth: Tensor
    view: Tensor
    spread: Tensor

    @property
    def error(self) -> Tensor:
        """(m,) how far off each was placed."""
        return (self.places - self.truth).norm(dim=1)

    def averaged(self, weight: float) -> Unseen:
        """Placed by the mean of model and nearest spots, these with ``weight``."""
        return replace(self, places=torch.lerp(self.places, self.nearest, weight))


@torch.no_grad()
def place_unseen(
    folds: Folds,
    draw: Draw,
    slides: list[NDArray[np.float64]],
    *,
    seed: int,
    nearest: NearestSpots | None = None,
) -> Unseen:
    """Place every spot with the model that has not seen it, among all spots of its slide (or ``EXAMINED`` of them).

    The pose of a slide is found from the spots the model has seen; where it has seen none, that of each half of its
    spots from the other half. No spot's place takes part in finding its own pose: d dimensions could be turned to fit.
    With ``nearest``, views are the model's features and, after them, the embedding.
    """
    everywhere = np.concatenate(slides)
    parts: list[tuple[Tensor, ...]] = []
    for number, model in enumerate(folds.models):
        known = None if nearest is None else nearest.without(folds.fold == number)
        for s, spots in enumerate(examined(slides, seed=seed)):
            unseen = torch.from_numpy(folds.fold[spots] == number)
            if not unseen.any():
                continue
            half = torch.rand(len(spots), generator=torch_rng(seed, "halves", number, s)).argsort() % 2 == 0
            by_seen = (~unseen).sum() > unseen.sum()
            index, truth = torch.from_numpy(spots), torch.from_numpy(everywhere[spots]).float()
            for view in range(VIEWS):
                x = draw(index[None], torch_rng(seed, "unseen", number, s, view))
                if known is None:
                    geometry = near = model(x)[0].float()
                else:
                    x, z = x.tensor_split([model.n_features], dim=-1)
                    geometry = model(x)[0].float()
                    near = known(z, geometry[None])[0]
                both = torch.stack([geometry, near])
                places = torch.empty(2, *truth.shape)
                for wanted, posed in ((unseen, ~unseen),) if by_seen else ((half, ~half), (~half, half)):
                    shift, origin = geometry[posed].mean(0), truth[posed].mean(0)
                    turn = procrustes(truth[posed] - origin, geometry[posed] - shift)  # (2, d)
                    places[:, wanted] = (both[:, wanted] - shift) @ turn.T + origin
                spread = dropout_spread(model, x[0], seed=child_seed(seed, "spread", number, s, view))
                rows = (index[unseen], torch.full((int(unseen.sum()),), s), x[0, unseen], *places[:, unseen])
                parts.append((*rows, truth[unseen], torch.full((int(unseen.sum()),), view), spread[unseen]))
    return Unseen(*(torch.cat(column) for column in zip(*parts, strict=True)))


def examined(slides: list[NDArray[np.float64]], *, seed: int) -> list[NDArray[np.int64]]:
    """The spots of each slide that are looked at, numbered through the slides."""
    starts = np.cumsum([0, *map(len, slides)])
    return [
        starts[s] + np.sort(numpy_rng(seed, "examined", s).permutation(len(coords))[:EXAMINED])
        for s, coords in enumerate(slides)
    ]


def examine(
    fit: GeometryFit,
    draw: Draw,
    views: SpotViews,
    slides: list[NDArray[np.float64]],
    *,
    seed: int,
    nearest: NearestSpots | None = None,
    noise: float = 0.0,
) -> tuple[list[SelfCheck], Confidence | None]:
    """Self-checks on held-out spots and slides beside the simple reference, and the confidence learnt from them.

    Cells are of no slide: where whole slides were missed, these tell how far off cells are, and what weight
    ``nearest`` gets. A spot is placed by the one model that has not seen it, cells by the mean of all, which does not
    have the ``noise`` of one (:func:`~spatialgears.assembly.confidence.error_of_mean`).
    """
    checks: list[SelfCheck] = []
    judged = [
        (folds, what, place_unseen(folds, draw, slides, seed=seed, nearest=nearest))
        for folds, what in ((fit.folds, "Held-out spots"), (fit.slide_folds, MISSED_SLIDE))
        if folds is not None
    ]
    if not judged:
        return checks, None
    if nearest is not None:
        last = judged[-1][2]
        missed = last.slide if fit.slide_folds is not None else None
        weight = best_weight(last.places, last.nearest, last.truth, spot=last.spot, slide=missed)
        nearest.weight.fill_(weight)
        logger.info("nearest spots: %.2f of the mean with the generators", float(nearest.weight))
        judged = [(folds, what, each.averaged(float(nearest.weight))) for folds, what, each in judged]
    for folds, what, unseen in judged:
        simple = reference_places(folds, views, slides, seed=seed)
        for s in range(len(slides)):
            one = (unseen.slide == s) & (unseen.view == 0)
            if one.sum() >= 10:
                title = (
                    what if len(slides) == 1 else f"{what} {'of slide ' if folds is fit.folds else ''}{s + 1}"
                )
                places, truth, spot = unseen.places[one], unseen.truth[one], unseen.spot[one]
                checks.append(score(title, places.numpy(), truth.numpy(), reference=simple[spot.numpy()]))
    last = judged[-1][2]
    if nearest is not None:
        noise *= (1 - float(nearest.weight)) ** 2
    error = error_of_mean(last.error, last.spread, noise=noise, members=len(fit.members))
    return checks, Confidence.fit(last.features, error, last.spread, spot=last.spot)


def best_weight(
    generated: Tensor, nearest: Tensor, truth: Tensor, *, spot: Tensor, slide: Tensor | None = None
) -> float:
    """The share of ``nearest`` in the mean with ``generated`` that places spots well, (m, 2) each.

    The smallest whose squared error is within one standard error of the least: what serves spots alone serves cells
    less, and where little is won nothing is changed.

    Parameters
    ----------
    generated, nearest, truth
        Places of views of spots: by a model that has not seen them, by the nearest spots, and the true ones.
    spot
        (m,) which spot each is a view of; spots count alike, and their number makes the standard error.
    slide
        (m,) given where whole slides were missed: then slides count alike, and their number makes it. Spots of a slide
        are wrong together.
    """
    unit = spot if slide is None else slide
    _, which, views = unit.unique(return_inverse=True, return_counts=True)
    shares = torch.linspace(0, 1, 101)
    error = torch.stack([(torch.lerp(generated, nearest, w) - truth).square().sum(1) for w in shares])
    error = torch.zeros(len(shares), len(views)).index_add(1, which, error) / views  # (shares, units)
    excess = error - error[error.mean(1).argmin()]
    within = excess.mean(1) <= excess.std(1) / len(views) ** 0.5
    return float(shares[int(within.float().argmax())])


def reference_places(
    folds: Folds, views: SpotViews, slides: list[NDArray[np.float64]], *, seed: int
) -> NDArray[np.float64]:
    """Where the simple reference puts the spots of every fold, from the spots outside it; (n_spots, 2), else NaN.

    The seen spots of a slide place its unseen ones; a slide of which none was seen is placed by the others.
    """
    everywhere = np.concatenate(slides)
    parts = examined(slides, seed=seed)
    spots, slide = np.concatenate(parts), np.repeat(np.arange(len(slides)), [len(part) for part in parts])
    coords, places = everywhere[spots], np.full(everywhere.shape, np.nan)
    for number in range(len(folds.models)):
        seen = folds.fold[spots] != number
        features = views.draw(torch.from_numpy(spots), torch_rng(seed, "reference", number))
        encoder = reference_encoder(features[torch.from_numpy(seen)], seed=child_seed(seed, "reference"))
        z = encoder.embed(features)
        for s in np.unique(slide[~seen]):
            query = np.flatnonzero(~seen & (slide == s))
            sources = [s] if (seen & (slide == s)).any() else np.unique(slide[seen])
            known = [np.flatnonzero(seen & (slide == source)) for source in sources]
            places[spots[query]] = knn_places(
                [z[rows] for rows in known], [coords[rows] for rows in known], z[query]
            )
    return places
