"""Random numbers as a function of (seed, counters): a subset of patches draws the same numbers as in the full set."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: a bijection of 64-bit words whose output bits all depend on all input bits."""
    bits = bits + _STEP
    bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
    return bits ^ (bits >> np.uint64(31))


def hashed(seed: int, *counters: ArrayLike) -> NDArray[np.uint64]:
    """64 random bits for each element of the broadcast ``counters`` (at least one-dimensional)."""
    bits = mix(np.array([seed % 2**64], np.uint64))
    for counter in counters:
        bits = mix(bits ^ np.atleast_1d(np.asarray(counter)).astype(np.uint64))
    return bits


def uniform(seed: int, *counters: ArrayLike) -> NDArray[np.float64]:
    """A uniform number in [0, 1) for each element of the broadcast ``counters``."""
    return (hashed(seed, *counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def shuffled(seed: int, count: int, *first: NDArray[Any]) -> NDArray[np.int64]:
    """The indices below ``count`` in random order; given keys ``first``, sorted by these, ties at random."""
    return np.lexsort((hashed(seed, np.arange(count)), *first[::-1])).astype(np.int64)
