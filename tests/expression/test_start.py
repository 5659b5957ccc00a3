from __future__ import annotations

import numpy as np
import torch

from spatialgears.expression.start import svd_basis, weighted_start


def _components(n: int = 400, seed: int = 0):
    """Places, and three components: large with place, small with place, large without."""
    rng = np.random.default_rng(seed)
    coords = rng.uniform(size=(n, 2))
    z = np.stack([4 * np.sin(5 * coords[:, 0]), np.cos(5 * coords[:, 1]), 4 * rng.normal(size=n)], axis=1)
    return coords, torch.from_numpy(z - z.mean(0)).float()


def test_a_component_without_place_vanishes_and_a_small_one_with_place_stays():
    coords, z = _components()
    start = weighted_start(z, z, 3, slide=torch.zeros(400, dtype=torch.long), coords=[coords])
    torch.testing.assert_close((z @ start.projection).std(0), torch.ones(3))
    large, small, noise = start.scale.tolist()
    assert noise < 0.1 * small
    assert 1.3 < large / small < 3  # half whitened: about the root of the ratio of their sizes
    equal = weighted_start(z, z, 3, slide=torch.zeros(400, dtype=torch.long), coords=None)
    assert float(equal.scale[2]) > float(equal.scale[1])


def test_dimensions_are_no_more_than_components():
    coords, z = _components()
    start = weighted_start(z, z, 64, slide=torch.zeros(400, dtype=torch.long), coords=[coords])
    assert start.projection.shape == (3, 3) and start.scale.shape == (3,)


def test_the_basis_spans_the_signal_and_gives_values_of_order_one(monkeypatch):
    monkeypatch.setattr("spatialgears.expression.start.COMPONENTS", 3)
    generator = torch.Generator().manual_seed(0)
    loadings = torch.linalg.qr(torch.randn(50, 3, generator=generator))[0]
    x = torch.randn(200, 3, generator=generator) * torch.tensor([30.0, 10.0, 5.0]) @ loadings.T
    basis = svd_basis(x[:100], x[100:], seed=1)
    torch.testing.assert_close(basis @ torch.linalg.pinv(basis), loadings @ loadings.T, atol=1e-4, rtol=0)
    std = (x @ basis).std(0)
    assert 0.9 < float(std[0]) < 1.1 and bool((std.diff() < 0).all())
    assert torch.equal(basis, svd_basis(x[:100], x[100:], seed=1))
