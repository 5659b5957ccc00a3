"""What held-out spots and slides tell: the self-checks, and how far off cells may be."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spatialgears.assembly.confidence import Confidence, error_of_mean
from spatialgears.expression.reference import knn_places, reference_encoder
from spatialgears.expression.views import SpotViews
from spatialgears.geometry.ensemble import Ensemble, dropout_spread
from spatialgears.geometry.heldout import Draw
from spatialgears.geometry.model import GeometryModel
from spatialgears.geometry.nearest import NearestSpots
from spatialgears.geometry.training import Folds, GeometryFit
from spatialgears.pipeline.self_check import MISSED_SLIDE, SelfCheck, score
from spatialgears.runtime.seeds import child_seed, numpy_rng, torch_rng
from spatialgears.supervision.targets import Pose

logger = logging.getLogger(__name__)

VIEWS = 4  # views of each held-out spot that the confidence is learnt from
EXAMINED = 5000  # spots of a slide that are looked at: more tell no more
REACHES = (0.0, 0.1, 0.15, 0.2, 0.3, 0.45, 0.7, 1.0, 1.5, 10.0)  # tried, in RMS radii of a slide
REACHED = 2000  # spots of a slide that these are tried on


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
    view
        (m,) number of the view.
    spread
        (m,) how far it moves under dropout.
    """

    spot: Tensor
    slide: Tensor
    features: Tensor
    places: Tensor
    truth: Tensor
    view: Tensor
    spread: Tensor

    @property
    def error(self) -> Tensor:
        """(m,) how far off each was placed."""
        return (self.places - self.truth).norm(dim=1)


@dataclass(frozen=True)
class _Look:
    """One view of a slide's spots, of which a model has not seen some.

    ``index`` and ``truth`` are the spots and their places, ``x`` and ``z`` what the model sees and the embedding,
    ``known`` the nearest spots of those it has seen. ``halves`` are marked at random.
    """

    model: GeometryModel
    known: NearestSpots | None
    slide: int
    view: int
    seed: int
    index: Tensor
    truth: Tensor
    unseen: Tensor
    halves: Tensor
    x: Tensor
    z: Tensor

    def posed(self, geometry: Tensor) -> Tensor:
        """The unseen spots' places (m, 2) in the frame of their slide, from a geometry (n, d) of all spots.

        The pose is found from the spots the model has seen; where it has seen next to none, that of each half of them
        from the other half. No spot's place takes part in finding its own pose: d dimensions could be turned to fit.
        """
        unseen, half, places = self.unseen, self.halves, torch.empty(self.truth.shape)
        by_seen = (~unseen).sum() > unseen.sum()
        for wanted, posed in ((unseen, ~unseen),) if by_seen else ((half, ~half), (~half, half)):
            pose = Pose.between(self.truth[posed], geometry[posed])
            places[wanted] = pose.inverse(geometry[wanted])
        return places[unseen]

    def guided(self, geometry: Tensor) -> Tensor:
        """The geometry (n, d) as the spots nearest to it have it."""
        return geometry if self.known is None else self.known(self.z[None], geometry[None])[0]


def _looks(
    folds: Folds,
    draw: Draw,
    slides: list[NDArray[np.float64]],
    *,
    seed: int,
    nearest: NearestSpots | None,
    views: int,
    at_most: int,
) -> Iterator[_Look]:
    """Views of the spots of each slide (or ``at_most`` of them) for every model that has not seen some."""
    everywhere = np.concatenate(slides)
    for number, model in enumerate(folds.models):
        known = None if nearest is None else nearest.without(folds.fold == number)
        for s, spots in enumerate(examined(slides, seed=seed, at_most=at_most)):
            unseen = torch.from_numpy(folds.fold[spots] == number)
            if not unseen.any():
                continue
            halves = torch.rand(len(spots), generator=torch_rng(seed, "halves", number, s)).argsort() % 2 == 0
            index, truth = torch.from_numpy(spots), torch.from_numpy(everywhere[spots]).float()
            for view in range(views):
                x = draw(index[None], torch_rng(seed, "unseen", number, s, view))[0]
                x, z = x.tensor_split([x.shape[-1] if nearest is None else model.n_features], dim=-1)
                own_seed = child_seed(seed, "spread", number, s, view)
                yield _Look(model, known, s, view, own_seed, index, truth, unseen, halves, x, z)


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

    With ``nearest``, views are the model's features and, after them, the embedding.
    """
    parts: list[tuple[Tensor, ...]] = []
    for look in _looks(folds, draw, slides, seed=seed, nearest=nearest, views=VIEWS, at_most=EXAMINED):
        places = look.posed(look.guided(look.model(look.x[None])[0].float()))
        spread = dropout_spread(look.model, look.x, seed=look.seed)
        number = torch.ones(len(places), dtype=torch.long)
        mine = (part[look.unseen] for part in (look.index, look.x, look.truth, spread))
        index, x, truth, spread = mine
        parts.append((index, number * look.slide, x, places, truth, number * look.view, spread))
    return Unseen(*(torch.cat(column) for column in zip(*parts, strict=True)))


@torch.no_grad()
def set_reach(
    nearest: NearestSpots,
    fit: GeometryFit,
    draw: Draw,
    slides: list[NDArray[np.float64]],
    cells: Tensor,
    *,
    seed: int,
) -> None:
    """Set how far from the generators' places ``nearest`` reaches, by spots that neither has seen.

    Where whole slides were missed, these tell, and count one each: spots of a slide are wrong together. Of all reaches
    that are about as good as the best the middle one is taken. Cells ``cells`` (n, f) that are less certain than spots,
    by how far they move under dropout, are further off, and need a wider reach by as much.

    ``draw`` gives the model's features and, after them, the embedding.
    """
    folds = fit.folds if fit.slide_folds is None else fit.slide_folds
    if folds is None:
        return
    errors, units, spreads = [], [], []
    for look in _looks(folds, draw, slides, seed=seed, nearest=nearest, views=1, at_most=REACHED):
        assert look.known is not None
        geometry, tried = look.model(look.x[None])[0].float(), []
        for reach in REACHES:
            look.known.reach.fill_(reach)
            tried.append((look.posed(look.guided(geometry)) - look.truth[look.unseen]).norm(dim=1))
        errors.append(torch.stack(tried))  # (reaches, m)
        spots = look.index[look.unseen]
        units.append(spots if fit.slide_folds is None else torch.full_like(spots, look.slide))
        spreads.append(dropout_spread(look.model, look.x, seed=look.seed)[look.unseen])
    reach = REACHES[middle(torch.cat(errors, 1), torch.cat(units))]
    wider = Ensemble(fit.members).spread(cells, seed=seed).median() / torch.cat(spreads).median()
    nearest.reach.fill_(reach * float(wider.clamp_min(1)))
    logger.info("nearest spots: those within about %.2f RMS radii of the generators' places", nearest.reach)


def examined(
    slides: list[NDArray[np.float64]], *, seed: int, at_most: int = EXAMINED
) -> list[NDArray[np.int64]]:
    """The spots of each slide that are looked at, numbered through the slides."""
    starts = np.cumsum([0, *map(len, slides)])
    return [
        starts[s] + np.sort(numpy_rng(seed, "examined", s).permutation(len(coords))[:at_most])
        for s, coords in enumerate(slides)
    ]


def examine(
    fit: GeometryFit,
    draw: Draw,
    views: SpotViews,
    slides: list[NDArray[np.float64]],
    *,
    seed: int,
    titles: Sequence[str],
    nearest: NearestSpots | None = None,
    noise: float = 0.0,
) -> tuple[list[SelfCheck], Confidence | None]:
    """Self-checks on held-out spots and slides beside the simple reference, and the confidence learnt from them.

    Cells are of no slide: where whole slides were missed, these tell how far off cells are. A spot is placed by the one
    model that has not seen it, cells by the mean of all, which does not have the ``noise`` of one
    (:func:`~spatialgears.assembly.confidence.error_of_mean`).
    """
    checks: list[SelfCheck] = []
    spots = "Held-out spots" if len(slides) == 1 else "Held-out spots of slide"
    judged = [
        (folds, what, place_unseen(folds, draw, slides, seed=seed, nearest=nearest))
        for folds, what in ((fit.folds, spots), (fit.slide_folds, MISSED_SLIDE))
        if folds is not None
    ]
    if not judged:
        return checks, None
    for folds, what, unseen in judged:
        simple = reference_places(folds, views, slides, seed=seed)
        for s in range(len(slides)):
            one = (unseen.slide == s) & (unseen.view == 0)
            if one.sum() >= 10:
                title = what if len(slides) == 1 else f"{what} {titles[s].removeprefix('slide ')}"
                places, truth, spot = unseen.places[one], unseen.truth[one], unseen.spot[one]
                checks.append(score(title, places.numpy(), truth.numpy(), reference=simple[spot.numpy()]))
    last = judged[-1][2]
    error = error_of_mean(last.error, last.spread, noise=noise, members=len(fit.members))
    return checks, Confidence.fit(last.features, error, last.spread, spot=last.spot)


def middle(error: Tensor, unit: Tensor) -> int:
    """The middle one of the ways whose errors (ways, m) are, on average, within one standard error of the smallest.

    Units (m,), such as spots or slides, count alike, and their number makes the standard error.
    """
    _, which, size = unit.unique(return_inverse=True, return_counts=True)
    error = torch.zeros(len(error), len(size)).index_add(1, which, error) / size  # (ways, units)
    excess = error - error[error.mean(1).argmin()]
    spread = excess.std(1) if len(size) > 1 else torch.zeros(len(excess))
    alike = (excess.mean(1) <= spread / len(size) ** 0.5).nonzero()[:, 0]
    return int(alike[(len(alike) - 1) // 2])


def reference_places(
    folds: Folds, views: SpotViews, slides: list[NDArray[np.float64]], *, seed: int
) -> NDArray[np.float64]:
    """Where the simple reference puts the spots of every fold, from the spots outside it; (n_spots, 2), else NaN.

    The seen spots of a slide, as measured, place its unseen ones, thinned; a slide of which none was seen is placed by the
    others.
    """
    everywhere = np.concatenate(slides)
    parts = examined(slides, seed=seed)
    spots, slide = np.concatenate(parts), np.repeat(np.arange(len(slides)), [len(part) for part in parts])
    coords, places = everywhere[spots], np.full(everywhere.shape, np.nan)
    measured = views.clean(torch.from_numpy(spots))
    for number in range(len(folds.models)):
        seen = folds.fold[spots] != number
        encoder = reference_encoder(measured[torch.from_numpy(seen)], seed=child_seed(seed, "reference"))
        z = encoder.embed(measured)
        thinned = encoder.embed(views.draw(torch.from_numpy(spots), torch_rng(seed, "reference", number)))
        for s in np.unique(slide[~seen]):
            query = np.flatnonzero(~seen & (slide == s))
            sources = [s] if (seen & (slide == s)).any() else np.unique(slide[seen])
            known = [np.flatnonzero(seen & (slide == source)) for source in sources]
            places[spots[query]] = knn_places(
                [z[rows] for rows in known], [coords[rows] for rows in known], thinned[query]
            )
    return places
