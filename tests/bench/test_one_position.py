"""Cells at one spot each: the most similar one near the generators' position, or balanced over the spots."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spatialgears.bench.one_position import OnePosition, at_one_position, balance
from spatialgears.geometry.nearest import NearestSpots


@pytest.fixture
def spots():
    """Two slides of 30 spots that look alike, the second turned by a right angle."""
    rng = torch.Generator().manual_seed(0)
    bank, coords = torch.randn(30, 32, generator=rng), torch.randn(30, 2, generator=rng)
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    slide = torch.arange(2).repeat_interleave(30)
    return NearestSpots(torch.cat([bank, bank]), torch.cat([coords, coords @ turn]), slide, torch.arange(60))


@pytest.mark.parametrize("balanced", [False, True])
def test_points_that_equal_a_spot_lie_on_it_in_the_frame_of_the_geometry(spots, balanced):
    z, truth = spots.bank[:30], spots.coords[:30] + torch.tensor([3.0, -1.0])
    found = OnePosition.of(spots, balanced=balanced)(z[None], truth[None])[0]
    np.testing.assert_allclose(found, truth, atol=0.05)


def test_balanced_points_use_all_spots_alike():
    weights = torch.randn(400, 20, generator=torch.Generator().manual_seed(0)) + torch.linspace(0, 5, 20)
    crowded = weights.softmax(1).sum(0)
    shares = (weights + balance(weights)).softmax(1).sum(0)
    assert crowded.max() > 4 * 20
    np.testing.assert_allclose(shares, 20.0, rtol=0.02)


def test_the_model_stays_as_it_was_and_the_variant_places_otherwise(small_model):
    state = small_model.fitted_
    one = at_one_position(state, balanced=True)
    assert isinstance(one.network.nearest, OnePosition)
    assert not isinstance(state.network.nearest, OnePosition)
