"""The anatomy of a simulated organ: outline, lumen, layers, follicles, vessels, and who lives where.

Everything is a smooth function of a point of the section plane and of the depth ``z`` at which the organ is
cut, so that neighbouring sections resemble each other. Lengths are in units of the organ's radius.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit

#: From the surface to the lumen, then the two regions that lie across the layers.
DOMAINS = ("capsule", "outer cortex", "inner cortex", "medulla", "lining", "follicle", "pole")

#: Share of each cell type in each domain (columns as in DOMAINS); vessels add to it.
CELL_TYPES: dict[str, tuple[float, ...]] = {
    "capsular fibroblast": (0.70, 0.02, 0.00, 0.00, 0.00, 0.00, 0.05),
    "parenchyma A": (0.05, 0.60, 0.12, 0.02, 0.00, 0.04, 0.15),
    "parenchyma B": (0.03, 0.15, 0.58, 0.10, 0.00, 0.04, 0.08),
    "medullary": (0.00, 0.01, 0.10, 0.62, 0.10, 0.00, 0.02),
    "epithelial": (0.00, 0.00, 0.00, 0.04, 0.74, 0.00, 0.00),
    "goblet": (0.00, 0.00, 0.00, 0.00, 0.08, 0.00, 0.00),
    "follicular": (0.00, 0.01, 0.02, 0.00, 0.00, 0.62, 0.02),
    "progenitor": (0.00, 0.00, 0.01, 0.01, 0.02, 0.00, 0.50),
    "fibroblast": (0.10, 0.07, 0.06, 0.10, 0.03, 0.04, 0.08),
    "endothelial": (0.05, 0.06, 0.05, 0.05, 0.01, 0.04, 0.04),
    "smooth muscle": (0.02, 0.01, 0.01, 0.01, 0.00, 0.01, 0.01),
    "macrophage": (0.03, 0.04, 0.03, 0.03, 0.01, 0.06, 0.03),
    "T cell": (0.02, 0.03, 0.02, 0.02, 0.01, 0.15, 0.02),
}
_SHARES = np.array(list(CELL_TYPES.values())).T  # (domains, types)
_TYPE = {name: i for i, name in enumerate(CELL_TYPES)}

_HALF_LENGTH, _HALF_HEIGHT, _BEND = 1.4, 0.8, 1.0  # a bean: an ellipse bent along a circle of radius _BEND
_BORDERS = np.array([0.05, 0.36, 0.62, 0.86])  # of the layers, as laminar depth
_BLUR = 0.022  # width over which neighbouring domains mix
BOX = 2.5  # half the side of a square around any organ of this family


@dataclass(frozen=True)
class Waves:
    """A smooth random field of unit variance over the plane and depth: a sum of plane waves."""

    frequency: np.ndarray  # (waves, 3)
    phase: np.ndarray  # (waves,)

    @classmethod
    def draw(cls, rng: np.random.Generator, wavelength: float, *, n_waves: int = 16) -> Waves:
        """A field whose bumps are about half a ``wavelength`` wide."""
        angle = rng.uniform(0, 2 * np.pi, n_waves)
        size = 2 * np.pi / wavelength * rng.uniform(0.6, 1.2, n_waves)
        flat = np.column_stack([np.cos(angle), np.sin(angle)]) * size[:, None]
        frequency = np.column_stack([flat, rng.normal(size=n_waves) * size / 2])
        return cls(frequency, rng.uniform(0, 2 * np.pi, n_waves))

    def __call__(self, points: np.ndarray, z: float) -> np.ndarray:
        """The field at (n, 2) points cut at depth ``z``: (n,)."""
        phase = (self.phase + z * self.frequency[:, 2]).astype(np.float32)
        angle = points.astype(np.float32) @ self.frequency[:, :2].T.astype(np.float32) + phase  # (n, waves)
        return np.sqrt(2 / len(phase)) * np.cos(angle).sum(1, dtype=float)


@dataclass(frozen=True)
class Warp:
    """A smooth displacement of the plane, of root-mean-square ``size`` per coordinate."""

    x: Waves
    y: Waves
    size: float

    @classmethod
    def draw(cls, rng: np.random.Generator, wavelength: float, *, size: float) -> Warp:
        """A random displacement field."""
        return cls(Waves.draw(rng, wavelength), Waves.draw(rng, wavelength), size)

    def __call__(self, points: np.ndarray, z: float) -> np.ndarray:
        """The displacement (n, 2) of (n, 2) points."""
        return self.size * np.column_stack([self.x(points, z), self.y(points, z)])


@dataclass(frozen=True)
class Anatomy:
    """One individual's organ. ``draw`` makes one; ``relative`` makes another individual of the same kind."""

    warps: tuple[Warp, ...]  # deformations of the plane, added up
    borders: np.ndarray  # (4,) laminar depth of the layers' borders
    lumen: np.ndarray  # (2,) centre
    ruffle: Waves  # undulation of the layers
    follicles: np.ndarray  # (k, 4): x, y, z, radius
    vessels: np.ndarray  # (k, 3): x, y, radius of large vessels
    capillaries: Waves  # small vessels run along its zero lines
    patches: tuple[Waves, ...]  # fields that some genes follow

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Anatomy:
        """A random organ."""
        follicles, vessels = _islands(rng)
        return cls(
            warps=(Warp.draw(rng, 2.2, size=0.05),),
            borders=_BORDERS,
            lumen=np.array([-0.12, -0.12]) + rng.normal(scale=0.03, size=2),
            ruffle=Waves.draw(rng, 0.55),
            follicles=follicles,
            vessels=vessels,
            capillaries=Waves.draw(rng, 0.75),
            patches=tuple(Waves.draw(rng, wavelength) for wavelength in (1.8, 1.8, 1.2, 1.2, 0.8)),
        )

    def relative(self, rng: np.random.Generator) -> Anatomy:
        """Another individual: layers of other thickness, follicles and vessels elsewhere."""
        follicles, vessels = _islands(rng)
        thickness = np.diff(np.r_[0, self.borders, 1]) * np.exp(rng.normal(scale=0.2, size=5))
        return replace(
            self,
            warps=(Warp.draw(rng, 2.2, size=0.09),),
            borders=np.cumsum(thickness)[:-1] / thickness.sum(),
            lumen=self.lumen + rng.normal(scale=0.06, size=2),
            ruffle=Waves.draw(rng, 0.55),
            follicles=follicles,
            vessels=vessels,
            capillaries=Waves.draw(rng, 0.75),
        )

    def deformed(self, rng: np.random.Generator, size: float) -> Anatomy:
        """The same organ on another slide, stretched a little by cutting and mounting."""
        return replace(self, warps=(*self.warps, Warp.draw(rng, 1.6, size=size)))

    def inside(self, points: np.ndarray, z: float) -> np.ndarray:
        """Whether (n, 2) points of the section at depth ``z`` are tissue: not lumen, vessel or outside."""
        position = self._locate(points, z)
        return (position.surface > 0) & (position.cavity > 0) & (position.vessel > 0.62)

    def at(self, points: np.ndarray, z: float) -> Site:
        """What is found at (n, 2) points of the tissue."""
        position = self._locate(points, z)
        depth = position.surface / np.maximum(position.surface + position.cavity, 1e-9)
        laminar = np.clip(depth, 0, 1) + 0.022 * self.ruffle(position.bent, z)
        domains = self._domains(position.organ, laminar, z)
        return Site(
            domains=domains,
            types=self._types(position, domains, z),
            fields=self._fields(position, laminar, z),
        )

    def _locate(self, points: np.ndarray, z: float) -> _Position:
        bent = points + sum(warp(points, z) for warp in self.warps)
        up = _BEND - bent[:, 1]
        x = _BEND * np.arctan2(bent[:, 0], up) / _HALF_LENGTH
        y = (_BEND - np.hypot(bent[:, 0], up)) / _HALF_HEIGHT
        organ = np.column_stack([x, y])
        vessel = np.min(_distances(organ, self.vessels[:, :2]) / self.vessels[:, 2], axis=1)
        return _Position(bent, organ, 1 - np.hypot(x, y), self._cavity(x, y, z), vessel)

    def _cavity(self, x: np.ndarray, y: np.ndarray, z: float) -> np.ndarray:
        """The lumen: a folded ellipse that drifts and narrows with depth."""
        dx, dy = x - self.lumen[0] - 0.1 * z, y - self.lumen[1]
        angle = np.arctan2(dy / 0.6, dx)
        folds = 1 + 0.14 * np.cos(7 * angle + 2 * z) + 0.06 * np.cos(3 * angle + 1)
        radius = (0.34 - 0.04 * z) * folds
        return np.hypot(dx, dy / 0.6) - radius

    def _domains(self, organ: np.ndarray, laminar: np.ndarray, z: float) -> np.ndarray:
        """Soft membership (n, domains), rows summing to one."""
        below = expit((laminar[:, None] - self.borders) / _BLUR)  # (n, 4)
        padded = np.column_stack([np.ones(len(below)), below, np.zeros(len(below))])
        layers = padded[:, :-1] - padded[:, 1:]  # (n, 5)
        radius = np.sqrt(np.maximum(self.follicles[:, 3] ** 2 - (self.follicles[:, 2] - z) ** 2 / 9, 1e-6))
        nearest = np.max(radius - _distances(organ, self.follicles[:, :2]), axis=1)
        deep = layers[:, 1:4].sum(1)  # neither capsule nor lining
        follicle = deep * expit(nearest / 0.012)
        pole = (deep - follicle) * expit((organ[:, 0] + 0.25 * organ[:, 1] - 0.66) / 0.04)
        layers[:, 1:4] *= ((deep - follicle - pole) / np.maximum(deep, 1e-12))[:, None]
        return np.column_stack([layers, follicle, pole])

    def _types(self, position: _Position, domains: np.ndarray, z: float) -> np.ndarray:
        """Probability of each cell type (n, types): the domains' shares, a graded mixture, vessels."""
        bent, vessel = position.bent, position.vessel
        types = domains @ _SHARES
        a, b = _TYPE["parenchyma A"], _TYPE["parenchyma B"]
        tilt = expit(1.6 * bent[:, 0])  # parenchyma A gives way to B along the organ
        pool = types[:, a] + types[:, b]
        share = pool * expit(
            np.log(np.maximum(types[:, a], 1e-9) / np.maximum(types[:, b], 1e-9)) + 1.4 - 2.8 * tilt
        )
        types[:, a], types[:, b] = share, pool - share
        capillary = np.exp(-((self.capillaries(bent, z) / 0.09) ** 2)) * (1 - domains[:, 4])
        types[:, _TYPE["endothelial"]] += 0.5 * capillary
        wall = expit((1.25 - vessel) / 0.06)
        types[:, _TYPE["endothelial"]] += 12 * wall * (vessel < 0.85)
        types[:, _TYPE["smooth muscle"]] += 6 * wall
        return types / types.sum(1, keepdims=True)

    def _fields(self, position: _Position, laminar: np.ndarray, z: float) -> np.ndarray:
        """Graded programmes (n, fields), each of about unit variance over the organ; see ``FIELDS``."""
        pole, hilum = np.array([[1.0, 0.0]]), np.array([[-0.3, -0.9]])
        return np.column_stack(
            [
                2.0 * position.organ[:, 0],
                2.2 * position.organ[:, 1],
                3.6 * (laminar - 0.45),
                4.5 * np.exp(-_distances(position.organ, pole)[:, 0] / 0.5) - 1.1,
                4.5 * np.exp(-_distances(position.organ, hilum)[:, 0] / 0.5) - 1.3,
                *[field(position.bent, z) for field in self.patches],
            ]
        )


#: The graded programmes: two axes, laminar depth, two morphogens, then patchy ones.
FIELDS = (
    "long axis",
    "short axis",
    "laminar",
    "pole morphogen",
    "hilum morphogen",
    *(f"patch {i}" for i in range(1, 6)),
)


@dataclass(frozen=True)
class Site:
    """What the anatomy says of n points of the tissue."""

    domains: np.ndarray  # (n, domains) soft membership
    types: np.ndarray  # (n, types) probability
    fields: np.ndarray  # (n, fields)

    def __getitem__(self, index: np.ndarray | slice) -> Site:
        return Site(self.domains[index], self.types[index], self.fields[index])


@dataclass(frozen=True)
class _Position:
    """Where n points are: in the plane after bending, in the organ's own frame, and from its walls."""

    bent: np.ndarray  # (n, 2)
    organ: np.ndarray  # (n, 2), the unit disc
    surface: np.ndarray  # (n,) depth below the surface, negative outside
    cavity: np.ndarray  # (n,) distance from the lumen's wall, negative in the lumen
    vessel: np.ndarray  # (n,) distance from the nearest large vessel, in its radii


def _islands(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Follicles (9, 4) in the cortex and large vessels (5, 3), spread around the organ."""
    turn = (np.arange(9) + rng.uniform(-0.25, 0.25, 9)) * 2 * np.pi / 9 + rng.uniform(0, 2 * np.pi)
    ring = rng.uniform(0.68, 0.78, 9)
    follicles = np.column_stack(
        [ring * np.cos(turn), ring * np.sin(turn), rng.normal(0, 0.2, 9), rng.uniform(0.07, 0.13, 9)]
    )
    turn = (np.arange(5) + rng.uniform(-0.3, 0.3, 5)) * 2 * np.pi / 5 + rng.uniform(0, 2 * np.pi)
    ring = rng.uniform(0.5, 0.62, 5)
    return follicles, np.column_stack([ring * np.cos(turn), ring * np.sin(turn), rng.uniform(0.03, 0.06, 5)])


def _distances(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """(n, k) Euclidean distances."""
    return np.hypot(points[:, :1] - centres[:, 0], points[:, 1:] - centres[:, 1])
