from __future__ import annotations

import numpy as np
import pytest
import torch

from spatialgears.assembly import extend as extending
from spatialgears.assembly.extend import _draw, part_sizes
from spatialgears.geometry.features import Features


def extend(features, *args, **options):
    """Features that are the places themselves."""
    return extending.extend(Features(torch.as_tensor(features)), *args, **options)


def test_further_cells_find_their_places_and_the_core_keeps_its_own(tissue, true_places, off):
    places = tissue(1000)
    core = np.sort(np.random.default_rng(0).permutation(1000)[:150])
    turned = places[core].astype(np.float64) @ np.array([[0.0, -1.0], [1.0, 0.0]]) + 5
    found = extend(places, true_places(), core, coords=turned, seed=3)
    assert np.array_equal(found[core], turned)
    assert off(found, places).max() < 1e-4 and found.mean() > 4


def test_draws_are_different_cells_from_everywhere():
    drawn = np.stack([_draw(97, 30, part, seed=0) for part in range(200)])
    assert all(len(set(row)) == 30 for row in drawn) and drawn.min() == 0 and drawn.max() == 96
    assert np.ptp(np.sort(drawn, axis=1), axis=1).min() > 80
    assert len(np.unique(drawn[:, 0])) > 50


@pytest.mark.parametrize(("n_core", "n_new"), [(150, 1), (150, 130), (150, 2000), (3000, 7000)])
def test_large_parts_place_every_cell_once(n_core, n_new, tissue, true_places, off):
    places = tissue(n_core + n_new)
    core = np.sort(np.random.default_rng(0).permutation(len(places))[:n_core])
    seen = []

    def geometry(features, mask, seeds):
        seen.append(features.seen[0].numpy())
        return true_places()(features, mask, seeds)

    context, _ = part_sizes(n_core)
    found = extend(places, geometry, core, coords=places[core].astype(float), seed=3)
    assert off(found, places).max() < 1e-4
    assert sum(len(one) - context for one in seen) < n_new + len(seen)
    assert max(map(len, seen)) <= max(n_core, 2 * context)
