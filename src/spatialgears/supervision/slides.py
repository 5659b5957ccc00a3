"""A slide in canonical units: centred, with unit root-mean-square radius (section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spatialgears.errors import InputError


@dataclass(frozen=True)
class Frame:
    """The frame of a slide's canonical coordinates: ``slide = canonical * scale + centre``."""

    centre: np.ndarray
    scale: float

    def to_slide(self, coords: np.ndarray) -> np.ndarray:
        """Canonical coordinates (n, 2) in the slide's own units."""
        return np.asarray(coords) * self.scale + self.centre


def canonicalise(coords: np.ndarray) -> tuple[np.ndarray, Frame]:
    """Centre a slide's coordinates (n, 2) and scale them to unit RMS radius; and the frame that maps them back.

    So slides of any unit and size are comparable.
    """
    coords = np.asarray(coords, dtype=np.float64)
    if coords.ndim != 2 or coords.shape[1] != 2 or len(coords) < 3:
        raise InputError(
            f"Spot coordinates must be an array (spots, 2) with 3 spots or more, found shape {coords.shape}.",
            "Keep the two in-plane coordinates of each spot.",
        )
    if not np.isfinite(coords).all():
        bad = int((~np.isfinite(coords).all(axis=1)).sum())
        raise InputError(f"{bad} spots have coordinates that are not finite.", "Remove these spots first.")
    centre = coords.mean(axis=0)
    scale = float(np.sqrt(((coords - centre) ** 2).sum(axis=1).mean()))
    if scale <= 1e-12 * max(1.0, float(np.abs(centre).max())):
        raise InputError("All spots lie at one point.", "Check that the right coordinates were read.")
    return (coords - centre) / scale, Frame(centre, scale)
