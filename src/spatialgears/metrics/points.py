"""What every metric needs of its points: checks that teach, the canonical frame, pairwise distances.

Distances are float32 (computed in float64, then rounded): half the memory, and the ties of points on a
lattice are ties again instead of differing in their last bit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import KDTree
from scipy.spatial.distance import pdist

from spatialgears.errors import InputError

#: More points than this have too many pairs (800 million) to hold at once.
MAX_PAIRED_POINTS = 40_000


def check_points(points: ArrayLike, name: str = "coords") -> NDArray[np.float64]:
    """The points as a float64 array (n, 2), or an error that says what is wrong with ``name``."""
    array = np.asarray(points, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != 2 or not len(array):
        raise InputError(
            f"{name} must have shape (n, 2) with n > 0, found {array.shape}.",
            "Give one row with two coordinates per cell, for example adata.obsm['spatial'][:, :2].",
        )
    bad = int((~np.isfinite(array)).any(axis=1).sum())
    if bad:
        raise InputError(
            f"{name} has NaN or infinite values in {bad} of {len(array)} rows.",
            "Drop these cells from both coords and truth before scoring.",
        )
    return array


def check_size(n: int, k: int) -> None:
    """Refuse a neighbourhood size that ``n`` points cannot have; ``k + 2`` are needed."""
    if k < 1 or n < k + 2:
        raise InputError(
            f"k = {k} neighbours need k >= 1 and at least k + 2 points, found {n} points.",
            "Give another k, or score more cells.",
        )


def check_pair(coords: ArrayLike, truth: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Predicted and true points, checked one by one and against each other."""
    predicted, true = check_points(coords, "coords"), check_points(truth, "truth")
    if len(predicted) != len(true):
        raise InputError(
            f"coords and truth must describe the same cells, found {len(predicted)} and {len(true)} rows.",
            "Bring both into the same order first, for example truth[rec.obs_names].",
        )
    return predicted, true


def canonical(points: ArrayLike) -> NDArray[np.float64]:
    """The points (n, 2) centred and scaled to unit RMS radius, the frame in which metrics are computed.

    Parameters
    ----------
    points
        Coordinates (n, 2).

    Returns
    -------
    ndarray (n, 2)
        The same layout in the frame of the metrics.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> sg.metrics.canonical([[0.0, 0.0], [4.0, 0.0]]).tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    """
    array = check_points(points)
    centred = array - array.mean(axis=0)
    radius = np.sqrt((centred**2).sum(axis=1).mean())
    if not radius > 1e-12 * np.abs(array).max():
        raise InputError(
            f"All {len(array)} points lie in the same place, so there is no layout to score.",
            "Check that coordinates and not a constant were given.",
        )
    return centred / radius


def condensed(points: NDArray[np.float64]) -> NDArray[np.float32]:
    """Distances of all pairs i < j, the paper's vec of the upper triangle, shape (n (n - 1) / 2,)."""
    if len(points) > MAX_PAIRED_POINTS:
        raise InputError(
            f"{len(points)} points have too many pairs to hold at once (at most {MAX_PAIRED_POINTS} points).",
            "Use metrics.evaluate, which samples pairs with a fixed seed, or score a subset of the cells.",
        )
    return pdist(points).astype(np.float32)


def as_distances(coords: ArrayLike, truth: ArrayLike) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Predicted and true condensed distances.

    Each argument is coordinates (n, 2), which are brought to the canonical frame, or condensed distances
    (n (n - 1) / 2,), which are taken as they are.
    """
    predicted, true = _one_side(coords, "coords"), _one_side(truth, "truth")
    if predicted.shape != true.shape:
        raise InputError(
            f"coords and truth must describe the same pairs, found {predicted.size} and {true.size} pairs.",
            "Bring both into the same order of the same cells first.",
        )
    if predicted.size < 2:
        raise InputError(f"At least 3 points are needed, found {predicted.size} pairs.", "Score more cells.")
    return predicted, true


def _one_side(values: ArrayLike, name: str) -> NDArray[np.float32]:
    if np.ndim(values) != 1:
        return condensed(canonical(check_points(values, name)))
    array = np.asarray(values, dtype=np.float32)
    if not np.isfinite(array).all() or (array < 0).any():
        raise InputError(
            f"{name}: distances must be finite and not negative.", "Check how they were computed."
        )
    return array


def spot_pitch(coords: NDArray[np.float64]) -> float:
    """The distance of neighbouring spots: the median distance to the nearest one that lies elsewhere."""
    distinct = np.unique(coords, axis=0)
    distance, _ = KDTree(distinct).query(distinct, k=2)
    return float(np.median(distance[:, 1]))


def lay_on(source: NDArray[np.floating], target: NDArray[np.floating]) -> NDArray[np.float64]:
    """The (..., d, e) matrix Q with orthonormal columns that minimises ``|source Q - target|``, both centred.

    Batched over leading dimensions; rotations, reflections and projections onto the target's dimension are
    allowed; e is at most d.
    """
    left, _, right = np.linalg.svd(np.swapaxes(source, -1, -2) @ target, full_matrices=False)
    return left @ right
