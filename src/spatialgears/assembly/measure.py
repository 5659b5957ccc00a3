"""Steps 3 and 4 of section 3.5: the geometry of each patch, and the distances measured in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from spatialgears.assembly.patches import Patches, overlaps
from spatialgears.errors import GearsError
from spatialgears.geometry.features import FeatureRows, Features
from spatialgears.runtime.hashing import hashed, mix
from spatialgears.runtime.processes import gathered, share_of
from spatialgears.runtime.progress import Progress, silent

#: ``geometry(features (B, n, .), mask (B, n), seeds (B,)) -> V_pred (B, n, d)``, each patch for itself.
Geometry = Callable[[Features, Tensor, Tensor], Tensor]

NEAR, FAR = 10, 16  # nearest and other cells measured for each cell of a patch (the paper is silent)
BATCH = 16  # patches per pass of the network; does not change the result
_PAIRS = 2**24  # entries of the distance matrices held at once


def geometries(
    features: FeatureRows,
    geometry: Geometry,
    cells: NDArray[np.int64],
    *,
    seeds: NDArray[np.int64],
    progress: Progress = silent,
) -> NDArray[np.float32]:
    """The geometry (P, n, d) of patches ``cells`` (P, n), ``BATCH`` patches at a time, checked to be finite.

    A patch's geometry does not depend on the others: with several processes each computes a share, and all get all.
    """
    parts: dict[int, NDArray[np.float32]] = {}
    for start in share_of(range(0, len(cells), BATCH)):
        some = slice(start, start + BATCH)
        parts[start] = geometry_of(features, geometry, cells[some], seeds=seeds[some])
        progress("patches", min(start + BATCH, len(cells)), len(cells), {})
    return gathered(parts, len(cells))


def geometry_of(
    features: FeatureRows, geometry: Geometry, cells: NDArray[np.int64], *, seeds: NDArray[np.int64]
) -> NDArray[np.float32]:
    """The geometry (B, n, d) of some patches in one call of the network."""
    inputs = features[cells.ravel()].unflatten(cells.shape)  # (B, n, .)
    mask = torch.ones(cells.shape, dtype=torch.bool)
    with torch.no_grad():
        points = geometry(inputs, mask, torch.as_tensor(seeds)).detach().float().cpu().numpy()
    if not np.isfinite(points).all():
        raise GearsError(
            "The geometry of some cells is not finite, so they cannot be placed. The model diverged, or the features have "
            "extreme values: look at the training history, and run `gears check`."
        )
    return points


@dataclass(frozen=True)
class Measurements:
    """Distances measured in patches, one row per pair of cells and patch, sorted by pair, then by patch."""

    pair: NDArray[np.int64]  # (M,) ``i * n_cells + j`` with i < j
    patch: NDArray[np.int64]  # (M,) which patch measured
    distance: NDArray[np.float64]  # (M,) in the units of the geometry
    n_cells: int
    shared: sparse.csr_matrix  # (P, P) numbers of cells that patches share

    @property
    def n_patches(self) -> int:
        """P."""
        return self.shared.shape[0]


def measure(points: NDArray[Any], patches: Patches, *, seed: int) -> Measurements:
    """Measure within-patch edges in the geometries ``points`` (P, n, d).

    An edge joins a cell to its ``NEAR`` nearest cells in the geometry of any patch, and to about ``FAR`` others, so that the
    global shape is held. Every patch that holds both cells measures it: one that measured only the cells it puts close
    together would make distances too short. O(P n^2); memory O(P n (NEAR + FAR)), times the number of patches in which
    neighbours differ.
    """
    n_patches, size = patches.cells.shape
    rule = LongEdges.drawn(patches, seed=seed)
    step = max(1, _PAIRS // size**2)
    blocks = [slice(start, start + step) for start in range(0, n_patches, step)]
    found = [_edges(points[block].astype(np.float64), patches.cells[block], rule) for block in blocks]
    chosen = np.unique(np.concatenate(found))
    first, second = np.divmod(chosen, patches.n_cells)
    pointers = np.searchsorted(first, np.arange(patches.n_cells + 1))
    place = np.full(patches.n_cells, -1)  # where the cells of a patch stand in it
    parts = []
    for number, cells in enumerate(patches.cells):
        place[cells] = np.arange(size)
        count = pointers[cells + 1] - pointers[cells]
        at = np.repeat(pointers[cells] - np.cumsum(count) + count, count) + np.arange(count.sum())
        at = at[place[second[at]] >= 0]
        apart = points[number][place[first[at]]].astype(np.float64) - points[number][place[second[at]]]
        parts.append((at, np.full(len(at), number), np.sqrt((apart**2).sum(1))))
        place[cells] = -1
    at, patch, distance = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(at, kind="stable")  # patches ascend already
    shared = overlaps(patches.cells, patches.n_cells)
    return Measurements(chosen[at[order]], patch[order], distance[order], patches.n_cells, shared)


@dataclass(frozen=True)
class LongEdges:
    """A rule, the same in every patch, that says which pairs of cells are measured however far apart."""

    salt: NDArray[np.uint64]  # (N,)
    below: np.uint64

    @staticmethod
    def drawn(patches: Patches, *, seed: int) -> LongEdges:
        """About ``FAR`` pairs for each cell of a patch."""
        share = min(FAR / patches.cells.shape[1], 1)
        return LongEdges(hashed(seed, np.arange(patches.n_cells)), np.uint64(share * (2**64 - 2**11)))

    def __call__(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether pairs with first < second are measured."""
        return mix(self.salt[first] * np.uint64(3) + self.salt[second]) < self.below


def _edges(points: NDArray[np.float64], cells: NDArray[np.int64], rule: LongEdges) -> NDArray[np.int64]:
    """The pairs of cells that the rule chooses, or that are close in one of (B, n, d) geometries."""
    size = cells.shape[1]
    squares = (points**2).sum(-1)
    gram = points @ np.swapaxes(points, 1, 2)
    distance = squares[:, :, None] + squares[:, None] - 2 * gram  # (B, n, n), squared
    distance[:, np.arange(size), np.arange(size)] = np.inf
    close = np.zeros(distance.shape, bool)
    near = min(NEAR, size - 1)
    np.put_along_axis(close, np.argpartition(distance, near - 1, axis=2)[:, :, :near], True, axis=2)
    first, second = np.triu_indices(size, 1)
    chosen = close[:, first, second] | close[:, second, first]  # (B, n (n - 1) / 2)
    chosen |= rule(cells[:, first], cells[:, second])
    row, column = np.nonzero(chosen)
    return np.unique(cells[row, first[column]] * len(rule.salt) + cells[row, second[column]])
