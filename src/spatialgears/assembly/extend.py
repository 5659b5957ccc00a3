"""Laying further cells on a solved core, so that cost stays linear however many cells there are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from spatialgears.assembly.canonical import lay_on
from spatialgears.assembly.hashing import hashed, shuffled
from spatialgears.assembly.measure import Geometry, geometries
from spatialgears.config import AssemblyConfig
from spatialgears.engine import Progress, child_seed, silent


def extend(
    features: NDArray[np.float32] | Tensor,
    geometry: Geometry,
    core: NDArray[np.int64],
    *,
    coords: NDArray[np.float64],
    config: AssemblyConfig,
    seed: int,
    progress: Progress = silent,
) -> NDArray[np.float64]:
    """Place all cells given the places ``coords`` (C, 2) of the cells ``core`` (C,); these keep theirs.

    Every other cell joins ``extend_rounds`` patches, half new cells and half core cells from everywhere. A
    patch's geometry is laid on the plane by the rotation, scale and shift that fit its core cells best, and a
    cell takes the median of its places. Linear in cells, beside the network as in it; memory O(N).
    """
    size = min(config.patch_size, 2 * len(core))
    context, fresh = size // 2, size - size // 2
    new = np.setdiff1d(np.arange(len(features)), core)
    per_round = -(-len(new) // fresh)
    places = np.zeros((config.extend_rounds, len(features), 2), np.float32)
    for turn in range(config.extend_rounds):
        order = new[shuffled(child_seed(seed, "round", turn), len(new))]
        for start in range(0, per_round, config.patch_batch):
            block = np.arange(start, min(start + config.patch_batch, per_round))
            ids = turn * per_round + block
            known = _draw(len(core), context, ids, seed=child_seed(seed, "core"))  # (B, context)
            dealt = order[(block[:, None] * fresh + np.arange(fresh)) % len(new)]  # (B, fresh)
            cells = np.hstack([core[known], dealt])
            noise = (hashed(child_seed(seed, "extend"), ids) >> np.uint64(1)).astype(np.int64)
            points = geometries(features, geometry, cells, seeds=noise, batch=len(cells))
            places[turn, dealt] = _laid(points.astype(np.float64), coords[known])[:, context:]
            progress("extend", int(ids[-1]) + 1, config.extend_rounds * per_round, {})
    result = np.median(places, axis=0).astype(np.float64)
    result[core] = coords
    return result


def _draw(available: int, count: int, ids: NDArray[np.int64], *, seed: int) -> NDArray[np.int64]:
    """For each patch ``count`` different numbers below ``available``, evenly apart from a random place."""
    begin = hashed(seed, ids)[:, None] % np.uint64(available)
    slots = np.arange(count) * available // count
    return (begin.astype(np.int64) + slots) % available


def _laid(points: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """(B, n, d) geometries moved so that their first rows lie on ``target`` (B, context, 2)."""
    context = target.shape[1]
    points = points - points[:, :context].mean(1, keepdims=True)
    shift = target.mean(1, keepdims=True)
    turn = lay_on(points[:, :context], target - shift)
    flat = points @ turn  # (B, n, 2)
    known = flat[:, :context]
    fit = (known * (target - shift)).sum((1, 2)) / np.maximum((known**2).sum((1, 2)), 1e-300)
    return flat * fit[:, None, None] + shift
