from __future__ import annotations

import numpy as np
import pytest
import torch

from spatialgears.assembly import measure as module
from spatialgears.assembly.graph import locality_graph
from spatialgears.assembly.measure import LongEdges, geometries, measure, planes
from spatialgears.assembly.patches import Patches, sample_patches
from spatialgears.config import AssemblyConfig
from spatialgears.errors import GearsError
from spatialgears.geometry.features import Features


@pytest.fixture
def case(tissue, true_places):
    places = tissue(200)
    graph = locality_graph(places, 10, 0.1).adjacency
    patches = sample_patches(graph, AssemblyConfig(patch_size=40, min_overlap=5), seed=0)
    return places, patches, true_places()


def run(places: np.ndarray, patches: Patches, geometry: object, *, batch: int = 4) -> np.ndarray:
    return geometries(
        Features(torch.from_numpy(places)), geometry, patches.cells, seeds=patches.seeds, batch=batch
    )


def test_distances_are_those_of_the_geometry(case):
    places, patches, _ = case
    found = measure(run(*case), patches, near=4, far=6, seed=1)
    i, j = np.divmod(found.pair, 200)
    assert (i < j).all() and (np.diff(found.pair * len(patches.cells) + found.patch) > 0).all()
    assert np.allclose(found.distance, np.linalg.norm(places[i] - places[j], axis=1), atol=1e-5)
    rows = zip(i[:200], j[:200], found.patch[:200], strict=True)
    assert all(np.isin([a, b], patches.cells[p]).all() for a, b, p in rows)


def test_every_cell_is_joined_to_its_nearest_in_each_patch(case):
    places, patches, _ = case
    found = measure(run(*case), patches, near=3, far=0, seed=1)
    expected = set()
    for p, cells in enumerate(patches.cells):
        distance = np.linalg.norm(places[cells][:, None] - places[cells][None], axis=-1)
        for a, row in enumerate(distance):
            for b in np.argsort(row)[1:4]:
                i, j = sorted((cells[a], cells[b]))
                expected.add((i * 200 + j, p))
    assert set(zip(found.pair.tolist(), found.patch.tolist(), strict=True)) == expected


def test_long_edges_are_measured_by_every_patch_that_holds_both(case):
    _, patches, _ = case
    found = measure(run(*case), patches, near=1, far=5, seed=1)
    rule = LongEdges.drawn(patches, 5, seed=1)
    i, j = np.divmod(np.unique(found.pair), 200)
    drawn = rule(i, j)
    assert (np.isin(i, patches.anchors) | np.isin(j, patches.anchors))[drawn].all()
    holds = np.zeros((len(patches.cells), 200), bool)
    np.put_along_axis(holds, patches.cells, True, axis=1)
    support = np.bincount(np.unique(found.pair, return_inverse=True)[1])
    assert np.array_equal(support[drawn], (holds[:, i] & holds[:, j]).sum(0)[drawn])
    assert 3 < rule(*np.triu_indices(200, 1)).sum() / 200 < 7


def test_without_anchors_long_edges_may_join_any_cells(case):
    _, patches, _ = case
    bare = Patches(patches.cells, patches.seeds, 200, patches.anchors[:0], 0)
    assert abs(LongEdges.drawn(bare, 8, seed=0)(*np.triu_indices(200, 1)).mean() - 8 / 40) < 0.02
    assert LongEdges.drawn(bare, 1000, seed=0)(np.array([0]), np.array([1])).all()


def test_neither_batches_nor_order_nor_chunks_change_a_bit(case, monkeypatch):
    places, patches, geometry = case
    whole = run(*case)
    assert np.array_equal(whole, run(*case, batch=1)) and np.array_equal(whole, run(*case, batch=1000))
    order = np.random.default_rng(0).permutation(len(patches.cells))
    shards = np.array_split(order, 3)  # as three processes would share them
    parts = np.concatenate(
        [
            geometries(
                Features(torch.from_numpy(places)),
                geometry,
                patches.cells[s],
                seeds=patches.seeds[s],
                batch=5,
            )
            for s in shards
        ]
    )
    assert np.array_equal(parts[np.argsort(order)], whole)
    first = measure(whole, patches, near=4, far=6, seed=1)
    monkeypatch.setattr(module, "_PAIRS", 1)
    second = measure(whole, patches, near=4, far=6, seed=1)
    assert np.array_equal(first.pair, second.pair) and np.array_equal(first.distance, second.distance)


def test_planes_keep_planar_distances_and_drop_the_rest(case):
    places, patches, _ = case
    flat = planes(run(*case))
    assert flat.shape == (*patches.cells.shape, 2)
    expected = places[patches.cells[0]]
    distance = [np.linalg.norm(x[:, None] - x[None], axis=-1) for x in (flat[0], expected)]
    assert np.allclose(*distance, atol=1e-5)


def test_a_geometry_that_is_not_finite_is_refused(case):
    places, patches, _ = case
    with pytest.raises(GearsError, match="not finite"):
        run(places, patches, lambda x, mask, seeds: x.seen * torch.nan)
