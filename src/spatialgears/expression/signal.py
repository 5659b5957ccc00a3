"""The part of expression that neighbouring spots share: a linear filter that keeps spatial signal and drops noise.

The noise of neighbouring spots is independent, so the covariance *between* neighbours contains signal alone. Its leading
directions are the expression programmes that vary over the tissue. On whole transcriptomes, where a few hundred spots are
described by a thousand genes, a network that sees only these directions cannot memorise the spots' noise.

With so few spots, the directions contain some noise of the spots they were found with. Neighbouring spots would share that
noise, which reveals their position; cells do not. To prevent this leakage, spots are projected on directions that were
found without them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor

from spatialgears.config import ExpressionConfig
from spatialgears.expression.panel import NEIGHBORS, WHOLE_TRANSCRIPTOME
from spatialgears.expression.views import SpotViews
from spatialgears.runtime.seeds import numpy_rng, torch_rng

logger = logging.getLogger(__name__)

#: Fewest directions that are kept, and how far others must exceed the noise.
FEWEST, ABOVE_NOISE = 20, 1.5
#: Views of each spot that are averaged, and spots of a slide that are used at most.
VIEWS, MOST_SPOTS = 8, 10_000
#: Parts of the spots, each projected on the directions of the others.
PARTS = 5


@dataclass(frozen=True)
class Signal:
    """The directions of expression that the generators see."""

    axes: Tensor  # (G, k) found with all spots, for cells
    #: (G, k) each: projects a profile on the directions found without one part of the spots, and gives the projection's
    #: coordinates along ``axes``.
    apart: list[Tensor]
    part: Tensor  # (n_spots,) the part of each spot
    #: (k, k) covariance of the coordinates of a profile of length one when half of its genes, at random, are masked.
    noise: Tensor

    def of_spots(self, x: Tensor, index: Tensor) -> Tensor:
        """Coordinates (..., k) along ``axes`` of expression x (..., G) of spots ``index`` (...,).

        The expression is first projected on directions that were found without the spots.
        """
        flat, part = x.flatten(0, -2), self.part[index].flatten()
        seen = flat.new_empty(len(flat), self.axes.shape[1])
        for number, onto in enumerate(self.apart):
            mine = part == number
            seen[mine] = flat[mine] @ onto
        return seen.view(*x.shape[:-1], -1)


def uses_directions(config: ExpressionConfig, shared_genes: int) -> bool:
    """Whether the generators see coordinates along a few directions of expression instead of genes."""
    return config.signal == "spatial" or (config.signal == "auto" and shared_genes > WHOLE_TRANSCRIPTOME)


def shared_by_neighbours(
    views: SpotViews,
    coords: Sequence[np.ndarray],
    config: ExpressionConfig,
    *,
    seed: int,
    shared_genes: int,
) -> Signal | None:
    """The directions on which spots are projected, or None where the generators see every gene.

    The genes of a targeted panel were chosen because they are spatial, and all are used. Most of the ``shared_genes`` of a
    whole transcriptome carry noise.
    """
    if not uses_directions(config, shared_genes):
        return None
    slides, places, parts = [], [], []
    part = torch.randperm(views.n_spots, generator=torch_rng(seed, "signal")) % PARTS
    for number, (rows, xy) in enumerate(zip(views.rows, coords, strict=True)):
        centre = xy[numpy_rng(seed, "signal", number).integers(len(xy))]
        block = np.linalg.norm(xy - centre, axis=1).argsort(kind="stable")[:MOST_SPOTS]
        index = torch.from_numpy(rows.start + block)
        total = torch.zeros(len(block), views.n_genes)
        for view in range(VIEWS):
            total += views.draw(index, torch_rng(seed, "signal", number, view))
        slides.append(total / VIEWS)
        places.append(xy[block])
        parts.append(part[index].numpy())

    def found(without: int) -> Tensor:
        kept = [own != without for own in parts]
        some = [x[torch.from_numpy(keep)] for x, keep in zip(slides, kept, strict=True)]
        where = [xy[keep] for xy, keep in zip(places, kept, strict=True)]
        return spatial_signal(some, where)

    axes = found(without=-1)
    axes = axes @ random_rotation(axes.shape[1], torch_rng(seed, "signal", "rotation"))
    logger.info("spatial signal: %d directions of %d genes", axes.shape[1], axes.shape[0])
    others = [found(without=number) for number in range(PARTS)]
    apart = [other @ (other.T @ axes) for other in others]
    return Signal(axes, apart, part, masking_noise(torch.cat(slides), axes))


def random_rotation(k: int, generator: torch.Generator) -> Tensor:
    """A random orthogonal matrix (k, k).

    Adam scales the step of each weight separately. On the directions themselves, weights of the weakest, which are mostly
    noise, would change as fast as those of the strongest. A random rotation mixes them, as genes do.
    """
    return torch.linalg.qr(torch.randn(k, k, generator=generator)).Q


def masking_noise(x: Tensor, axes: Tensor) -> Tensor:
    """Covariance (k, k) of a profile's coordinates along ``axes`` (G, k) when genes are masked, per squared length.

    Masking gene g with probability 1/2, and doubling it otherwise, adds +-x_g a_g to the coordinates: the covariance is
    the sum of x_g^2 a_g a_g^T. Here it is averaged over profiles x (n, G), projected and brought to length one.
    """
    square = (x @ axes @ axes.T).square()
    share = (square / square.sum(1, keepdim=True).clamp_min(1e-12)).mean(0)  # (G,)
    return axes.T @ (share[:, None] * axes)


def spatial_covariance(slides: Sequence[Tensor], coords: Sequence[np.ndarray]) -> Tensor:
    """Covariance (G, G), made symmetric, of a spot's centred features (n_i, G) with the mean of its neighbours."""
    total = torch.zeros(slides[0].shape[1], slides[0].shape[1], dtype=torch.float64)
    for x, xy in zip(slides, coords, strict=True):
        k = min(NEIGHBORS, len(xy) - 1)
        near = KDTree(xy).query(xy, k=k + 1)[1]
        other = near != np.arange(len(xy))[:, None]
        other[other.all(1), -1] = False  # of spots at one point, the spot itself may be missing
        near = torch.from_numpy(near[other].reshape(len(xy), k))  # (n, k), without the spot itself
        around = torch.zeros_like(x)
        for column in near.T:
            around += x[column]
        cross = (x.T @ around).double() / k  # (G, G)
        total += (cross + cross.T) / 2
    return total / sum(map(len, slides))


def spatial_signal(slides: Sequence[Tensor], coords: Sequence[np.ndarray]) -> Tensor:
    """Orthonormal directions (G, k) of expression that vary in space beyond noise, the strongest first.

    Noise has eigenvalues on both sides of zero, signal has large positive ones. A direction is kept if its eigenvalue
    clearly exceeds the size of the most negative one. ``slides`` are features (n_i, G) of spots, standardised and
    weighted.
    """
    centred = [x - x.mean(0) for x in slides]
    basis = None
    if sum(map(len, centred)) < centred[0].shape[1]:  # fewer spots than genes span fewer directions
        basis = torch.linalg.qr(torch.cat(centred).T).Q  # (G, n)
        centred = [x @ basis for x in centred]
    size, axes = torch.linalg.eigh(spatial_covariance(centred, coords))
    count = max(int((size > -ABOVE_NOISE * size[0]).sum()), min(FEWEST, len(size)))
    axes = axes.flip(1)[:, :count].float()
    return axes.contiguous() if basis is None else basis @ axes
