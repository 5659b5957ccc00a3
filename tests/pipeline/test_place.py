from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.spatial import KDTree

from spatialgears.geometry.features import Features
from spatialgears.pipeline.place import Network, place, slides_among_cells, unfilled


@pytest.fixture
def counts(small_model, small_tissue):
    return small_tissue.cells[:, list(small_model.panel_.genes)].X.tocsr()


@pytest.fixture
def placed_with(small_model, counts):
    def placed_with(**assembly):
        config = small_model.config.with_values({"assembly": assembly})
        return place(small_model.fitted_, counts, config, missing=np.zeros(counts.shape[1], bool))

    return placed_with


def test_order_of_cells_does_not_matter_to_the_best_guess(small_model, counts, placed_with):
    config = small_model.config.with_values({"assembly": {"samples": 2, "spacing": 0.0}})
    order = np.random.default_rng(0).permutation(counts.shape[0])
    missing = np.zeros(counts.shape[1], bool)
    moved = place(small_model.fitted_, counts[order], config, missing=missing)
    np.testing.assert_allclose(moved.coords, placed_with(spacing=0.0).coords[order], atol=1e-4)


def test_spacing_fills_the_tissue_within_the_radius(placed_with):
    plain, spaced = placed_with(spacing=0.0, samples=0), placed_with(spacing=0.5, samples=0)
    assert not np.array_equal(plain.coords, spaced.coords)
    near = [KDTree(one.coords).query(one.coords, k=2)[0][:, 1] for one in (plain, spaced)]
    assert np.quantile(near[1], 0.1) > 1.2 * np.quantile(near[0], 0.1)  # cells huddle less
    few = placed_with(spacing=0.5, spacing_cells=1000, samples=0)
    np.testing.assert_array_equal(few.coords, plain.coords)
    assert "unfilled" in plain.diagnostics and "unfilled" not in few.diagnostics


def test_samples_are_drawn_only_by_a_refiner(placed_with):
    assert placed_with(samples=3).samples.shape == (3, 150, 2)
    assert placed_with(samples=3, steps=0).samples.shape == (0, 150, 2)
    assert placed_with(samples=0).samples.shape == (0, 150, 2)
    plain, refined = placed_with(samples=0, steps=0), placed_with(samples=0, steps=2)
    assert not np.array_equal(plain.coords, refined.coords)  # without samples the refiner's is the best guess


def test_patches_agree_with_one_pass(placed_with):
    one, patches = placed_with(steps=0), placed_with(steps=0, mode="patches", patch_size=64, coverage=8)
    assert one.diagnostics["mode"] == "one-shot" and patches.diagnostics["mode"] == "patches"
    distances = [np.linalg.norm(p.coords[:75] - p.coords[75:], axis=1) for p in (one, patches)]
    assert np.corrcoef(distances)[0, 1] > 0.8


def test_slides_are_laid_on_cells_that_are_their_spots(small_model):
    """Anchors given as cells: the slide must come to lie where they were put."""
    fitted = small_model.fitted_
    slide = fitted.slides[0]
    spots = slide.coords[slide.anchors]
    turn = np.array([[0.0, -1.0], [1.0, 0.0]])
    laid = slides_among_cells(fitted, slide.features, spots @ turn + 7, seed=0)
    assert len(laid) == 2 and laid[0].shape == slide.coords.shape
    distances = np.linalg.norm(laid[0] - (slide.coords @ turn + 7), axis=1)
    assert np.median(distances) < 0.7  # a rigid motion, found through a barely trained network
    shape = [np.linalg.norm(x[:-1] - x[1:], axis=1) for x in (laid[0], slide.coords)]
    np.testing.assert_allclose(*shape, rtol=1e-6)


def test_unfilled_is_the_share_without_cells():
    grid = np.stack(np.meshgrid(np.arange(10.0), np.arange(10.0)), -1).reshape(-1, 2)
    assert unfilled(grid, [grid], [1]) == 0
    assert unfilled(grid[grid[:, 0] < 4], [grid], [1]) == pytest.approx(0.2, abs=0.15)
    assert unfilled(np.zeros((100, 2)), [grid], [1]) > 0.9
    assert unfilled(grid[::25], [grid], [1]) < 0.3  # few cells reach further


def test_the_network_hears_of_padding_only_where_there_is_some(small_model):
    heard = []

    class Ensemble:
        def sample(self, x, mask, **options):
            heard.append((mask, options["steps"]))
            return x.seen

    x, seeds = Features(torch.zeros(2, 3, 4)), torch.zeros(2, dtype=torch.long)
    network = Network(Ensemble(), small_model.config.assembly, 5)
    whole = torch.ones(2, 3, dtype=torch.bool)
    padded = whole.clone()
    padded[1, 2] = False
    network(x, whole, seeds)
    network(x, padded, seeds)
    assert heard[0] == (None, 5) and torch.equal(heard[1][0], padded)


def test_copies_of_a_cell_have_one_place(small_model, counts):
    """And even filling, which gives every cell room, invents no differences between them."""
    many = sparse.vstack([counts[:60], *[counts[60]] * 80, *[counts[61]] * 80]).tocsr()
    missing = np.zeros(counts.shape[1], dtype=bool)
    config = small_model.config.with_values({"assembly": {"spacing": 1.0, "spacing_cells": 100}})
    placed = place(small_model.fitted_, many, config, missing=missing)
    assert placed.diagnostics["spacing"] > 0
    for copies in (slice(60, 140), slice(140, 220)):
        for values in (placed.coords, placed.radius50, placed.radius90, placed.outside):
            assert (values[copies] == values[copies][0]).all()
    assert not np.array_equal(placed.coords[60], placed.coords[140])
    assert np.ptp(placed.coords[:60], axis=0).min() > 0.5
