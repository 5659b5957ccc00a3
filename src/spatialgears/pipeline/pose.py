"""How the cells lie on a slide: the rigid motion from the map's coordinates to the slide's own, and how good it is.

A reconstruction says where the spots of each training slide lie among the cells. The slide's own coordinates of the
same spots are known, so the pose, with its reflection, follows and need not be guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.spatial import KDTree

from spatialgears.metrics.points import lay_on, spot_pitch

SAME_SPOT = 0.1  # spot spacings within which two positions are one spot
OVER_TISSUE = 1.5  # spot spacings from a spot within which a cell lies over tissue


@dataclass(frozen=True, eq=False)
class Pose:
    """``coords @ matrix + shift`` are coordinates of the slide."""

    matrix: np.ndarray  # (2, 2) rotation, reflection and scale
    shift: np.ndarray  # (2,) in units of the slide

    def __call__(self, coords: Any) -> np.ndarray:
        """Positions (n, 2) of the map on the slide."""
        return np.asarray(coords, dtype=np.float64) @ self.matrix + self.shift

    @property
    def scale(self) -> float:
        """Units of the slide to one of the map."""
        return float(np.sqrt(abs(np.linalg.det(self.matrix))))

    @property
    def mirrored(self) -> bool:
        """Whether the map is a mirror image of the slide."""
        return bool(np.linalg.det(self.matrix) < 0)

    def turned(self, other: Pose) -> float:
        """Degrees between this pose and another of the same reflection, 0 to 180."""
        cosine = np.trace(self.matrix.T @ other.matrix) / 2
        size = np.sqrt(abs(np.linalg.det(self.matrix) * np.linalg.det(other.matrix)))
        return float(np.degrees(np.arccos(np.clip(cosine / size, -1, 1))))

    @classmethod
    def between(cls, among_cells: Any, on_slide: Any) -> Pose:
        """The motion that takes spots (n, 2) among the cells to their own coordinates (n, 2) on the slide."""
        source, target = (np.asarray(part, dtype=np.float64) for part in (among_cells, on_slide))
        x, y = source - source.mean(0), target - target.mean(0)
        matrix = lay_on(x, y) * np.sqrt(np.square(y).sum() / np.square(x).sum())
        return cls(matrix, target.mean(0) - source.mean(0) @ matrix)


@dataclass(frozen=True, eq=False)
class OnSlide:
    """How the cells lie on one slide."""

    slide: str  # name of the slide
    pose: Pose  # from the map's coordinates to the slide's own, in its own units
    pitch: float  # distance of neighbouring spots, in units of the slide
    corners: np.ndarray  # (2, 2) smallest and largest x and y of its spots, which identify the slide
    #: Share of the cells within 1.5 pitches of a spot; cells that no slide supports do not count.
    coverage: float
    #: The fit of cells to spots by expression alone, as :func:`spatialgears.tl.register` gives it; empty without the
    #: slide's expression.
    matched: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, slide: str, pose: Pose, spots: np.ndarray, *, coords: Any, outside: Any) -> OnSlide:
        """Of cells (n, 2), some of them ``outside`` (n,), over spots (m, 2)."""
        pitch = spot_pitch(spots)
        covered = coverage(pose(coords), spots, outside, pitch=pitch)
        return cls(slide, pose, pitch, np.stack([spots.min(0), spots.max(0)]), covered)

    def facts(self) -> dict[str, Any]:
        """What ``uns`` holds of it: plain numbers, arrays and text."""
        kept = ("n_matches", "agreement", "residual", "explained")
        return {
            "slide": self.slide,
            "matrix": self.pose.matrix / self.pose.scale,
            "scale": self.pose.scale,
            "shift": self.pose.shift,
            "mirrored": self.pose.mirrored,
            "pitch": self.pitch,
            "corners": self.corners,
            "coverage": self.coverage,
            "method": "model",
            **{name: self.matched[name] for name in kept if name in self.matched},
        }


def coverage(coords: np.ndarray, spots: np.ndarray, outside: Any, *, pitch: float) -> float:
    """Share of the cells (n, 2) over tissue, of those that are not ``outside`` (n,)."""
    inside = ~np.asarray(outside, dtype=bool)
    near = KDTree(spots).query(coords)[0] <= OVER_TISSUE * pitch
    return float(near[inside].mean()) if inside.any() else 0.0


def fit_pose(fit: Mapping[str, Any]) -> Pose:
    """The pose that :func:`spatialgears.analysis.register` found."""
    return Pose(fit["scale"] * np.asarray(fit["matrix"]), np.asarray(fit["shift"]))


def known_poses(
    among_cells: Sequence[Any], measured: Sequence[Any], given: Sequence[Any]
) -> list[Pose | None]:
    """The pose for each given slide, (m, 2) coordinates; None for one that the model was not fitted on.

    ``among_cells`` and ``measured`` (n, 2) are spots of each training slide: where they lie among the cells of a
    reconstruction, and in the slide's own coordinates.
    """
    found: list[Pose | None] = []
    for coords in given:
        tree, limit = KDTree(coords), SAME_SPOT * spot_pitch(coords)
        match = next((i for i, spots in enumerate(measured) if tree.query(spots)[0].max() <= limit), None)
        found.append(None if match is None else Pose.between(among_cells[match], measured[match]))
    return found
