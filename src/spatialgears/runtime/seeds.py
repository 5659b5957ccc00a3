"""Owned randomness: every random number is a function of (seed, purpose, step).

Nothing depends on what ran before, so resuming needs no saved generator state, and results do not depend on batch
composition, workers or interruptions.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def child_seed(seed: int, *path: int | str) -> int:
    """A 63-bit seed for one purpose, e.g. ``child_seed(seed, "patch", 17)``; independent of every other path."""
    key = [zlib.crc32(part.encode()) if isinstance(part, str) else int(part) for part in path]
    return int(np.random.SeedSequence(seed, spawn_key=key).generate_state(1, np.uint64)[0] >> np.uint64(1))


def numpy_rng(seed: int, *path: int | str) -> np.random.Generator:
    """A numpy generator for one purpose."""
    return np.random.default_rng(child_seed(seed, *path))


def torch_rng(seed: int, *path: int | str) -> torch.Generator:
    """A torch (CPU) generator for one purpose."""
    return torch.Generator().manual_seed(child_seed(seed, *path))


@contextmanager
def owned_rng() -> Iterator[None]:
    """Keep the caller's global torch generator as it was; loops reseed it at each step with ``torch.manual_seed``."""
    with torch.random.fork_rng(devices=[]):
        yield
