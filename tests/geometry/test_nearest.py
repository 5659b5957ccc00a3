"""Nearest spots beside the generators: known places, unknown poses, and the weight that fits best."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize, pad

from spatialgears.examining import best_weight
from spatialgears.geometry import nearest
from spatialgears.geometry.nearest import NearestSpots, nearest_places
from spatialgears.supervision.targets import centre


@pytest.fixture
def tissue():
    """Two slides of one tissue: places, an embedding that tells them, and each slide in a pose of its own."""
    rng = torch.Generator().manual_seed(0)
    places = torch.randn(300, 2, generator=rng)
    z = normalize(torch.cat([places, torch.ones(300, 1)], 1), dim=1)
    turn = torch.linalg.qr(torch.randn(2, 2, generator=rng)).Q
    slide = torch.arange(300) % 2
    own = torch.where(slide[:, None] == 0, places, (places + 3.0) @ turn)  # slide 1: moved and turned
    return places, z, NearestSpots(z, own, slide, torch.arange(300))


def test_points_lie_where_the_spots_like_them_are_whatever_the_poses(tissue):
    places, z, spots = tissue
    query, points = z[::3], centre(places[::3])
    geometry = pad(points, (0, 4)) @ torch.linalg.qr(torch.randn(6, 6)).Q
    found = spots(query[None], geometry[None])[0]
    assert (found - geometry).norm(dim=1).median() < 0.2 < geometry.norm(dim=1).median()


def test_without_a_geometry_the_first_slide_gives_the_frame(tissue):
    places, z, spots = tissue
    own = [spots.coords[spots.slide == s].numpy() for s in (0, 1)]
    found = nearest_places([z[spots.slide == s] for s in (0, 1)], own, z)
    assert np.median(np.linalg.norm(found - places.numpy(), axis=1)) < 0.2


def test_a_spot_like_everyone_is_no_ones_nearest():
    """A hub: as like the queries as the right spots, and in the midst of many, none of which is."""
    rng = torch.Generator().manual_seed(0)
    right = normalize(torch.randn(40, 8, generator=rng), dim=1)
    hub = normalize(right.mean(0, keepdim=True) + 0.05 * torch.randn(60, 8, generator=rng), dim=1)
    query = normalize(right + 0.75 * hub[:1], dim=1)
    coords = torch.cat([torch.randn(40, 2, generator=rng), torch.full((60, 2), 9.0)])
    spots = NearestSpots(
        torch.cat([right, hub]), coords, torch.zeros(100, dtype=torch.long), torch.arange(100)
    )
    to_hub = ((query @ spots.bank.T).argmax(1) >= 40).float().mean()
    scaled = ((query @ spots.bank.T - spots.crowding / 2).argmax(1) >= 40).float().mean()
    assert scaled < to_hub / 2


def test_one_spot_and_few_spots_are_enough():
    one = NearestSpots(
        torch.randn(1, 4), torch.zeros(1, 2), torch.zeros(1, dtype=torch.long), torch.arange(1)
    )
    assert torch.equal(one(torch.randn(1, 5, 4)), torch.zeros(1, 5, 2)) and one.crowding == 0


def test_padding_batches_and_blocks_change_nothing(tissue, monkeypatch):
    places, z, spots = tissue
    geometry = pad(centre(places[:40]), (0, 4))
    alone = spots(z[None, :40], geometry[None])
    mask = torch.arange(60)[None] < 40
    padded = spots(torch.cat([z[:40], torch.randn(20, 3)])[None], pad(geometry, (0, 0, 0, 20))[None], mask)
    torch.testing.assert_close(padded[:, :40], alone, atol=1e-5, rtol=1e-5)
    monkeypatch.setattr(nearest, "ROWS", 7)
    twice = spots(z[None, :40].expand(2, -1, -1), geometry.expand(2, -1, -1))
    torch.testing.assert_close(twice, alone.expand(2, -1, -1), atol=1e-5, rtol=1e-5)


def test_a_spot_does_not_place_itself_when_left_out(tissue):
    places, z, spots = tissue
    left_out = np.arange(300) % 10 == 0
    fewer = spots.without(left_out)
    assert len(fewer.bank) == 270 and not set(np.flatnonzero(left_out)) & set(fewer.spot.tolist())
    geometry = pad(centre(places), (0, 4))[None]
    with_itself, without = (
        (one(z[None], geometry) - geometry)[0, left_out].norm(dim=1).mean() for one in (spots, fewer)
    )
    assert with_itself < without


@pytest.mark.parametrize(("size", "best"), [(1.0, 0.5), (2.0, 0.2), (0.5, 0.8)])
def test_the_weight_is_the_least_that_is_about_as_good_as_the_best(size, best):
    rng = torch.Generator().manual_seed(1)
    truth, mine, other = torch.randn(3, 100_000, 2, generator=rng)
    spot = torch.arange(100_000)
    assert best_weight(truth + mine, truth + size * other, truth, spot=spot) == pytest.approx(best, abs=0.03)
    few = slice(200)
    careful = best_weight(truth[few] + mine[few], truth[few] + size * other[few], truth[few], spot=spot[few])
    assert 0 < careful < best  # few spots tell little


def test_views_of_a_spot_do_not_count_as_spots():
    rng = torch.Generator().manual_seed(1)
    truth, mine, other = torch.randn(3, 100, 2, generator=rng)
    once = best_weight(truth + mine, truth + other, truth, spot=torch.arange(100))
    often = (x.repeat(50, 1) for x in (truth + mine, truth + other, truth))
    assert best_weight(*often, spot=torch.arange(100).repeat(50)) == once


def test_where_slides_were_missed_they_must_agree():
    """Spots of a slide are wrong together: many of them are no proof."""
    rng = torch.Generator().manual_seed(1)
    truth, noise, other = torch.randn(3, 4000, 2, generator=rng)
    slide, spot = torch.arange(4000) % 2, torch.arange(4000)
    alike = (truth + noise, truth + other, truth)
    assert best_weight(*alike, spot=spot, slide=slide) == pytest.approx(0.5, abs=0.1)
    helped = torch.where(
        slide[:, None] == 0, truth + 0.1 * other, truth + 2 * other
    )  # in one, and not in the other
    mixed = (truth + noise, helped, truth)
    assert best_weight(*mixed, spot=spot, slide=slide) < 0.5 * best_weight(*mixed, spot=spot)


def test_the_weight_at_the_ends():
    truth, noise = torch.randn(2, 500, 2, generator=torch.Generator().manual_seed(1))
    spot = torch.arange(500)
    assert best_weight(truth, truth + noise, truth, spot=spot) == 0
    assert best_weight(truth + noise, truth, truth, spot=spot) > 0.9
    assert best_weight(truth, truth, truth, spot=spot) == 0  # nothing to choose between
