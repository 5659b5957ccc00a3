"""Poses: the principal plane of a geometry, and canonical coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Canonical:
    """Coordinates in a pose that depends only on the layout."""

    #: (N, 2) centred, along principal axes, in the scale given (units: RMS radius of the training slides).
    coords: NDArray[np.float64]
    rms: float  # their RMS radius; ``coords / rms`` has unit RMS radius


def principal_plane(geometry: NDArray[Any]) -> tuple[NDArray[np.float64], float]:
    """The two leading principal coordinates of (N, d) points and their share of variance; O(N d^2)."""
    centred = np.asarray(geometry, np.float64)
    centred = centred - centred.mean(0)
    if centred.shape[1] < 2:
        centred = np.pad(centred, ((0, 0), (0, 2 - centred.shape[1])))
    variance, axes = np.linalg.eigh(centred.T @ centred)
    total = variance.sum()
    return centred @ axes[:, :-3:-1], float(variance[-2:].sum() / total) if total > 0 else 1.0


def canonical(coords: NDArray[Any]) -> Canonical:
    """Centre, rotate to principal axes, and flip each axis so that its longer tail is positive."""
    plane, _ = principal_plane(coords)
    tail = (plane**3).sum(0)
    plane = plane * np.where(tail < 0, -1.0, 1.0)
    return Canonical(plane, float(np.sqrt((plane**2).sum(1).mean())))
