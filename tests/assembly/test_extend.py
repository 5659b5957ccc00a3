from __future__ import annotations

import numpy as np
import pytest
import torch

from spatialgears.assembly import extend as extending
from spatialgears.assembly.extend import Parts, _draw
from spatialgears.config import AssemblyConfig
from spatialgears.geometry.features import Features


def extend(features, *args, **options):
    """Features that are the places themselves."""
    return extending.extend(Features(torch.as_tensor(features)), *args, **options)


def ways(core, **settings) -> Parts:
    return Parts.patches(AssemblyConfig(patch_size=64, **settings), len(core))


def test_further_cells_find_their_places_and_the_core_keeps_its_own(tissue, true_places, off):
    places = tissue(1000)
    core = np.sort(np.random.default_rng(0).permutation(1000)[:150])
    turned = places[core].astype(np.float64) @ np.array([[0.0, -1.0], [1.0, 0.0]]) + 5
    found = extend(places, true_places(), core, coords=turned, ways=ways(core), seed=3)
    assert np.array_equal(found[core], turned)
    assert off(found, places).max() < 1e-4 and found.mean() > 4


def test_wrong_patches_are_outvoted(tissue, true_places):
    places = tissue(600)
    core = np.arange(0, 600, 4)
    found = extend(
        places, true_places(wrong=0.15), core, coords=places[core].astype(float),
        ways=ways(core, extend_rounds=7), seed=1,
    )  # fmt: skip
    error = np.linalg.norm(found - places, axis=1)
    assert np.median(error) < 1e-5 and np.quantile(error, 0.95) < 0.01


def test_batches_do_not_change_a_bit(tissue, true_places):
    places = tissue(400)
    core = np.arange(0, 400, 3)
    found = [
        extend(
            places, true_places(noise=0.1), core, coords=places[core].astype(float),
            ways=ways(core, patch_batch=batch), seed=2,
        )
        for batch in (1, 5, 1000)
    ]  # fmt: skip
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


def test_draws_are_different_cells_from_everywhere():
    drawn = _draw(97, 30, np.arange(200), seed=0)
    assert all(len(set(row)) == 30 for row in drawn) and drawn.min() == 0 and drawn.max() == 96
    assert np.ptp(np.sort(drawn, axis=1), axis=1).min() > 80
    assert np.array_equal(_draw(97, 30, np.array([42]), seed=0)[0], drawn[42])


@pytest.mark.parametrize(("n_core", "n_new"), [(150, 1), (150, 130), (150, 2000), (3000, 7000)])
def test_large_parts_place_every_cell_once(n_core, n_new, tissue, true_places, off):
    places = tissue(n_core + n_new)
    core = np.sort(np.random.default_rng(0).permutation(len(places))[:n_core])
    seen = []

    def geometry(features, mask, seeds):
        seen.append(features.seen[0].numpy())
        return true_places()(features, mask, seeds)

    parts = Parts.large(n_core)
    found = extend(places, geometry, core, coords=places[core].astype(float), ways=parts, seed=3)
    assert off(found, places).max() < 1e-4
    assert sum(len(one) - parts.context for one in seen) < n_new + len(seen)
    assert max(map(len, seen)) <= max(n_core, 2 * parts.context)
