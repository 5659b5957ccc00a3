"""Placing further cells on a core that has been placed, so that cost stays linear in the number of cells."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spatialgears.assembly.measure import Geometry, geometry_of
from spatialgears.geometry.features import FeatureRows
from spatialgears.metrics.points import lay_on
from spatialgears.runtime.hashing import hashed, shuffled
from spatialgears.runtime.processes import share_of, summed
from spatialgears.runtime.progress import Progress, silent
from spatialgears.runtime.seeds import child_seed

CONTEXT = 1000  # core cells, at least, that fix the pose of a part


def part_sizes(n_core: int) -> tuple[int, int]:
    """Core cells and other cells of a part: as many as the core in all, a tenth of them from the core."""
    context = min(n_core, max(CONTEXT, n_core // 10))
    return context, max(n_core - context, context)


def extend(
    features: FeatureRows,
    geometry: Geometry,
    core: NDArray[np.int64],
    *,
    coords: NDArray[np.float64],
    seed: int,
    progress: Progress = silent,
) -> NDArray[np.float64]:
    """Place all cells given the coordinates ``coords`` (C, 2) of the cells ``core`` (C,), which keep theirs.

    The other cells go through the network in parts, each together with some core cells. The geometry of a part is laid on the
    plane by the rotation, scale and shift that fit its core cells best. Linear in cells; memory O(N). With several
    processes each computes a share of the parts.
    """
    new = np.setdiff1d(np.arange(len(features)), core)
    context, fresh = part_sizes(len(core))
    n_parts = -(-len(new) // fresh)
    fresh = -(-len(new) // n_parts)
    order = new[shuffled(child_seed(seed, "round", 0), len(new))]
    coords_of_all = np.zeros((len(features), 2), np.float32)
    for part in share_of(range(n_parts)):
        known = _draw(len(core), context, part, seed=child_seed(seed, "core"))  # (context,)
        others = order[
            (part * fresh + np.arange(fresh)) % len(new)
        ]  # the last part is filled up with cells of the first
        noise = (hashed(child_seed(seed, "extend"), [part]) >> np.uint64(1)).astype(np.int64)
        cells = np.concatenate([core[known], others])
        points = geometry_of(features, geometry, cells[None], seeds=noise)[0]
        own = min(fresh, len(new) - part * fresh)
        laid = _laid(points.astype(np.float64), coords[known])[context : context + own]
        coords_of_all[others[:own]] = laid
        progress("extend", part + 1, n_parts, {})
    result = summed(coords_of_all).astype(np.float64)
    result[core] = coords
    return result


def _draw(available: int, count: int, part: int, *, seed: int) -> NDArray[np.int64]:
    """``count`` different numbers below ``available``, evenly spaced from a random one, for each part its own."""
    begin = int(hashed(seed, part)[0] % np.uint64(available))
    return (begin + np.arange(count) * available // count) % available


def _laid(points: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """A geometry (n, d) moved so that its first rows lie on ``target`` (context, 2)."""
    context, shift = len(target), target.mean(0)
    points = points - points[:context].mean(0)
    flat = points @ lay_on(points[:context], target - shift)  # (n, 2)
    known = flat[:context]
    fit = (known * (target - shift)).sum() / max((known**2).sum(), 1e-300)
    return flat * fit + shift
