from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial import KDTree
from scipy.stats import wasserstein_distance

from spatialgears.assembly.spacing import fill_footprint, footprint


@pytest.fixture
def grid():
    return np.stack(np.meshgrid(np.arange(12.0), np.arange(8.0)), axis=-1).reshape(-1, 2)


@pytest.fixture
def crowded(grid):
    """Cells of an even tissue, drawn towards its middle."""
    rng = np.random.default_rng(0)
    even = rng.uniform([-0.5, -0.5], [11.5, 7.5], size=(600, 2))
    middle = grid.mean(0)
    return even, middle + 0.4 * (even - middle) * np.linalg.norm(even - middle, axis=1, keepdims=True) ** 0.3


def apart(one, two):
    """Mean transport distance along several directions."""
    angles = np.linspace(0, np.pi, 8, endpoint=False)
    axes = np.stack([np.cos(angles), np.sin(angles)])
    return np.mean([wasserstein_distance(one @ axis, two @ axis) for axis in axes.T])


def test_the_footprint_covers_the_tissue_and_nothing_else(grid):
    points = footprint([grid], 5000, pitches=[1], seed=0)
    assert points.shape == (5000, 2)
    assert (points >= grid.min(0) - 0.5).all() and (points <= grid.max(0) + 0.5).all()
    counts = np.bincount(KDTree(grid).query(points)[1], minlength=len(grid))
    assert counts.min() > 20 and counts.max() < 110  # about 52 for each spot
    np.testing.assert_array_equal(points, footprint([grid], 5000, pitches=[1], seed=0))
    assert not np.array_equal(points, footprint([grid], 5000, pitches=[1], seed=1))


def test_slides_have_equal_shares_of_the_footprint(grid):
    points = footprint([grid, grid[:20] + 100], 4000, pitches=[1, 1], seed=0)
    assert (points[:, 0] > 50).mean() == pytest.approx(0.5, abs=0.05)


def test_strength_zero_changes_nothing(grid, crowded):
    _, coords = crowded
    moved, gone = fill_footprint(coords, footprint([grid], 600, pitches=[1], seed=0), strength=0.0, seed=0)
    np.testing.assert_array_equal(moved, coords)
    assert gone == 0


@pytest.mark.parametrize("n_target", [600, 2000])
def test_cells_move_towards_the_footprint_and_keep_their_order(grid, crowded, n_target):
    even, coords = crowded
    before = coords.copy()
    target = footprint([grid], n_target, pitches=[1], seed=0)
    half, full = (fill_footprint(coords, target, strength=s, seed=0)[0] for s in (0.5, 1.0))
    np.testing.assert_array_equal(coords, before)
    assert apart(full, target) < 0.05 * apart(coords, target)
    assert apart(full, target) < apart(half, target) < apart(coords, target)
    np.testing.assert_allclose(half, (coords + full) / 2)
    assert np.linalg.norm(full - even, axis=1).mean() < 0.4 * np.linalg.norm(coords - even, axis=1).mean()


def test_no_cell_moves_further_than_its_limit(grid, crowded):
    _, coords = crowded
    limit = np.linspace(0, 0.5, len(coords))
    moved, gone = fill_footprint(
        coords, footprint([grid], 600, pitches=[1], seed=0), strength=1.0, limit=limit, seed=0
    )
    assert gone == 1
    length = np.linalg.norm(moved - coords, axis=1)
    assert (length <= limit + 1e-9).all() and length.max() > 0.3
    np.testing.assert_array_equal(moved[0], coords[0])


def test_a_layout_that_fills_the_tissue_stays(grid):
    target = footprint([grid], 600, pitches=[1], seed=0)
    moved, _ = fill_footprint(target, target, strength=1.0, seed=0)
    np.testing.assert_allclose(moved, target, atol=1e-9)


def test_one_cell_and_equal_cells_are_finite(grid):
    for coords in (np.zeros((1, 2)), np.zeros((5, 2))):
        assert np.isfinite(fill_footprint(coords, grid, strength=1.0, seed=0)[0]).all()


def test_less_of_a_long_way_is_gone(grid, crowded):
    _, coords = crowded
    target = footprint([grid], 600, pitches=[1], seed=0)
    whole, gone = fill_footprint(coords, target, strength=0.8, reach=1e3, seed=0)
    assert gone == 0.8
    moved, gone = fill_footprint(coords, target, strength=0.8, reach=0.5, seed=0)
    assert 0 < gone < 0.8
    assert np.sqrt(np.square(moved - coords).sum(1).mean()) == pytest.approx(0.5)
    np.testing.assert_allclose((moved - coords) / gone, (whole - coords) / 0.8)
    limit = np.full(len(coords), 0.1)
    limited, same = fill_footprint(coords, target, strength=0.8, reach=0.5, limit=limit, seed=0)
    assert same == gone and np.linalg.norm(limited - coords, axis=1).max() == pytest.approx(0.1)


def test_a_share_of_the_way_costs_its_square(grid):
    """Places seen with normal noise, and the mean of the places that each may be: a step adds its own square."""
    rng = np.random.default_rng(0)
    truth, noise = rng.uniform([-0.5, -0.5], [11.5, 7.5], size=(4000, 2)), 1.5
    seen, target = (
        truth + noise * rng.normal(size=truth.shape),
        footprint([grid], 20_000, pitches=[1], seed=0),
    )
    weights = np.exp(-np.square(seen[:, None] - target[:2000]).sum(-1) / (2 * noise**2))  # (4000, 2000)
    guess = weights @ target[:2000] / weights.sum(1, keepdims=True)
    layouts = [fill_footprint(guess, target, strength=share, seed=0)[0] for share in (0.0, 0.5, 1.0)]
    still, half, full = (np.square(layout - truth).sum(1).mean() for layout in layouts)
    assert (full - still) / (half - still) == pytest.approx(4, rel=0.4)
    assert apart(layouts[1], target) == pytest.approx(apart(guess, target) / 2, rel=0.2)


def test_a_group_moves_as_one():
    rng = np.random.default_rng(0)
    coords = np.concatenate([rng.normal(size=(100, 2)) * 0.3, np.zeros((100, 2))])
    group = np.append(np.arange(100), np.full(100, 100))
    target = rng.uniform(-1, 1, (2000, 2))
    apart, _ = fill_footprint(coords, target, strength=0.5, seed=0)
    moved, _ = fill_footprint(coords, target, strength=0.5, group=group, seed=0)
    assert np.ptp(apart[100:], axis=0).min() > 0.1 and np.ptp(moved[100:], axis=0).max() == 0
    np.testing.assert_allclose(moved[:100], apart[:100], atol=0.2)
