from __future__ import annotations

import numpy as np
import pytest
import torch

from spatialgears.assembly.frame import lay_patches, median_places
from spatialgears.assembly.graph import locality_graph
from spatialgears.assembly.measure import geometries
from spatialgears.assembly.patches import sample_patches
from spatialgears.config import AssemblyConfig
from spatialgears.geometry.features import Features


@pytest.fixture
def laid(tissue, true_places):
    def make(**options: float):
        places = tissue(300)
        graph = locality_graph(places, 10, 0.1).adjacency
        patches = sample_patches(graph, AssemblyConfig(patch_size=60, min_overlap=5), seed=0)
        points = geometries(
            Features(torch.from_numpy(places)),
            true_places(**options),
            patches.cells,
            seeds=patches.seeds,
            batch=8,
        )
        return places, patches, lay_patches(points, patches)

    return make


def test_patches_fall_into_one_frame(laid, off):
    places, patches, flat = laid()
    assert flat.shape == (*patches.cells.shape, 2)
    found = median_places(flat, patches, np.ones(len(flat)))
    assert off(found, places).max() < 1e-5
    assert np.allclose(flat, found[patches.cells], atol=1e-5)


def test_wrong_patches_do_not_bend_the_frame(laid, off):
    places, patches, flat = laid(wrong=0.2)
    error = np.median(
        np.linalg.norm(flat - median_places(flat, patches, np.ones(len(flat)))[patches.cells], axis=2), axis=1
    )
    good = error < 0.05
    assert 0.7 < good.mean() < 1
    trusted = median_places(flat, patches, np.where(good, 1.0, 1e-6))
    assert np.median(off(trusted, places)) < 1e-3


def test_median_places_is_the_median_of_each_coordinate(laid):
    _, patches, flat = laid(noise=0.2)
    found = median_places(flat, patches, np.ones(len(flat)))
    for cell in (0, 17, 299):
        assert np.allclose(found[cell], np.median(flat[patches.cells == cell], axis=0))
