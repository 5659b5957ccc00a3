from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from spatialgears.assembly import graph
from spatialgears.assembly.graph import locality_graph, nearest, without_self


def slow_neighbours(points: np.ndarray, k: int) -> list[set[int]]:
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1)
    np.fill_diagonal(distance, np.inf)
    return [set(np.argsort(row)[:k]) for row in distance]


def test_nearest_is_exact_and_leaves_the_point_out():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(60, 5))
    index, distance = nearest(points, 7)
    assert [set(row) for row in index] == slow_neighbours(points, 7)
    assert (np.diff(distance) >= 0).all()
    assert np.allclose(distance, np.linalg.norm(points[index] - points[:, None], axis=-1), atol=1e-5)
    assert nearest(points[:3], 7)[0].shape == (3, 2)


def test_duplicates_never_list_a_point_as_its_own_neighbour():
    index, distance = nearest(np.zeros((30, 4)), 5)
    assert index.shape == (30, 5) and not (index == np.arange(30)[:, None]).any() and (distance == 0).all()
    kept, _ = without_self(np.array([[1, 2], [1, 2], [0, 1]]), np.zeros((3, 2)))
    assert kept.tolist() == [[1], [2], [0]]


def test_locality_graph_is_the_slow_transcription():
    rng = np.random.default_rng(1)
    points, k, threshold = rng.normal(size=(80, 3)), 10, 0.3
    sets = slow_neighbours(points, k)
    expected = np.zeros((80, 80))
    for i in range(80):
        for j in range(80):
            overlap = len(sets[i] & sets[j]) / len(sets[i] | sets[j])
            expected[i, j] = j in sets[i] and i in sets[j] and overlap > threshold
    alone = np.flatnonzero(expected.sum(1) == 0)
    for i in alone:
        j = nearest(points, 1)[0][i, 0]
        expected[i, j] = expected[j, i] = 1
    found = locality_graph(points, k=k, jaccard=threshold)
    assert np.array_equal(found.adjacency.toarray(), expected)
    assert found.isolated == len(alone) and 0 < len(alone) < 80


def test_blocks_of_rows_do_not_change_the_graph(monkeypatch):
    rng = np.random.default_rng(2)
    points = rng.normal(size=(100, 3))
    whole = locality_graph(points, k=8, jaccard=0.1).adjacency
    monkeypatch.setattr(graph, "_ROWS", 7)
    assert (locality_graph(points, k=8, jaccard=0.1).adjacency != whole).nnz == 0


def test_parts_stay_apart_and_every_cell_has_an_edge():
    rng = np.random.default_rng(3)
    points = np.vstack([rng.normal(size=(50, 4)), 100 + rng.normal(size=(50, 4)), [[1000.0] * 4]])
    found = locality_graph(points, k=10, jaccard=0.2)
    assert connected_components(found.adjacency)[0] >= 2
    assert found.isolated >= 1 and (found.adjacency.sum(1) > 0).all()


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_few_points(n):
    assert locality_graph(np.random.default_rng(0).normal(size=(n, 3))).adjacency.shape == (n, n)


@pytest.mark.slow
def test_approximate_search_finds_nearly_all_and_repeats(monkeypatch):
    rng = np.random.default_rng(4)
    points = rng.normal(size=(3000, 8)).astype(np.float32)
    exact, _ = nearest(points, 10)
    monkeypatch.setattr(graph, "EXACT_POINTS", 100)
    found, distance = nearest(points, 10, seed=5)
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(exact, found, strict=True)])
    assert recall > 0.95 and found.shape == (3000, 10) and (distance > 0).all()
    assert np.array_equal(found, nearest(points, 10, seed=5)[0])
