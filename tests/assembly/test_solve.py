from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.manifold import Isomap

from spatialgears.assembly import solve as module
from spatialgears.assembly.solve import huber_solve, landmark_isomap, triangulate
from spatialgears.assembly.stitch import DistanceGraph

STEPS = 300


def graph_of(places: np.ndarray, keep: np.ndarray, *, distance: np.ndarray | None = None) -> DistanceGraph:
    first, second = np.nonzero(np.triu(keep, 1))
    true = np.linalg.norm(places[first] - places[second], axis=1)
    n = len(first)
    return DistanceGraph(
        first, second, true if distance is None else distance, np.ones(n), np.full(n, 3), len(places), 0.0,
        np.ones(1), 0, 0,
    )  # fmt: skip


@pytest.fixture
def grid() -> np.ndarray:
    x, y = np.meshgrid(np.arange(12.0), np.arange(9.0))
    return np.column_stack([x.ravel(), y.ravel()])


def test_isomap_is_exact_on_a_planar_grid(grid, off):
    everything = np.ones((108, 108), bool)
    for landmarks in (5, 30, 108):
        start = landmark_isomap(graph_of(grid, everything), landmarks=landmarks, seed=1)
        assert off(start, grid).max() < 1e-8


def test_isomap_with_all_landmarks_is_scikit_learns(tissue, off):
    places = tissue(150).astype(np.float64)
    distance = cdist(places, places)
    start = landmark_isomap(graph_of(places, distance <= 1.2), landmarks=150, seed=0)
    expected = Isomap(n_neighbors=None, radius=1.2, n_components=2, eigen_solver="dense").fit_transform(
        places
    )
    assert off(start, expected).max() < 1e-6


def test_triangulation_places_cells_off_the_landmarks(tissue, off):
    places = tissue(60).astype(np.float64)
    chosen = np.array([3, 10, 40, 55])
    assert off(triangulate(cdist(places[chosen], places) ** 2, chosen), places).max() < 1e-8
    assert triangulate(np.zeros((4, 60)), chosen).tolist() == np.zeros((60, 2)).tolist()
    assert triangulate(np.zeros((1, 1)), np.array([0])).shape == (1, 2)


def test_noise_free_distances_are_solved_exactly_without_the_anchor(tissue, off, monkeypatch):
    monkeypatch.setattr(module, "ANCHOR", 0.0)
    places = tissue(200).astype(np.float64)
    rng = np.random.default_rng(0)
    keep = (cdist(places, places) < 0.4) | (rng.random((200, 200)) < 0.1)
    layout = huber_solve(graph_of(places, keep), places + 0.1 * rng.normal(size=places.shape), steps=STEPS)
    assert off(layout.coords, places).max() < 1e-3
    assert layout.stress[-1] < 1e-3 < layout.stress[0] and layout.residual_max < 1e-3
    assert layout.residual_median <= layout.residual_max


def test_scale_does_not_matter(tissue):
    places = tissue(100).astype(np.float64)
    rng = np.random.default_rng(1)
    keep = rng.random((100, 100)) < 0.2
    noisy = np.linalg.norm(np.subtract(*(places[i] for i in np.nonzero(np.triu(keep, 1)))), axis=1)
    noisy *= np.exp(0.2 * rng.normal(size=len(noisy)))
    one = huber_solve(graph_of(places, keep, distance=noisy), places, steps=STEPS).coords
    many = huber_solve(graph_of(places, keep, distance=1e4 * noisy), 1e4 * places, steps=STEPS).coords
    assert np.allclose(many, 1e4 * one, atol=1e-4 * 1e4)


def test_huber_forgives_outliers(tissue, off, monkeypatch):
    places = tissue(150).astype(np.float64)
    rng = np.random.default_rng(2)
    keep = rng.random((150, 150)) < 0.3
    distance = graph_of(places, keep).distance.copy()
    wrong = rng.random(len(distance)) < 0.1
    distance[wrong] *= 3
    graph = graph_of(places, keep, distance=distance)
    start = places + 0.05 * rng.normal(size=places.shape)
    robust = off(huber_solve(graph, start, steps=STEPS).coords, places).mean()
    monkeypatch.setattr(module, "DELTA", 1e6)
    square = off(huber_solve(graph, start, steps=STEPS).coords, places).mean()
    assert robust < 0.03 and square > 5 * robust


def test_the_anchor_holds_the_start(tissue, monkeypatch):
    places = tissue(80).astype(np.float64)
    graph = graph_of(1.4 * places, np.ones((80, 80), bool))
    stress = {}
    for anchor in (0.0, 0.1, 10.0):
        monkeypatch.setattr(module, "ANCHOR", anchor)
        stress[anchor] = huber_solve(graph, places, steps=600).stress[-1]
    assert stress[0.0] < 1e-3 < stress[0.1] < 0.1 < stress[10.0]


def test_progress_shows_the_stress_falling(tissue):
    seen: list[float] = []
    places = tissue(60).astype(np.float64)
    start = places + 0.2 * np.random.default_rng(0).normal(size=places.shape)
    graph = graph_of(places, np.ones((60, 60), bool))
    layout = huber_solve(
        graph, start, steps=STEPS, progress=lambda *args: seen.append(args[3].get("stress", -1))
    )
    assert len(seen) >= 20 and seen[-2] < seen[0] and layout.stress[0] == seen[0]


def test_parts_without_a_path_and_empty_graphs_are_finite():
    places = np.random.default_rng(3).normal(size=(40, 2))
    keep = np.zeros((40, 40), bool)
    keep[:20, :20] = keep[20:39, 20:39] = True  # two parts and a cell alone
    graph = graph_of(places, keep)
    for landmarks in (3, 40):
        start = landmark_isomap(graph, landmarks=landmarks, seed=0)
        layout = huber_solve(graph, start, steps=STEPS)
        assert np.isfinite(layout.coords).all() and layout.stress[-1] < layout.stress[0]
    nothing = graph_of(places, np.zeros((40, 40), bool))
    assert np.isfinite(landmark_isomap(nothing, landmarks=8, seed=0)).all()
    assert np.array_equal(huber_solve(nothing, places, steps=STEPS).coords, places)
    together = huber_solve(graph, np.zeros((40, 2)), steps=STEPS)
    assert (together.coords == 0).all()
