from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from spatialgears.assembly import patches as module
from spatialgears.assembly.graph import locality_graph
from spatialgears.assembly.patches import Patches, _bridges, first_distinct, overlaps, sample_patches, walk


def make(points: np.ndarray, *, seed: int = 0, size: int = 40, coverage: float = 6) -> Patches:
    graph = locality_graph(points, k=12, jaccard=0.1).adjacency
    return sample_patches(graph, size, coverage=coverage, seed=seed)


def is_connected_cover(patches: Patches, least: int) -> bool:
    shared = overlaps(patches.cells, patches.n_cells)
    parts, _ = connected_components(shared >= least)
    return bool(parts == 1 and (patches.coverage > 0).all())


@pytest.mark.parametrize("coverage", [1, 6])
def test_patches_are_a_connected_cover_of_different_cells(coverage):
    rng = np.random.default_rng(0)
    islands = [rng.normal(size=(90, 3)) + offset for offset in (0, 50, 100)] + [rng.normal(size=(7, 3)) * 1e3]
    patches = make(np.vstack(islands), coverage=coverage)
    assert patches.cells.shape[1] == 40 and (np.diff(patches.cells) > 0).all()
    assert is_connected_cover(patches, 20)  # half a patch
    assert (patches.coverage >= 2).all()  # as many as an edge needs to be supported
    assert len(np.unique(patches.seeds)) == len(patches.cells) and (patches.seeds >= 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_every_cell_is_in_as_many_patches_as_an_edge_needs(seed):
    """Cells that lack two patches must not get both in one walk."""
    points = np.random.default_rng(seed).normal(size=(1500, 8))
    patches = make(points, seed=seed, size=500, coverage=2.5)
    assert patches.coverage.min() >= 2


def test_patches_are_walks_and_nothing_else(monkeypatch):
    """Walks that return too often go on from their own cells: every patch hangs together in the graph."""
    monkeypatch.setattr(module, "_WALK_STEPS", 2)
    points = np.random.default_rng(2).normal(size=(800, 2))
    graph = locality_graph(points, k=12, jaccard=0.1).adjacency
    _, part = connected_components(graph)
    main = np.flatnonzero(part == np.bincount(part).argmax())
    graph = graph[main][:, main]
    patches = sample_patches(graph, 100, coverage=6, seed=0)
    walks = patches.cells[
        : 6 * len(main) // 100
    ]  # then those for cells in too few patches, from several starts
    parts = [connected_components(graph[cells][:, cells])[0] for cells in walks]
    assert parts == [1] * len(walks)


def test_walks_that_have_been_everywhere_go_on_elsewhere():
    """Islands of seven cells: a patch of forty holds whole islands, not single cells of many."""
    points = np.repeat(1e3 * np.arange(60)[:, None], 7, 0) + np.random.default_rng(0).normal(size=(420, 1))
    graph = locality_graph(points, k=6, jaccard=0.1).adjacency
    patches = sample_patches(graph, 40, coverage=4, seed=0)
    islands = np.array([len(np.unique(cells // 7)) for cells in patches.cells])
    assert np.median(islands) <= 8 and (patches.coverage >= 2).all()


def test_patches_keep_to_their_island():
    rng = np.random.default_rng(1)
    points = np.vstack([rng.normal(size=(120, 3)), 1000 + rng.normal(size=(120, 3))])
    share = (make(points).cells < 120).mean(1)
    assert np.isin(share, (0, 1)).mean() > 0.8


def test_bridges_join_what_shares_too_little_and_nothing_else():
    rows = np.array(
        [[0, 1, 2, 3, 4, 5], [3, 4, 5, 6, 7, 8], [8, 9, 10, 11, 12, 13], [20, 21, 22, 23, 24, 25]]
    )
    bridges = _bridges(rows, 30, least=3)
    assert [np.sort(row).tolist() for row in bridges] in (
        [[3, 4, 5, 8, 9, 10], [8, 9, 10, 20, 21, 22]],
        [[8, 9, 10, 20, 21, 22], [3, 4, 5, 8, 9, 10]],
    )
    assert len(_bridges(rows[:2], 30, least=3)) == 0 and len(_bridges(rows[:1], 30, least=3)) == 0


def test_twins_share_walks(monkeypatch):
    points = np.random.default_rng(3).normal(size=(600, 2))
    shared = {}
    for overlap in (0.0, 0.9):
        monkeypatch.setattr(module, "OVERLAP", overlap)
        patches = make(points, coverage=4)
        between = overlaps(patches.cells, 600)
        shared[overlap] = np.mean([between[i, i + 1] for i in range(0, 58, 2)])
    assert shared[0.9] >= 0.9 * 40 and shared[0.0] < 0.75 * 40


def test_walks_follow_edges_and_do_not_depend_on_company():
    graph = locality_graph(np.random.default_rng(4).normal(size=(200, 2)), k=8, jaccard=0.0).adjacency
    starts, ids = np.arange(0, 120).reshape(30, 4), np.arange(30)
    visits = walk(graph, starts, 9, seed=7, ids=ids).reshape(30, 10, 4)  # (walk, step, walker)
    assert np.array_equal(visits[:, 0], starts)
    a, b = visits[:, :-1].ravel(), visits[:, 1:].ravel()
    assert (np.asarray(graph[a, b]).ravel() == 1).all()
    some = walk(graph, starts[[17, 3]], 9, seed=7, ids=ids[[17, 3]]).reshape(2, 10, 4)
    assert np.array_equal(some, visits[[17, 3]])
    lonely = walk(sparse.csr_matrix((5, 5)), np.array([[4, 2]]), 3, seed=0, ids=np.arange(1))
    assert lonely.tolist() == [[4, 2] * 4]


def test_walks_visit_all_neighbours_evenly():
    star = sparse.csr_matrix(([1.0] * 8, ([0] * 4 + [1, 2, 3, 4], [1, 2, 3, 4] + [0] * 4)), (5, 5))
    first = walk(star, np.zeros((1, 40_000), np.int64), 1, seed=0, ids=np.arange(1))[0, 40_000:]
    assert np.abs(np.bincount(first)[1:] / 10_000 - 1).max() < 0.05


def test_first_distinct_is_the_slow_transcription():
    rows = np.random.default_rng(5).integers(-1, 9, size=(50, 20))
    for row, found in zip(rows, first_distinct(rows, 6), strict=True):
        expected = list(dict.fromkeys(int(x) for x in row if x >= 0))[:6]
        assert found.tolist() == expected + [-1] * (6 - len(expected))


def test_overlaps_count_shared_cells():
    rows = np.array([[0, 1, 2], [2, 3, 4], [0, 2, 1]])
    assert overlaps(rows, 5).toarray().tolist() == [[0, 1, 3], [1, 0, 1], [3, 1, 0]]
    assert overlaps(rows[:1], 5).toarray().tolist() == [[0]]


def test_seed_decides():
    points = np.random.default_rng(6).normal(size=(300, 3))
    first, again, other = make(points), make(points), make(points, seed=1)
    assert np.array_equal(first.cells, again.cells) and np.array_equal(first.seeds, again.seeds)
    assert not np.array_equal(first.cells[: len(other.cells)], other.cells[: len(first.cells)])
