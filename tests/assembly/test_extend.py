from __future__ import annotations

import numpy as np

from spatialgears.assembly.extend import _draw, extend
from spatialgears.config import AssemblyConfig

CONFIG = AssemblyConfig(patch_size=64)


def test_further_cells_find_their_places_and_the_core_keeps_its_own(tissue, true_places, off):
    places = tissue(1000)
    core = np.sort(np.random.default_rng(0).permutation(1000)[:150])
    turned = places[core].astype(np.float64) @ np.array([[0.0, -1.0], [1.0, 0.0]]) + 5
    found = extend(places, true_places(), core, coords=turned, config=CONFIG, seed=3)
    assert np.array_equal(found[core], turned)
    assert off(found, places).max() < 1e-4 and found.mean() > 4


def test_wrong_patches_are_outvoted(tissue, true_places):
    places = tissue(600)
    core = np.arange(0, 600, 4)
    config = CONFIG.model_copy(update={"extend_rounds": 7})
    found = extend(
        places, true_places(wrong=0.15), core, coords=places[core].astype(float), config=config, seed=1
    )
    error = np.linalg.norm(found - places, axis=1)
    assert np.median(error) < 1e-5 and np.quantile(error, 0.95) < 0.01


def test_batches_do_not_change_a_bit(tissue, true_places):
    places = tissue(400)
    core = np.arange(0, 400, 3)
    found = [
        extend(
            places, true_places(noise=0.1), core, coords=places[core].astype(float),
            config=CONFIG.model_copy(update={"patch_batch": batch}), seed=2,
        )
        for batch in (1, 5, 1000)
    ]  # fmt: skip
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])


def test_draws_are_different_cells_from_everywhere():
    drawn = _draw(97, 30, np.arange(200), seed=0)
    assert all(len(set(row)) == 30 for row in drawn) and drawn.min() == 0 and drawn.max() == 96
    assert np.ptp(np.sort(drawn, axis=1), axis=1).min() > 80
    assert np.array_equal(_draw(97, 30, np.array([42]), seed=0)[0], drawn[42])
