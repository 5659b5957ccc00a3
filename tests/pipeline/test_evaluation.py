from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from spatialgears.geometry.features import Features
from spatialgears.geometry.nearest import NearestSpots
from spatialgears.geometry.training import TrainedFolds
from spatialgears.pipeline.evaluation import choose_average, choose_reach, place_unseen, reference_places

RNG = np.random.default_rng(0)
SLIDES = [RNG.normal(size=(60, 2)), RNG.normal(size=(40, 2))]
COORDS = torch.from_numpy(np.concatenate(SLIDES)).float()


class Spots:
    """Features that are the places themselves."""

    @staticmethod
    def draw(index, generator, average):
        return Features(COORDS[index])


def turned(seed: int, shift: float = 0.0):
    """A perfect model with a frame of its own in five dimensions."""
    turn = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(seed))).Q[:2]
    return lambda x: x @ turn + shift


@pytest.fixture
def _no_dropout(monkeypatch):
    """The stand-ins for models below have none."""
    monkeypatch.setattr(
        "spatialgears.pipeline.evaluation.dropout_spread", lambda model, x, *, seed: torch.ones(len(x))
    )


@pytest.mark.usefixtures("_no_dropout")
def test_perfect_models_place_unseen_spots_exactly():
    fold = np.arange(100) % 10
    unseen = place_unseen(TrainedFolds([turned(0), turned(1, 3.0)], fold), Spots(), SLIDES, seed=0)
    assert set(unseen.spot.tolist()) == set(np.flatnonzero(fold < 2).tolist())
    torch.testing.assert_close(unseen.places, unseen.truth, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(unseen.truth, COORDS[unseen.spot])
    assert (unseen.slide == (unseen.spot >= 60)).all() and unseen.error.max() < 1e-3
    counts = torch.bincount(unseen.spot)
    assert set(counts[counts > 0].tolist()) == {4}  # views of each


@pytest.mark.usefixtures("_no_dropout")
def test_the_pose_is_found_without_the_spots_that_are_judged():
    """A model that errs on the spots it has not seen shows that error in full."""
    fold = np.arange(100) % 10
    wrong = torch.from_numpy(fold == 0)

    def model(x):
        return (
            x + torch.where(wrong[: x.shape[1]] if x.shape[1] == 60 else wrong[60:], 5.0, 0.0)[None, :, None]
        )

    unseen = place_unseen(TrainedFolds([model], fold), Spots(), SLIDES, seed=0)
    torch.testing.assert_close(unseen.error, torch.full_like(unseen.error, 50**0.5), atol=1e-3, rtol=1e-3)


@pytest.mark.usefixtures("_no_dropout")
def test_slides_nobody_has_seen_are_posed_as_a_whole():
    fold = np.repeat([0, 1], [60, 40])
    unseen = place_unseen(TrainedFolds([turned(0), turned(1)], fold), Spots(), SLIDES, seed=0)
    assert len(unseen.spot) == 4 * 100 and unseen.error.max() < 1e-3


class Blurred:
    """A model whose places are off by noise of a size."""

    def __init__(self, size: float) -> None:
        self.size, self.rng = size, torch.Generator().manual_seed(0)

    def __call__(self, x):
        return x + self.size * torch.randn(x.shape, generator=self.rng)


@pytest.mark.usefixtures("_no_dropout")
@pytest.mark.parametrize("by_slide", [False, True])
def test_nearest_spots_reach_as_far_as_models_are_off(by_slide, monkeypatch):
    """Spots tell their place by the embedding, but for their side: there are always two that look alike."""
    rng = torch.Generator().manual_seed(1)
    coords = (
        torch.randn(800, 2, generator=rng)
        + torch.tensor([3.0, 0.0]) * (torch.arange(800) % 2 * 2 - 1)[:, None]
    )
    side = (torch.arange(800) % 2 * 2 - 1)[:, None]
    looks = coords - torch.tensor([3.0, 0.0]) * side
    z = torch.cat([looks, torch.ones(800, 1), 0.02 * side], 1)
    slides = [coords[:400].numpy().astype(float), coords[400:].numpy().astype(float)]
    slide = torch.arange(800) // 400
    fold = slide.numpy() if by_slide else np.arange(800) % 10

    class Spots:
        @staticmethod
        def draw(index, generator, average):
            return Features(coords[index], z[index])

    found = {}
    for size, spread in ((0.0, 1.0), (0.8, 1.0), (0.8, 2.0)):
        monkeypatch.setattr(
            "spatialgears.geometry.ensemble.Ensemble.spread", lambda *_, seed, to=spread: torch.full((9,), to)
        )
        folds = TrainedFolds([Blurred(size), Blurred(size)], fold)
        fit = SimpleNamespace(
            folds=None if by_slide else folds, slide_folds=folds if by_slide else None, members=[]
        )
        nearest = NearestSpots(z, coords, slide, torch.arange(800))
        cells = Features(torch.empty(9, 2), torch.empty(9, 4))
        found[size, spread] = choose_reach(nearest, fit, Spots(), slides, cells, seed=0)
    assert found[0.0, 1.0] == 0  # what is exact stays
    assert 0.1 <= found[0.8, 1.0] <= 1.5 and found[0.8, 2.0] == pytest.approx(2 * found[0.8, 1.0])


@pytest.mark.parametrize(("noise", "off", "chosen"), [(1.0, 0.0, 0.6), (0.0, 1.0, 0.0)])
def test_left_out_donors_choose_how_far_cells_are_averaged(noise, off, chosen):
    """Averaging takes noise away, and what is a spot's own with it."""
    rng = torch.Generator().manual_seed(0)
    blur, elsewhere = (torch.randn(100, 2, generator=rng) for _ in range(2))

    class Spots:
        @staticmethod
        def draw(index, generator, average):
            moved = (1 - average) * noise * blur[index] + average * off * elsewhere[index]
            return Features(COORDS[index] + moved, None)

    folds = TrainedFolds([lambda x: x, lambda x: x], np.repeat([0, 1], [60, 40]))
    assert choose_average(None, folds, Spots(), SLIDES, seed=0, most=0.6) == chosen


class Views:
    """Spots as measured tell their place, and thinned ones a little less of it."""

    clean = staticmethod(lambda index: torch.cat([COORDS, COORDS**2, COORDS**3], 1)[index])
    draw = staticmethod(lambda index, generator: 0.9 * torch.cat([COORDS, COORDS**2, COORDS**3], 1)[index])


@pytest.mark.parametrize("by_slide", [False, True])
def test_the_reference_places_unseen_spots_only(by_slide):
    fold = np.repeat([0, 1], [60, 40]) if by_slide else np.arange(100) % 10
    places = reference_places(TrainedFolds([None, None], fold), Views(), SLIDES, seed=0)
    judged = fold < 2
    assert np.isfinite(places[judged]).all() and np.isnan(places[~judged]).all()
    if not by_slide:
        error = np.linalg.norm(places[judged] - COORDS.numpy()[judged], axis=1)
        assert np.median(error) < 0.7 * np.median(np.linalg.norm(COORDS.numpy()[judged], axis=1))


def test_the_reference_knows_spots_as_measured():
    """Only the spots that are placed are thinned: what these tell is told, whatever thinning does to others."""

    class Odd(Views):
        @staticmethod
        def draw(index, generator):
            view = Views.draw(index, generator)
            view[1::2] = 0  # seen by the first model, which places the others
            return view

    fold = np.arange(100) % 2
    plain, odd = (
        reference_places(TrainedFolds([None], fold), views, SLIDES, seed=0) for views in (Views(), Odd())
    )
    np.testing.assert_array_equal(plain, odd)
