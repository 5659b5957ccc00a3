"""Spacing: spread cells over the tissue's footprint by optimal transport, where best guesses crowd.

A best guess is the mean of possible positions, so cells that are hard to distinguish crowd in the middle. Tissue is filled
evenly, and the slides show the footprint that the cells fill. Optimal transport moves the layout part of the way to that
footprint, each cell at most as far as its own uncertainty. This repairs the density and keeps neighbours together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spatialgears.runtime.seeds import numpy_rng

ROUNDS = 60  # pairs of orthogonal directions; the layout settles well before


def footprint(
    slides: Sequence[NDArray[Any]], n_points: int, *, pitches: Sequence[float], seed: int
) -> NDArray[np.float64]:
    """``n_points`` spread evenly over the slides' tissue: random spots, each jittered within a square of one pitch."""
    rng = numpy_rng(seed, "footprint")
    share = np.bincount(rng.integers(len(slides), size=n_points), minlength=len(slides))
    parts = []
    for spots, pitch, count in zip(slides, pitches, share, strict=True):
        blur = (rng.random((count, 2)) - 0.5) * pitch
        parts.append(spots[rng.integers(len(spots), size=count)] + blur)
    return np.concatenate(parts)


def group_mean(values: NDArray[Any], group: NDArray[np.int64]) -> NDArray[np.float64]:
    """Values (N, d) replaced by their mean over the group (N,) of each."""
    sums = np.stack([np.bincount(group, one) for one in np.asarray(values, np.float64).T], axis=1)
    means: NDArray[np.float64] = (sums / np.bincount(group)[:, None])[group]
    return means


def fill_footprint(
    coords: NDArray[Any],
    target: NDArray[Any],
    *,
    strength: float,
    group: NDArray[np.int64] | None = None,
    limit: NDArray[Any] | None = None,
    reach: float = np.inf,
    seed: int,
) -> tuple[NDArray[np.float64], float]:
    """Move a layout towards an even filling of the tissue by sliced optimal transport.

    Parameters
    ----------
    coords
        (N, 2) coordinates of the cells.
    target
        (M, 2) points spread over the tissue, in the same frame.
    strength
        Largest share of the way: 0 changes nothing, 1 fills the footprint exactly.
    group
        (N,) numbers of groups of cells that move as one, such as copies; by default each cell is its own.
    limit
        (N,) no cell moves further than this.
    reach
        Limit of the root mean square move: the share of the way is smaller if the way is long.
    seed
        Decides the directions.

    Notes
    -----
    In each direction the one-dimensional transport is a matching of sorted values: O(N log N) per direction.

    A best guess is the mean of possible positions, so a move adds its own square to the squared error, whatever its
    direction: a share s of the way costs s^2 of the cost of the whole way, and leaves 1 - s of the distance to an even
    filling. The first part of the way is therefore cheap and the last part costly, and ``reach`` bounds the cost.

    Returns
    -------
    The layout, and the share of the way that cells were moved.
    """
    rng = numpy_rng(seed, "directions")
    moved = np.array(coords, dtype=np.float64)
    levels, known = np.linspace(0, 1, len(moved) + 2)[1:-1], np.linspace(0, 1, len(target))
    for angle in rng.uniform(0, np.pi, ROUNDS):
        axes = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])  # (2, 2) columns
        along, wanted = moved @ axes, np.sort(target @ axes, axis=0)
        if len(target) != len(moved):
            wanted = np.column_stack([np.interp(levels, known, axis) for axis in wanted.T])  # quantiles
        shift = np.empty_like(along)
        np.put_along_axis(shift, np.argsort(along, axis=0), wanted, axis=0)
        moved += 0.5 * (shift - along) @ axes.T
    step = moved - coords if group is None else group_mean(moved - coords, group)
    length = np.linalg.norm(step, axis=1)
    strength = min(strength, reach / max(float(np.sqrt(np.square(length).mean())), 1e-12))
    if limit is not None:
        step *= np.minimum(1.0, limit / np.maximum(strength * length, 1e-12))[:, None]
    return coords + strength * step, strength
