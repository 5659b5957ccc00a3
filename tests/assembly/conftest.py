from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from spatialgears.geometry.features import Features


@dataclass
class TruePlaces:
    """A geometry that knows: features are places, which it gives back in a random pose of its own per patch."""

    dim: int = 6
    noise: float = 0.0
    wrong: float = 0.0  # share of patches that are noise altogether
    collapse: bool = False
    calls: int = 0

    def __call__(self, features: Features, mask: Tensor, seeds: Tensor) -> Tensor:
        places = features.seen
        assert places.shape[:2] == mask.shape and seeds.shape == mask.shape[:1] and bool(mask.all())
        self.calls += 1
        return torch.stack([self.one(x, int(seed)) for x, seed in zip(places, seeds, strict=True)])

    def one(self, places: Tensor, seed: int) -> Tensor:
        rng = torch.Generator().manual_seed(seed)
        pose = torch.linalg.qr(torch.randn(self.dim, self.dim, generator=rng)).Q
        bad = bool(torch.rand(1, generator=rng) < self.wrong)
        flat = torch.nn.functional.pad(places[:, :2] * (not self.collapse), (0, self.dim - 2))
        jitter = torch.randn(flat.shape, generator=rng)
        flat = jitter if bad else flat + self.noise * jitter
        return (flat - flat.mean(0)) @ pose


@pytest.fixture
def true_places() -> type[TruePlaces]:
    return TruePlaces


@pytest.fixture
def tissue() -> Callable[..., np.ndarray]:
    """Places (n, 2) of an elongated, uneven tissue with unit RMS radius."""

    def make(n: int, *, seed: int = 0) -> np.ndarray:
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(n, 2)) * [1.0, 0.6]
        x[:, 1] += 0.3 * x[:, 0] ** 2
        x -= x.mean(0)
        return (x / np.sqrt((x**2).sum(1).mean())).astype(np.float32)

    return make


@pytest.fixture
def off() -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Distance of each cell from its true place after the best rigid motion."""

    def error(coords: np.ndarray, truth: np.ndarray) -> np.ndarray:
        a, b = (np.asarray(x, np.float64) - np.mean(x, axis=0, dtype=np.float64) for x in (coords, truth))
        u, _, v = np.linalg.svd(a.T @ b)
        return np.linalg.norm(a @ u @ v - b, axis=1)

    return error
