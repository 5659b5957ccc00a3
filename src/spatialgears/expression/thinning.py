"""Binomial thinning of counts."""

from __future__ import annotations

import numpy as np


def thin(counts: np.ndarray, keep: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Binomial(counts, keep), element by element, as float32.

    The first eight counts of every entry are drawn one by one, which is several times faster than numpy's binomial on the
    small counts of expression data.
    """
    counts, keep = counts.astype(np.int64), keep.astype(np.float32)
    out = np.zeros(len(counts), dtype=np.float32)
    for read in range(8):
        entries = np.flatnonzero(counts > read)
        out[entries] += rng.random(len(entries), dtype=np.float32) < keep[entries]
    entries = np.flatnonzero(counts > 8)
    out[entries] += rng.binomial(counts[entries] - 8, keep[entries])
    return out
