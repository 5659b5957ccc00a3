from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from spatialgears.metrics import canonical, distortion, distortion_matrix, least_squares_scale, morton_order


def test_morton_order_of_a_grid_is_the_z_curve():
    grid = np.array([[x, y] for y in range(4) for x in range(4)], dtype=float)
    z_curve = [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]
    np.testing.assert_array_equal(morton_order(grid * 21845 / 65535 * 3), z_curve)


def test_morton_order_interleaves_all_bits():
    rng = np.random.default_rng(0)
    cells = rng.integers(0, 65536, size=(200, 2))
    cells[:2] = [[0, 0], [65535, 65535]]

    def interleaved(x, y):
        return int("".join(b + a for a, b in zip(f"{x:016b}", f"{y:016b}", strict=True)), 2)

    code = [interleaved(x, y) for x, y in cells]
    np.testing.assert_array_equal(morton_order(cells), np.argsort(code, kind="stable"))


@pytest.mark.parametrize("blocks", [7, 60, 500])
def test_distortion_is_the_block_mean_of_its_formula(layout, blocks, monkeypatch):
    monkeypatch.setattr(distortion, "BLOCK", 11 * 60)
    coords, truth = (canonical(points) for points in layout)
    order = morton_order(truth)
    D = least_squares_scale(coords, truth) * cdist(coords, coords)[np.ix_(order, order)]
    E = np.abs(np.log((D + 0.01) / (cdist(truth, truth)[np.ix_(order, order)] + 0.01)))
    found = distortion_matrix(*layout, blocks=blocks, eps=0.01)
    np.testing.assert_allclose(found, found.T)
    edges = np.floor(np.linspace(0, 60, min(blocks, 60) + 1) + 1e-9).astype(int)
    parts = [np.arange(a, b) for a, b in pairwise(edges)]
    expected = [[E[np.ix_(a, b)].mean() for b in parts] for a in parts]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_distortion_of_the_truth_is_nothing_and_of_a_collapse_is_finite(layout):
    _, truth = layout
    np.testing.assert_allclose(distortion_matrix(truth * 5 + 1, truth, blocks=10), 0, atol=1e-6)
    assert np.isfinite(distortion_matrix(np.sign(truth - truth.mean(axis=0)), truth, blocks=10)).all()
