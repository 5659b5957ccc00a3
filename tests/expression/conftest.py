"""A small tissue with places, shared by the tests of stage A."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import scipy.sparse as sp


class Tiny(NamedTuple):
    slides: list[sp.csr_matrix]
    coords: list[np.ndarray]
    cells: sp.csr_matrix
    places: np.ndarray
    genes: np.ndarray


def _profiles(places: np.ndarray, depth: float, rng: np.random.Generator) -> sp.csr_matrix:
    """Forty genes: thirty follow smooth waves over the unit square, ten carry no place."""
    direction = np.random.default_rng(7).normal(size=(2, 30)) * 3
    phase = np.random.default_rng(8).uniform(0, 6, 30)
    waves = np.exp(1.2 * np.sin(places @ direction + phase))
    rate = np.hstack([waves, np.full((len(places), 10), 1.5)])
    return sp.csr_matrix(rng.poisson(depth * rate / rate.sum(1, keepdims=True)).astype(np.float32))


@pytest.fixture(scope="session")
def tiny() -> Tiny:
    rng = np.random.default_rng(0)
    coords = [rng.uniform(size=(n, 2)) for n in (90, 80)]
    places = rng.uniform(size=(150, 2))
    slides = [_profiles(xy, 1500, rng) for xy in coords]
    return Tiny(slides, coords, _profiles(places, 150, rng), places, np.array([f"g{i}" for i in range(40)]))
