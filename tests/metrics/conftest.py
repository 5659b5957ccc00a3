"""A small layout and its noisy, turned, mirrored, scaled copy."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture(params=[0, 1])
def layout(request: pytest.FixtureRequest) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(request.param)
    truth = rng.normal(size=(60, 2)) * [3.0, 1.0] + 10
    coords = (truth + rng.normal(size=truth.shape) * 0.4) @ [[0.0, -7.0], [-7.0, 0.0]] - 4
    return coords, truth


@pytest.fixture
def lattice() -> np.ndarray:
    """A 6 x 7 grid: nearly every neighbourhood has ties."""
    return np.stack(np.meshgrid(np.arange(6.0), np.arange(7.0)), axis=-1).reshape(-1, 2)
