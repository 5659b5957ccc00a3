from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes
from scipy.spatial.distance import cdist
from scipy.stats import wasserstein_distance

from spatialgears.metrics import canonical, least_squares_scale, swd, w1_knn


def test_swd_is_the_mean_of_scipys_w1_over_directions(layout):
    x, y = (canonical(points) for points in layout)
    x = x @ orthogonal_procrustes(x, y)[0]
    values = []
    for angle in np.random.default_rng(4).uniform(0, np.pi, 16):
        direction = np.array([np.cos(angle), np.sin(angle)])
        values.append(wasserstein_distance(x @ direction, y @ direction))
    assert swd(*layout, projections=16, seed=4) == pytest.approx(np.mean(values), abs=1e-9)


def test_swd_compares_distributions_not_cells():
    square = np.array([[1.0, 1], [1, -1], [-1, 1], [-1, -1]])
    assert swd(square[[1, 0, 3, 2]], square) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("k", [5, 20])
def test_w1_knn_is_that_of_scipy(layout, k):
    coords, truth = (canonical(points) for points in layout)
    scale = least_squares_scale(coords, truth)
    found, true = (np.sort(cdist(p, p), axis=1)[:, 1 : k + 1].ravel() for p in (coords, truth))
    assert w1_knn(*layout, k=k) == pytest.approx(wasserstein_distance(scale * found, true), rel=1e-6)
    assert w1_knn(*layout, k=k, scale=1.0) == pytest.approx(wasserstein_distance(found, true), rel=1e-6)
    rows = np.arange(0, 60, 3)
    part = w1_knn(*layout, k=k, rows=rows, scale=1.0)
    found, true = (values.reshape(60, k)[rows].ravel() for values in (found, true))
    assert part == pytest.approx(wasserstein_distance(found, true), rel=1e-6)
