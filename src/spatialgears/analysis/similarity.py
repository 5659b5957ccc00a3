"""Maps of the plane fitted to matched points: rotation, reflection, shift, scale, and a smooth deformation.

Points are complex numbers here: every map that keeps shapes is ``z -> a z + b``, or ``a conj(z) + b`` if it mirrors,
with ``|a|`` its scale. The least-squares ``a`` is one sum, so hundreds of trial fits are one array operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TRIALS, JUDGES = 500, 2000  # random minimal fits, and matches that judge each
TUKEY = 4.685  # in robust standard deviations: 95% efficient where there are no outliers
BLOCKS_ALONG = 5  # blocks of the layout that are held out together
CELLS_ALONG = 12  # cells of the grid on which residuals are averaged, along the longer side
SMOOTHINGS = (1.0, 10.0, 100.0, 1000.0)

Complex = NDArray[np.complex128]


@dataclass(frozen=True)
class Similarity:
    """``z -> factor z + shift``, of the mirrored z if ``mirrored``."""

    factor: complex
    shift: complex
    mirrored: bool

    def __call__(self, points: NDArray[Any]) -> NDArray[np.float64]:
        """Map points (n, 2)."""
        return to_points(self.complex(to_complex(points)))

    def complex(self, z: Complex) -> Complex:
        """Map complex numbers."""
        return self.factor * (z.conj() if self.mirrored else z) + self.shift

    @property
    def scale(self) -> float:
        """Length of the image of a unit."""
        return abs(self.factor)

    @property
    def matrix(self) -> NDArray[np.float64]:
        """(2, 2) orthogonal matrix Q, with ``mapped = scale * points @ Q + shift``."""
        corners = np.eye(2)
        return (self(corners) - self(np.zeros((1, 2)))) / self.scale


def to_complex(points: NDArray[Any]) -> Complex:
    """(n, 2) points as complex numbers (n,)."""
    points = np.asarray(points, dtype=np.float64)
    return points[..., 0] + 1j * points[..., 1]


def to_points(z: Complex) -> NDArray[np.float64]:
    """Complex numbers (n,) as points (n, 2)."""
    return np.stack([z.real, z.imag], axis=-1)


def robust_similarity(
    source: NDArray[Any],
    target: NDArray[Any],
    *,
    weights: NDArray[Any],
    scale: float | None,
    rng: np.random.Generator,
) -> tuple[Similarity, NDArray[np.float64]]:
    """The map of matched points that most of them agree on, and the weight (n,) in [0, 1] that each was left with.

    Fits to random triples of matches compete in the mean of the smaller half of their residuals (least trimmed squares);
    the winner is refined with Tukey's weights, which ignore matches far off. Up to half of the matches may be wrong.

    ``source`` and ``target`` (n, 2) are matched points, and ``weights`` (n,) say how far each match is trusted to begin
    with. A ``scale`` that is given is kept to.
    """
    s, t = to_complex(source), to_complex(target)
    triples = rng.integers(len(s), size=(TRIALS, 3))  # (trials, 3)
    judges = np.arange(len(s)) if len(s) <= JUDGES else np.sort(rng.choice(len(s), JUDGES, replace=False))
    best = _fit(s, t, weights, scale)
    half = len(judges) // 2 + 1
    lowest = np.square(np.sort(np.abs(best.complex(s[judges]) - t[judges]))[:half]).mean()
    for mirrored in (False, True):
        factor, shift = _fit_many(s[triples], t[triples], scale, mirrored)
        moved = factor[:, None] * (s[judges].conj() if mirrored else s[judges]) + shift[:, None]
        gap = np.sort(np.abs(moved - t[judges]), axis=1)[:, :half]  # (trials, half)
        cost = np.where(np.abs(factor) > 1e-12, np.square(gap).mean(1), np.inf)
        winner = int(np.argmin(cost))
        if cost[winner] < lowest:
            lowest, best = cost[winner], Similarity(complex(factor[winner]), complex(shift[winner]), mirrored)
    kept = np.ones(len(s))
    floor = 1e-9 * max(float(np.abs(t - t.mean()).max()), 1e-300)
    for _ in range(50):
        gap = np.abs(best.complex(s) - t)
        reach = TUKEY * max(float(np.median(gap)) / 1.1774, floor)  # median of a Rayleigh law
        kept = np.square(np.clip(1 - np.square(gap / reach), 0, None))
        previous, best = best, _fit(s, t, weights * kept, scale)
        if (
            abs(best.factor - previous.factor) + abs(best.shift - previous.shift) / (np.abs(t).max() + 1e-300)
            < 1e-12
        ):
            break
    return best, kept


def _fit(s: Complex, t: Complex, weights: NDArray[Any], scale: float | None) -> Similarity:
    """Weighted least squares over rotations, and over rotations of the mirror image; the better of the two."""
    weights = weights / weights.sum()
    centre_s, centre_t = complex(weights @ s), complex(weights @ t)
    u, v = s - centre_s, t - centre_t
    turned, mirrored = complex(weights @ (u.conj() * v)), complex(weights @ (u * v))
    mirror = abs(mirrored) > abs(turned)
    factor = mirrored if mirror else turned
    spread = float(weights @ np.square(np.abs(u)))
    factor = factor / (spread or 1.0) if scale is None else scale * factor / (abs(factor) or 1.0)
    return Similarity(factor, centre_t - factor * (centre_s.conjugate() if mirror else centre_s), mirror)


def _fit_many(s: Complex, t: Complex, scale: float | None, mirrored: bool) -> tuple[Complex, Complex]:
    """Least squares for every row of matches (trials, m), all mirrored or none."""
    s = s.conj() if mirrored else s
    centre_s, centre_t = s.mean(1), t.mean(1)
    u, v = s - centre_s[:, None], t - centre_t[:, None]
    factor = (u.conj() * v).sum(1)
    if scale is None:
        factor = factor / np.maximum(np.square(np.abs(u)).sum(1), 1e-300)
    else:
        factor = scale * factor / np.maximum(np.abs(factor), 1e-300)
    return factor, centre_t - factor * centre_s


@dataclass(frozen=True, eq=False)
class Deformation:
    """A smooth displacement of the plane, from averaged residuals of matches (thin-plate spline)."""

    points: NDArray[np.float64]
    moves: NDArray[np.float64]
    smoothing: NDArray[np.float64]

    def __call__(self, points: NDArray[Any]) -> NDArray[np.float64]:
        """The points (n, 2), displaced."""
        from scipy.interpolate import RBFInterpolator

        spline = RBFInterpolator(
            self.points, self.moves, smoothing=self.smoothing, kernel="thin_plate_spline", degree=1
        )
        return points + spline(points)


def smooth_deformation(
    source: NDArray[Any], target: NDArray[Any], *, weights: NDArray[Any], rng: np.random.Generator
) -> Deformation | None:
    """The thin-plate deformation that best predicts matches it has not seen, or None if none does better than none.

    ``source`` and ``target`` (n, 2) are matched points in one frame; matches of ``weights`` (n,) 0 are left out. ``rng``
    splits the blocks of the layout into four parts.
    """
    blocks = grid_cells(
        source, BLOCKS_ALONG
    )  # errors of neighbouring matches are correlated: whole blocks are held out
    part = rng.permutation(np.arange(blocks.max() + 1) % 4)[blocks]
    error = np.zeros(len(SMOOTHINGS) + 1)
    for fold in range(4):
        fit, held = part != fold, (part == fold) & (weights > 0)
        layouts = [source[held]]
        for smoothing in SMOOTHINGS:
            found = _averaged(source[fit], target[fit], weights[fit], smoothing)
            layouts.append(source[held] if found is None else found(source[held]))
        error += [weights[held] @ np.square(layout - target[held]).sum(1) for layout in layouts]
    best = int(np.argmin(error))
    return None if best == 0 else _averaged(source, target, weights, SMOOTHINGS[best - 1])


def grid_cells(points: NDArray[Any], along: int) -> NDArray[np.int64]:
    """The cell (n,) of each point in a grid of ``along`` cells on the longer side, numbered as they occur."""
    low, extent = points.min(0), float(np.ptp(points, axis=0).max()) or 1.0
    place = np.minimum((points - low) / extent * along, along - 1).astype(np.int64)
    return np.unique(place @ [along, 1], return_inverse=True)[1]


def _averaged(
    source: NDArray[Any], target: NDArray[Any], weights: NDArray[Any], smoothing: float
) -> Deformation | None:
    """Residuals averaged over the cells of a grid; a cell of little weight is smoothed more."""
    cell, extent = grid_cells(source, CELLS_ALONG), float(np.ptp(source, axis=0).max()) or 1.0
    mass = np.bincount(cell, weights)
    kept = mass > 0
    if kept.sum() < 6:
        return None
    sums = [np.bincount(cell, weights * values)[kept] for values in (*source.T, *(target - source).T)]
    x, y, dx, dy = (total / mass[kept] for total in sums)
    # the spline's energy scales with the square of lengths: smoothing is in units of the layout's extent
    penalty = smoothing * extent**2 * 1e-4 * mass.mean() / mass[kept]
    return Deformation(np.column_stack([x, y]), np.column_stack([dx, dy]), penalty)
