"""Held-out evaluation: self-checks on spots and slides that a model was trained without, and the calibration of radii."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spatialgears.assembly.confidence import Confidence, error_of_mean
from spatialgears.expression.reference import knn_places, reference_encoder
from spatialgears.expression.views import SpotViews
from spatialgears.geometry.ensemble import Ensemble, dropout_spread
from spatialgears.geometry.features import Features
from spatialgears.geometry.model import GeometryModel
from spatialgears.geometry.nearest import NearestSpots
from spatialgears.geometry.training import GeometryFit, TrainedFolds
from spatialgears.pipeline.features import SpotFeatures
from spatialgears.pipeline.self_check import FEWEST_SPOTS, MISSED_SLIDE, SelfCheck, score
from spatialgears.runtime.seeds import child_seed, numpy_rng, torch_rng
from spatialgears.supervision.targets import Pose
from spatialgears.validate.donors import Donors

logger = logging.getLogger(__name__)

VIEWS = 4  # views of each held-out spot that radii are calibrated on
EVALUATED = 5000  # spots of a slide that are evaluated, at most
REACHES = (0.0, 0.1, 0.15, 0.2, 0.3, 0.45, 0.7, 1.0, 1.5, 10.0)  # tried, in RMS radii of a slide
REACH_SPOTS = 2000  # spots of a slide that these are tried on


@dataclass(frozen=True)
class Unseen:
    """Held-out spots as placed by the models trained without them, in the frames of their slides."""

    spot: Tensor  # (m,) number of the spot among all; several views of each
    slide: Tensor  # (m,) its slide
    features: Tensor  # (m, f) the view that was placed, as the generator saw it
    #: (m, 2) predicted and true coordinates.
    places: Tensor
    truth: Tensor
    view: Tensor  # (m,) number of the view
    spread: Tensor  # (m,) how far the prediction moves under dropout

    @property
    def error(self) -> Tensor:
        """(m,) distance between prediction and truth."""
        return (self.places - self.truth).norm(dim=1)


@dataclass(frozen=True)
class _Look:
    """One view of a slide's spots, some of which are held out of a model.

    ``index`` and ``truth`` are the spots and their coordinates, ``features`` the view, ``known`` the nearest spots among
    those the model was trained on. ``halves`` marks a random half.
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
    features: Features

    def posed(self, geometry: Tensor) -> Tensor:
        """The held-out spots' coordinates (m, 2) in the frame of their slide, from a geometry (n, d) of all spots.

        The pose is found from the spots the model was trained on; where these are few, the pose of each half of the spots
        is found from the other half. No spot helps to find its own pose: d dimensions could be rotated to fit it.
        """
        unseen, half, places = self.unseen, self.halves, torch.empty(self.truth.shape)
        by_seen = (~unseen).sum() > unseen.sum()
        for wanted, posed in ((unseen, ~unseen),) if by_seen else ((half, ~half), (~half, half)):
            pose = Pose.between(self.truth[posed], geometry[posed])
            places[wanted] = pose.inverse(geometry[wanted])
        return places[unseen]

    def guided(self, geometry: Tensor) -> Tensor:
        """The geometry (n, d) moved towards the most similar spots."""
        if self.known is None:
            return geometry
        embedding = self.features.embedding
        assert embedding is not None
        return self.known(embedding[None], geometry[None])[0]


def _looks(
    folds: TrainedFolds,
    spots: SpotFeatures,
    slides: Sequence[NDArray[np.float64]],
    *,
    seed: int,
    nearest: NearestSpots | None,
    views: int,
    at_most: int,
    average: float = 0.0,
) -> Iterator[_Look]:
    """For every model, views of each slide with spots held out of it: at most ``at_most`` spots, moved by ``average``."""
    everywhere = np.concatenate(slides)
    for number, model in enumerate(folds.models):
        known = None if nearest is None else nearest.without(folds.fold == number)
        for s, some in enumerate(evaluated(slides, seed=seed, at_most=at_most)):
            unseen = torch.from_numpy(folds.fold[some] == number)
            if not unseen.any():
                continue
            halves = torch.rand(len(some), generator=torch_rng(seed, "halves", number, s)).argsort() % 2 == 0
            index, truth = torch.from_numpy(some), torch.from_numpy(everywhere[some]).float()
            for view in range(views):
                features = spots.draw(index, torch_rng(seed, "unseen", number, s, view), average=average)
                own_seed = child_seed(seed, "spread", number, s, view)
                yield _Look(model, known, s, view, own_seed, index, truth, unseen, halves, features)


@torch.no_grad()
def place_unseen(
    folds: TrainedFolds,
    spots: SpotFeatures,
    slides: Sequence[NDArray[np.float64]],
    *,
    seed: int,
    nearest: NearestSpots | None = None,
) -> Unseen:
    """Place every held-out spot with the model trained without it, among all spots of its slide (or ``EVALUATED``)."""
    parts: list[tuple[Tensor, ...]] = []
    for look in _looks(folds, spots, slides, seed=seed, nearest=nearest, views=VIEWS, at_most=EVALUATED):
        x = look.features.seen
        places = look.posed(look.guided(look.model(x[None])[0].float()))
        spread = dropout_spread(look.model, x, seed=look.seed)
        number = torch.ones(len(places), dtype=torch.long)
        index, x, truth, spread = (part[look.unseen] for part in (look.index, x, look.truth, spread))
        parts.append((index, number * look.slide, x, places, truth, number * look.view, spread))
    return Unseen(*(torch.cat(column) for column in zip(*parts, strict=True)))


@torch.no_grad()
def choose_reach(
    nearest: NearestSpots,
    fit: GeometryFit,
    spots: SpotFeatures,
    slides: Sequence[NDArray[np.float64]],
    cells: Features,
    *,
    seed: int,
) -> float:
    """Search radius around the generators' position within which similar spots count, chosen by held-out spots.

    Where donors (or slides of one donor) were left out, these choose, and each has one vote: errors within a slide are
    correlated. Of all radii about as good as the best, the middle one is taken. Where ``cells`` move further under dropout
    than spots do, the radius grows by the same factor.
    """
    folds = fit.folds if fit.slide_folds is None else fit.slide_folds
    if folds is None:
        return 0.0
    errors, units, spreads = [], [], []
    for look in _looks(folds, spots, slides, seed=seed, nearest=nearest, views=1, at_most=REACH_SPOTS):
        assert look.known is not None
        x = look.features.seen
        geometry, tried = look.model(x[None])[0].float(), []
        for reach in REACHES:
            look.known.reach.fill_(reach)
            tried.append((look.posed(look.guided(geometry)) - look.truth[look.unseen]).norm(dim=1))
        errors.append(torch.stack(tried))  # (reaches, m)
        index = look.index[look.unseen]
        units.append(index if fit.slide_folds is None else torch.from_numpy(folds.fold[index]))
        spreads.append(dropout_spread(look.model, x, seed=look.seed)[look.unseen])
    reach = REACHES[middle(torch.cat(errors, 1), torch.cat(units))]
    wider = Ensemble(fit.members).spread(cells, seed=seed).median() / torch.cat(spreads).median()
    reach *= float(wider.clamp_min(1))
    logger.info("similar spots are searched within %.2f RMS radii of the generators' positions", reach)
    return reach


@torch.no_grad()
def choose_average(
    nearest: NearestSpots | None,
    folds: TrainedFolds,
    spots: SpotFeatures,
    slides: Sequence[NDArray[np.float64]],
    *,
    seed: int,
    most: float,
) -> float:
    """How far (0 to ``most``) profiles move towards the mean of similar ones: the value that places left-out donors best.

    Each donor has one vote. As for cells, positions move less towards similar spots the more profiles are averaged.
    """
    averages, errors = (0.0, most / 2, most), []
    for average in averages:
        found: dict[int, list[Tensor]] = {}
        for look in _looks(
            folds, spots, slides, seed=seed, nearest=nearest, views=1, at_most=REACH_SPOTS, average=average
        ):
            if look.known is not None:
                look.known.share.fill_(1 - average)
            places = look.posed(look.guided(look.model(look.features.seen[None])[0].float()))
            donor = int(folds.fold[look.index[look.unseen][0]])
            found.setdefault(donor, []).append((places - look.truth[look.unseen]).norm(dim=1))
        errors.append(float(np.mean([float(torch.cat(one).mean()) for one in found.values()])))
    average = averages[int(np.argmin(errors))]
    logger.info("left-out donors choose to average cells %.0f%% of the way", 100 * average)
    return average


def evaluated(
    slides: Sequence[NDArray[np.float64]], *, seed: int, at_most: int = EVALUATED
) -> list[NDArray[np.int64]]:
    """The spots of each slide that are evaluated, numbered through the slides."""
    starts = np.cumsum([0, *map(len, slides)])
    return [
        starts[s] + np.sort(numpy_rng(seed, "examined", s).permutation(len(coords))[:at_most])
        for s, coords in enumerate(slides)
    ]


def evaluate_held_out(
    fit: GeometryFit,
    spots: SpotFeatures,
    slides: Sequence[NDArray[np.float64]],
    *,
    seed: int,
    titles: Sequence[str],
    donors: Donors,
    order: Sequence[int],
    nearest: NearestSpots | None = None,
    noise: float = 0.0,
) -> tuple[list[SelfCheck], Confidence | None]:
    """Self-checks on held-out spots and slides, compared with the simple reference, and the calibration of radii.

    Self-checks come in the given ``order`` of the slides.

    Cells belong to no slide: where donors (or slides of one donor) were left out, their errors calibrate the radii. A
    held-out spot is placed by one model, a cell by the mean of all, which does not have the ``noise`` of a single model
    (:func:`~spatialgears.assembly.confidence.error_of_mean`).
    """
    checks: list[SelfCheck] = []
    name = "Held-out spots" if len(slides) == 1 else "Held-out spots of slide"
    judged = [
        (folds, what, place_unseen(folds, spots, slides, seed=seed, nearest=nearest))
        for folds, what in ((fit.folds, name), (fit.slide_folds, MISSED_SLIDE))
        if folds is not None
    ]
    if not judged:
        return checks, None
    for folds, what, unseen in judged:
        simple = reference_places(folds, spots.views, slides, seed=seed)
        for s in order:
            one = (unseen.slide == s) & (unseen.view == 0)
            if one.sum() >= FEWEST_SPOTS:
                title = what if len(slides) == 1 else f"{what} {titles[s].removeprefix('slide ')}"
                places, truth, index = unseen.places[one], unseen.truth[one], unseen.spot[one]
                found = score(title, places.numpy(), truth.numpy(), reference=simple[index.numpy()])
                if what == MISSED_SLIDE:
                    found = replace(found, words=f"{found.words} {donors.question(s)}")
                checks.append(found)
    first, last = judged[0][2], judged[-1][2]
    own, error = (
        error_of_mean(one.error, one.spread, noise=noise, members=len(fit.members)) for one in (first, last)
    )
    return checks, Confidence.fit(last.features, error, last.spread, spot=last.spot, own=own / first.spread)


def middle(error: Tensor, unit: Tensor) -> int:
    """The middle one of the choices whose mean errors (choices, m) are within one standard error of the smallest.

    Units (m,), such as spots or slides, have equal weight; their number decides the standard error.
    """
    _, which, size = unit.unique(return_inverse=True, return_counts=True)
    error = torch.zeros(len(error), len(size)).index_add(1, which, error) / size  # (choices, units)
    excess = error - error[error.mean(1).argmin()]
    spread = excess.std(1) if len(size) > 1 else torch.zeros(len(excess))
    as_good = (excess.mean(1) <= spread / len(size) ** 0.5).nonzero()[:, 0]
    return int(as_good[(len(as_good) - 1) // 2])


def reference_places(
    folds: TrainedFolds, views: SpotViews, slides: Sequence[NDArray[np.float64]], *, seed: int
) -> NDArray[np.float64]:
    """Where the simple reference puts the held-out spots of every fold; (n_spots, 2), NaN for other spots.

    Thinned held-out spots are placed by the other spots of their slide, as measured. A slide that was left out as a whole
    is placed by the other slides.
    """
    everywhere = np.concatenate(slides)
    parts = evaluated(slides, seed=seed)
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
