from __future__ import annotations

import numpy as np
import pytest

from spatialgears.bench import protocols, references
from spatialgears.bench.harness import placement_error


@pytest.fixture(scope="module")
def task():
    return next(protocols.simulated(seed=0, n_cells=250, n_genes=80, n_sections=2, spots=150))


@pytest.fixture(scope="module")
def random_score(task):
    return task.score(references.random_places(task.slides, task.cells, seed=0))["spearman"]


def test_knn_beats_chance_and_spatial_weights_help(task, random_score):
    plain = task.score(references.knn(task.slides, task.cells, seed=0, weights="none"))["spearman"]
    weighted = task.score(references.knn(task.slides, task.cells, seed=0))["spearman"]
    assert abs(random_score) < 0.1 < 0.3 < plain < weighted


def test_networks_learn(task, monkeypatch):
    original = references._regress
    monkeypatch.setattr(references, "_regress", lambda *a, **k: original(*a, **k | {"steps": 150}))
    placed = references.thinned_mlp(task.slides, task.cells, seed=0)
    assert task.score(placed)["spearman"] > 0.4
    np.testing.assert_array_equal(placed, references.thinned_mlp(task.slides, task.cells, seed=0))
    ceiling = references.supervised(task.slides, task.cells, seed=0, truth=task.truth, folds=2)
    assert task.score(ceiling)["spearman"] > 0.4


def test_a_cell_does_not_see_its_own_place(task):
    """With places that have nothing to do with expression, the ceiling must not do better than chance."""
    shuffled = np.random.default_rng(0).permutation(task.truth)

    def nearest(draw, places, features, *, seed, steps):
        known = draw(np.arange(len(places)), None)
        distance = ((features[:, None] - known[None]) ** 2).sum(-1)
        return places[distance.argmin(1)].numpy()

    patch = pytest.MonkeyPatch()
    patch.setattr(references, "_regress", nearest)
    placed = references.supervised(task.slides, task.cells, seed=0, truth=shuffled)
    patch.undo()
    assert np.median(placement_error(placed, shuffled)) > 0.5


def test_slides_are_turned_onto_the_first(task):
    slide = task.slides[0]
    turned = slide.copy()
    angle = 2.0
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    turned.obsm["spatial"] = 5 * slide.obsm["spatial"] @ turn * [1, -1] + 100
    first, second = references.poses([slide, turned], task.cells)
    np.testing.assert_allclose(first, second, atol=0.1)
