"""Laying further cells on a solved core, so that cost stays linear however many cells there are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from spatialgears.assembly.hashing import hashed, shuffled
from spatialgears.assembly.measure import Geometry, geometry_of
from spatialgears.config import AssemblyConfig
from spatialgears.geometry.features import FeatureRows
from spatialgears.metrics.points import lay_on
from spatialgears.runtime.processes import share_of, summed
from spatialgears.runtime.progress import Progress, silent
from spatialgears.runtime.seeds import child_seed

CONTEXT = 1000  # core cells that fix the pose of a large set


@dataclass(frozen=True)
class Parts:
    """How the further cells are dealt out: ``rounds`` times into sets of ``context`` core cells and ``fresh`` others."""

    context: int
    fresh: int
    rounds: int
    batch: int

    @classmethod
    def patches(cls, config: AssemblyConfig, core: int) -> Parts:
        """Patches, half core and half others; a cell joins several and takes the median of its places."""
        size = min(config.patch_size, 2 * core)
        return cls(size // 2, size - size // 2, config.extend_rounds, config.patch_batch)

    @classmethod
    def large(cls, core: int) -> Parts:
        """Sets as large as the core, which a tenth of it ties to the rest: one place for each cell is enough."""
        context = min(core, max(CONTEXT, core // 10))
        return cls(context, max(core - context, context), rounds=1, batch=1)


def extend(
    features: FeatureRows,
    geometry: Geometry,
    core: NDArray[np.int64],
    *,
    coords: NDArray[np.float64],
    ways: Parts,
    seed: int,
    progress: Progress = silent,
) -> NDArray[np.float64]:
    """Place all cells given the places ``coords`` (C, 2) of the cells ``core`` (C,); these keep theirs.

    The geometry of a set is laid on the plane by the rotation, scale and shift that fit its core cells best, and a
    cell takes the median of its places over the rounds. Linear in cells, beside the network as in it; memory O(N).
    With several processes each computes a share of the sets.
    """
    new = np.setdiff1d(np.arange(len(features)), core)
    per_round = -(-len(new) // ways.fresh)
    fresh, context = -(-len(new) // per_round), ways.context
    places = np.zeros((ways.rounds, len(features), 2), np.float32)
    for turn in range(ways.rounds):
        order = new[shuffled(child_seed(seed, "round", turn), len(new))]
        for start in share_of(range(0, per_round, ways.batch)):
            block = np.arange(start, min(start + ways.batch, per_round))
            ids = turn * per_round + block
            known = _draw(len(core), context, ids, seed=child_seed(seed, "core"))  # (B, context)
            dealt = order[(block[:, None] * fresh + np.arange(fresh)) % len(new)]  # (B, fresh)
            owned = np.arange(block[0] * fresh, min((block[-1] + 1) * fresh, len(new))) - block[0] * fresh
            cells = np.hstack([core[known], dealt])
            noise = (hashed(child_seed(seed, "extend"), ids) >> np.uint64(1)).astype(np.int64)
            points = geometry_of(features, geometry, cells, seeds=noise)
            laid = _laid(points.astype(np.float64), coords[known])[:, context:].reshape(-1, 2)
            places[turn, dealt.ravel()[owned]] = laid[owned]
            progress("extend", int(ids[-1]) + 1, ways.rounds * per_round, {})
    result = np.median(summed(places), axis=0).astype(np.float64)
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
