from __future__ import annotations

import numpy as np
import pytest
import torch

from spatialgears.assembly import measure as module
from spatialgears.assembly.graph import locality_graph
from spatialgears.assembly.measure import FAR, LongEdges, geometries, measure
from spatialgears.assembly.patches import Patches, sample_patches
from spatialgears.assembly.stitch import stitch
from spatialgears.errors import GearsError
from spatialgears.geometry.features import Features


@pytest.fixture
def case(tissue, true_places):
    places = tissue(200)
    graph = locality_graph(places, k=10, jaccard=0.1).adjacency
    patches = sample_patches(graph, 40, coverage=6, seed=0)
    return places, patches, true_places()


def run(places: np.ndarray, patches: Patches, geometry: object) -> np.ndarray:
    return geometries(Features(torch.from_numpy(places)), geometry, patches.cells, seeds=patches.seeds)


def test_distances_are_those_of_the_geometry(case):
    places, patches, _ = case
    found = measure(run(*case), patches, seed=1)
    i, j = np.divmod(found.pair, 200)
    assert (i < j).all() and (np.diff(found.pair * len(patches.cells) + found.patch) > 0).all()
    assert np.allclose(found.distance, np.linalg.norm(places[i] - places[j], axis=1), atol=1e-5)
    rows = zip(i[:200], j[:200], found.patch[:200], strict=True)
    assert all(np.isin([a, b], patches.cells[p]).all() for a, b, p in rows)


def test_every_cell_is_joined_to_its_nearest_in_any_patch(case, monkeypatch):
    places, patches, _ = case
    monkeypatch.setattr(module, "NEAR", 3)
    monkeypatch.setattr(module, "FAR", 0)
    found = measure(run(*case), patches, seed=1)
    expected = set()
    for cells in patches.cells:
        distance = np.linalg.norm(places[cells][:, None] - places[cells][None], axis=-1)
        for a, row in enumerate(distance):
            for b in np.argsort(row)[1:4]:
                i, j = sorted((cells[a], cells[b]))
                expected.add(i * 200 + j)
    assert set(found.pair.tolist()) == expected


def test_edges_are_measured_by_every_patch_that_holds_both(case):
    _, patches, _ = case
    found = measure(run(*case), patches, seed=1)
    pairs, support = np.unique(found.pair, return_counts=True)
    i, j = np.divmod(pairs, 200)
    holds = np.zeros((len(patches.cells), 200), bool)
    np.put_along_axis(holds, patches.cells, True, axis=1)
    assert np.array_equal(support, (holds[:, i] & holds[:, j]).sum(0))


def test_patches_that_disagree_do_not_make_distances_short():
    """Each patch has its own noise; a pair that one of them puts close together is far apart in the others."""
    rng = np.random.default_rng(0)
    places = rng.uniform(-1, 1, size=(300, 2))
    patches = Patches(np.tile(np.arange(300), (12, 1)), np.arange(12), 300, 0)
    noisy = (places + rng.normal(0, 0.1, size=(12, 300, 2))).astype(np.float32)
    graph = stitch(measure(noisy, patches, seed=0))
    true = np.linalg.norm(places[graph.first] - places[graph.second], axis=1)
    near = true < 0.5
    assert abs(np.median(graph.distance[near] / true[near]) - 1) < 0.15


def test_long_edges_are_so_many(case):
    rule = LongEdges.drawn(case[1], seed=1)
    assert abs(rule(*np.triu_indices(200, 1)).mean() - FAR / 40) < 0.02


def test_in_a_patch_smaller_than_that_all_pairs_are_measured(case):
    _, patches, _ = case
    small = Patches(patches.cells[:, :10], patches.seeds, 200, 0)
    assert LongEdges.drawn(small, seed=0)(*np.triu_indices(200, 1)).all()


def test_neither_batches_nor_order_nor_chunks_change_a_bit(case, monkeypatch):
    places, patches, geometry = case
    whole = run(*case)
    for batch in (1, 5, 1000):
        monkeypatch.setattr(module, "BATCH", batch)
        assert np.array_equal(whole, run(*case))
    order = np.random.default_rng(0).permutation(len(patches.cells))
    shards = np.array_split(order, 3)  # as three processes would share them
    parts = np.concatenate(
        [
            geometries(Features(torch.from_numpy(places)), geometry, patches.cells[s], seeds=patches.seeds[s])
            for s in shards
        ]
    )
    assert np.array_equal(parts[np.argsort(order)], whole)
    first = measure(whole, patches, seed=1)
    monkeypatch.setattr(module, "_PAIRS", 1)
    second = measure(whole, patches, seed=1)
    assert np.array_equal(first.pair, second.pair) and np.array_equal(first.distance, second.distance)


def test_a_geometry_that_is_not_finite_is_refused(case):
    places, patches, _ = case
    with pytest.raises(GearsError, match="not finite"):
        run(places, patches, lambda x, mask, seeds: x.seen * torch.nan)
