from __future__ import annotations

import numpy as np
import pytest
import torch

from spatialgears.expression.encoder import Encoder
from spatialgears.expression.guard import held_out_scores, run_guard, tile_folds
from spatialgears.expression.reference import knn_places


def _turned(coords: np.ndarray, degrees: float) -> np.ndarray:
    angle = np.radians(degrees)
    return coords @ np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


@pytest.fixture
def slides():
    """Two slides of the same tissue in different poses, and an embedding that knows the place in it."""
    rng = np.random.default_rng(0)
    anatomy = [rng.uniform(-1, 1, size=(n, 2)) for n in (150, 130)]
    frequency = rng.normal(size=(2, 12)) * 2
    embedded = [torch.from_numpy(np.sin(a @ frequency + np.arange(12))).float() for a in anatomy]
    return embedded, [anatomy[0], _turned(anatomy[1], 130) * [1, -1]], anatomy


def test_neighbours_find_places_whatever_the_pose_of_the_slides(slides):
    embedded, coords, anatomy = slides
    places = knn_places(embedded, coords, embedded[0])
    assert np.abs(places - anatomy[0]).max() < 0.5
    pooled = np.abs(places - anatomy[0]).mean()
    assert pooled < 0.1


def test_scores_are_high_for_place_and_low_for_noise(slides):
    embedded, coords, _ = slides
    good = held_out_scores(embedded, embedded, coords, seed=0)
    noise = [torch.randn(x.shape, generator=torch.Generator().manual_seed(1)) for x in embedded]
    bad = held_out_scores(noise, noise, coords, seed=0)
    assert set(good) == {"spots", "slides"} and min(good.values()) > 0.85
    assert max(bad.values()) < 0.2
    assert set(held_out_scores(embedded[:1], embedded[:1], coords[:1], seed=0)) == {"spots"}


def test_a_slide_is_placed_without_its_sister(slides):
    embedded, coords, _ = slides
    noise = torch.randn(embedded[0].shape, generator=torch.Generator().manual_seed(1))
    known, places = [*embedded, noise], [*coords, coords[0]]
    alone, by_donor = (
        held_out_scores(known, known, places, seed=0, wholes=wholes)["slides"] for wholes in (None, [0, 0, 1])
    )
    assert by_donor < 0.3 < alone  # only the noise is left to place the sisters


def test_a_held_out_spot_does_not_find_itself(slides):
    embedded, coords, _ = slides
    names = [torch.eye(len(x)) for x in embedded]  # every spot is like itself alone
    assert held_out_scores(names[:1], names[:1], coords[:1], seed=0)["spots"] < 0.3


def test_an_embedding_that_tells_nothing_scores_nothing(slides):
    embedded, coords, _ = slides
    same = [torch.ones_like(x) for x in embedded]
    assert held_out_scores(same, same, coords, seed=0)["slides"] == 0


def test_a_spot_far_off_leaves_the_tiles_of_the_others():
    coords = np.random.default_rng(0).random((200, 2))
    coords[0] = 10.0
    assert np.bincount(tile_folds(coords, seed=0)).max() < 80


def test_tiles_are_held_out_whole():
    side = np.arange(12.0)
    coords = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    fold = tile_folds(coords, seed=0).reshape(12, 12)
    assert set(np.unique(fold)) == set(range(5))
    assert (
        fold[:, 1:] == fold[:, :-1]
    ).mean() > 0.45  # half of the neighbours share a tile; one in five by chance


@pytest.mark.parametrize(("force", "choice"), [("auto", "encoder"), ("reference", "reference")])
def test_the_better_embedding_is_chosen_unless_forced(slides, force, choice, caplog):
    embedded, coords, _ = slides
    keep, lose = torch.eye(12), torch.zeros(12, 12)
    lose[0, 0] = 1
    encoder, reference = (Encoder(12, 12, hidden=None, start=start).freeze() for start in (keep, lose))
    with caplog.at_level("INFO", logger="spatialgears"):
        guard = run_guard(
            encoder, reference, known=embedded, queries=embedded, coords=coords, seed=0, force=force
        )
    assert guard.choice == choice and guard.forced == (force != "auto")
    assert guard.encoder["slides"] > guard.reference["slides"]
    assert f"using the {choice}" in caplog.text
