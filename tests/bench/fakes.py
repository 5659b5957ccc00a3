"""Methods that behave and methods that do not, run by the harness in processes of their own."""

from __future__ import annotations

import time

import numpy as np


def noisy(slides, cells, *, seed, scale=0.01):
    """The first two genes are the coordinates."""
    x = cells.X.toarray()[:, :2]
    return {"coords": x + scale * np.random.default_rng(seed).normal(size=x.shape), "info": {"note": "hello"}}


def layered(slides, cells, *, seed):
    """Places, nearly right and in canonical units, with another layout and radii beside them."""
    x = cells.X.toarray()[:, :2]
    x = (x - x.mean(0)) / np.sqrt(((x - x.mean(0)) ** 2).sum(1).mean())
    x = x + 0.01 * np.random.default_rng(seed).normal(size=x.shape)
    n = len(x)
    return {"coords": x, "one sample": x[:, ::-1], "radius50": np.zeros(n), "radius90": np.full(n, 0.2)}


def crash(slides, cells, *, seed):
    raise ValueError("the spots are upside down")


def hang(slides, cells, *, seed):
    time.sleep(60)


def hog(slides, cells, *, seed):
    return np.ones((3 * 2**30,), dtype=np.uint8)


def nans(slides, cells, *, seed):
    return np.full((cells.n_obs, 2), np.nan)


def short(slides, cells, *, seed):
    return np.zeros((3, 2))


def point(slides, cells, *, seed):
    """Every cell at one point: finite, and impossible to score."""
    return np.zeros((cells.n_obs, 2))


def cheat(slides, cells, *, seed, truth):
    return truth
