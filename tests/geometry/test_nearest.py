"""Nearest spots in reach of the generators: known places, unknown poses, and the reach that fits best."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize, pad

from spatialgears.geometry import nearest
from spatialgears.geometry.nearest import NearestSpots, nearest_places
from spatialgears.pipeline.evaluation import middle
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
    return places, z, NearestSpots(z, own, slide, torch.arange(300), reach=10.0)


def test_points_lie_where_the_spots_like_them_are_whatever_the_poses(tissue):
    places, z, spots = tissue
    query, points = z[::3], centre(places[::3])
    geometry = pad(points, (0, 4)) @ torch.linalg.qr(torch.randn(6, 6)).Q
    found = spots(query[None], geometry[None])[0]
    assert (found - geometry).norm(dim=1).median() < 0.2 < geometry.norm(dim=1).median()


@pytest.mark.parametrize("reach", [0.3, 1.0])
def test_of_spots_as_alike_those_near_the_geometry_are_meant(reach):
    """Profiles of two corners of four are the same; a blurred geometry knows which corner is meant."""
    rng = torch.Generator().manual_seed(0)
    corners = torch.tensor([[-5.0, -5.0], [5.0, 5.0], [-5.0, 5.0], [5.0, -5.0]]).repeat_interleave(100, 0)
    within = torch.randn(400, 2, generator=rng)
    places, kind = centre(corners + within), torch.eye(3)[torch.tensor([0, 0, 1, 2]).repeat_interleave(100)]
    z = torch.cat([within - (kind == 0).float()[:, :2], 4 * kind], 1)
    z[100:200] = z[:100]
    places[100:200] = places[:100] - corners[:100] + corners[100:200]
    blurred = pad(centre(places + 0.5 * torch.randn(400, 2, generator=rng)), (0, 4))[None]
    spots = NearestSpots(z, places, torch.zeros(400, dtype=torch.long), torch.arange(400))
    off = {}
    for one in (0.0, reach, 1e3):
        spots.reach.fill_(one)
        off[one] = float((spots(z[None], blurred)[0, :200, :2] - places[:200]).norm(dim=1).median())
    assert off[reach] < off[0.0] / 1.5 < off[1e3] / 3  # alone, they lie between the corners


def test_points_move_a_share_of_the_way(tissue):
    places, z, spots = tissue
    geometry = pad(centre(places + torch.randn(300, 2)), (0, 4))[None]
    whole = spots(z[None], geometry)
    spots.share.fill_(0.25)
    torch.testing.assert_close(spots(z[None], geometry), 0.75 * geometry + 0.25 * whole)
    assert spots.without(np.zeros(300, bool)).share == 0.25


def test_the_reach_has_two_ends(tissue):
    places, z, spots = tissue
    geometry = pad(centre(places + 0.3), (0, 4))[None]
    found = {}
    for reach in (0.0, 0.1, 1e3, 1e6):
        spots.reach.fill_(reach)
        found[reach] = spots(z[None], geometry)
    assert torch.equal(found[0.0], geometry)
    torch.testing.assert_close(found[1e3], found[1e6])  # likeness alone
    assert (found[0.1] - found[1e6]).abs().max() > 0.05


def test_many_points_are_posed_by_some_of_them(tissue, monkeypatch):
    places, z, spots = tissue
    geometry = pad(centre(places), (0, 4))[None]
    whole = spots(z[None], geometry)
    monkeypatch.setattr(nearest, "POSED", 100)
    assert (spots(z[None], geometry) - whole).norm(dim=-1).max() < 0.1


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

    def at_hub() -> float:
        return float(((spots(query[None])[0] - coords[40]).norm(dim=1) < 3).float().mean())

    found = at_hub()
    spots.crowding.zero_()
    assert found < at_hub() / 2


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
    fewer.reach.fill_(7.0)
    assert spots.reach == 10
    fewer.reach.fill_(10.0)
    assert len(fewer.bank) == 270 and not set(np.flatnonzero(left_out)) & set(fewer.spot.tolist())
    geometry = pad(centre(places), (0, 4))[None]
    with_itself, without = (
        (one(z[None], geometry) - geometry)[0, left_out].norm(dim=1).mean() for one in (spots, fewer)
    )
    assert with_itself < without


def errors(n: int, *sizes: float) -> torch.Tensor:
    """Squared errors (ways, n) of that mean."""
    noise = torch.randn(len(sizes), n, generator=torch.Generator().manual_seed(1)).square()
    return noise * torch.tensor(sizes)[:, None]


def test_the_middle_of_those_that_are_about_as_good_as_the_best():
    many = errors(100_000, 1.2, 1.1, 1.0, 0.9, 1.5)
    assert middle(many, torch.arange(100_000)) == 3
    assert middle(errors(100_000, 1.0, 1.1, 1.2), torch.arange(100_000)) == 0
    assert middle(torch.ones(5, 50), torch.arange(50)) == 2  # nothing to choose between
    assert middle(torch.tensor([[3.0], [1.0], [2.0]]), torch.zeros(1)) == 1  # one unit
    alike = torch.ones(6, 50)
    alike[0] = 2.0
    assert middle(alike, torch.arange(50)) == 3


def test_views_of_a_spot_do_not_count_as_spots():
    once = errors(60, 1.3, 1.2, 1.1, 1.0)
    assert middle(once.repeat(1, 500), torch.arange(60).repeat(500)) == middle(once, torch.arange(60))
    assert middle(once, torch.arange(60)) != once.mean(1).argmin()  # so many could not tell
    assert middle(once.repeat(1, 500), torch.arange(30_000)) == once.mean(1).argmin()


def test_where_slides_were_missed_they_must_agree():
    """Spots of a slide are wrong together: many of them are no proof."""
    slide, spot = torch.arange(4000) % 2, torch.arange(4000)
    helped = torch.where(slide == 0, errors(4000, 0.1), errors(4000, 1.4))  # in one, and not in the other
    mixed = torch.cat([errors(4000, 1.0), helped])
    assert middle(mixed, spot) == 1 and middle(mixed, slide) == 0
    alike = errors(4000, 1.0, 0.5)
    assert middle(alike, spot) == middle(alike, slide) == 1
