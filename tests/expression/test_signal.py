"""The spatial signal: planted directions are found, noise is not, and targeted panels are left alone."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.spatial import KDTree

from spatialgears.config import ExpressionConfig
from spatialgears.expression import signal as signal_module
from spatialgears.expression.panel import Panel
from spatialgears.expression.signal import FEWEST, shared_by_neighbours, spatial_covariance, spatial_signal
from spatialgears.expression.views import SpotViews

G = 80


def slide(seed: int, n: int = 400, *, strength: float = 3.0) -> tuple[torch.Tensor, np.ndarray]:
    """Noise in every gene, and six smooth patterns along the first six axes."""
    rng = np.random.default_rng(seed)
    xy = rng.uniform(-1, 1, (n, 2))
    a, b = xy.T
    smooth = np.stack([a, b, a * b, np.sin(3 * a), np.cos(3 * b), np.sin(3 * (a + b))], axis=1)
    x = rng.normal(size=(n, G))
    x[:, :6] += strength * smooth / smooth.std(0)
    return torch.from_numpy(x).float(), xy


def test_planted_directions_are_found_and_little_else(monkeypatch):
    monkeypatch.setattr(signal_module, "FEWEST", 1)
    x, xy = zip(*(slide(seed) for seed in (0, 1)), strict=True)
    signal = spatial_signal(x, xy)
    assert 6 <= signal.shape[1] <= 9
    assert torch.allclose(signal.T @ signal, torch.eye(signal.shape[1]), atol=1e-5)
    kept = (signal @ signal.T)[:6, :6].diagonal()
    assert kept.min() > 0.9


def test_noise_of_large_variance_is_not_taken_for_signal():
    x, xy = slide(0, n=3000)
    x[:, 50:60] *= 4  # by principal components these would come first
    signal = spatial_signal([x], [xy])
    assert (signal[:6].square().sum() / 6) > 0.8


def test_without_signal_the_fewest_directions_are_kept_and_all_are_finite():
    x, xy = slide(0, strength=0.0)
    signal = spatial_signal([x], [xy])
    assert signal.shape[1] == FEWEST and bool(signal.isfinite().all())


def test_covariance_between_neighbours_by_hand():
    x, xy = slide(3, n=40)
    distance = np.linalg.norm(xy[:, None] - xy[None], axis=2)
    near = distance.argsort(1)[:, 1:7]
    slow = np.zeros((G, G))
    for i in range(40):
        for j in near[i]:
            slow += np.outer(x[i], x[j]) / 6
    slow = (slow + slow.T) / 2 / 40
    assert np.allclose(spatial_covariance([x], [xy]), slow, atol=1e-4)


def test_a_spot_that_shares_its_place_is_not_its_own_neighbour(monkeypatch):
    monkeypatch.setattr("spatialgears.expression.signal.NEIGHBORS", 1)
    x, xy = slide(3, n=40)
    xy[20:] = xy[:20]
    twins = torch.zeros(40, G)
    twins[:20] = x[:20]  # the twin in the same place shows nothing
    assert abs(float(spatial_covariance([twins], [xy]).sum())) < 1e-6


@pytest.mark.parametrize(("setting", "genes", "used"), [
    ("auto", 20_000, True), ("auto", 300, False), ("spatial", 300, True), ("none", 20_000, False),
])  # fmt: skip
def test_when_it_is_used(setting, genes, used):
    rng = np.random.default_rng(0)
    xy = rng.uniform(-1, 1, (60, 2))
    views = SpotViews(
        [sp.csr_matrix(rng.poisson(5, (60, G)))],
        np.full(30, 200.0),
        Panel(np.arange(G).astype(str), np.ones(G, np.float32), np.ones(G)),
        config=ExpressionConfig(),
        seed=0,
    )
    config = ExpressionConfig(signal=setting)
    signal = shared_by_neighbours(views, [xy], config, seed=0, shared_genes=genes)
    assert (signal is not None) == used


def test_spots_do_not_tell_their_neighbours():
    """Of noise alone, directions found with a spot hold what it shares with its neighbours by chance."""
    rng = np.random.default_rng(0)
    xy, genes = rng.uniform(-1, 1, (100, 2)), 400
    panel = Panel(np.arange(genes).astype(str), np.ones(genes, np.float32), np.ones(genes))
    noise = [sp.csr_matrix(rng.poisson(5, (100, genes)))]
    views = SpotViews(noise, np.full(30, 2000.0), panel, config=ExpressionConfig(), seed=0)
    signal = shared_by_neighbours(views, [xy], ExpressionConfig(), seed=0, shared_genes=20_000)
    index = torch.arange(100)
    x = views.clean(index)
    near = torch.from_numpy(KDTree(xy).query(xy, k=7)[1][:, 1:])

    def alike(seen):
        z = torch.nn.functional.normalize(seen - seen.mean(0), dim=1)
        return float((z[:, None] * z[near]).sum(-1).mean() - (z @ z.T).mean())

    assert alike(x @ signal.axes @ signal.axes.T) > 0.2
    assert abs(alike(signal.of_spots(x, index))) < 0.03
    one = signal.of_spots(x[None, 7:9], index[None, 7:9])
    assert torch.allclose(one[0], signal.of_spots(x, index)[7:9], atol=1e-5)
