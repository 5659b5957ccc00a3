"""Cells where the spots most like them in the embedding are: one more voice beside the generators.

A generator errs where cells differ from every spot it was trained on; the mean place of the spots nearest in stage A's
embedding, which has seen the cells, errs elsewhere. Spots that neither has seen tell how much to trust it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from spatialgears.supervision.targets import procrustes

NEAREST, MOST_NEAREST = 5, 20  # spots averaged: so many of each slide, no more of all
ROWS = 4000  # points compared with all spots at once


class NearestSpots(nn.Module):
    """Places by the nearest spots of all slides, in the frame of a given geometry.

    Poses of slides are unknown to one another: every slide places the points in its own frame, which is turned onto
    the geometry; then the nearest spots of all are averaged there.

    Parameters
    ----------
    bank
        (m, h) embedded spots; likeness is the cosine.
    coords
        (m, 2) their canonical places.
    slide, spot
        (m,) the slide of each, and its number among all spots.
    weight
        Share of the nearest spots in the mean with the generators.
    """

    bank: Tensor
    coords: Tensor
    slide: Tensor
    spot: Tensor
    weight: Tensor

    def __init__(
        self, bank: Tensor, coords: Tensor, slide: Tensor, spot: Tensor, weight: Tensor | float = 0.0
    ) -> None:
        super().__init__()
        self.register_buffer("bank", normalize(bank, dim=-1))
        self.register_buffer("coords", coords.float())
        self.register_buffer("slide", slide)
        self.register_buffer("spot", spot)
        self.register_buffer("weight", torch.as_tensor(weight, dtype=torch.float32))

    def without(self, spots: NDArray[np.bool_]) -> NearestSpots:
        """The same without the ``spots`` marked among all, to place these."""
        keep = ~torch.from_numpy(spots)[self.spot]
        return NearestSpots(
            self.bank[keep], self.coords[keep], self.slide[keep], self.spot[keep], self.weight
        )

    def forward(self, z: Tensor, geometry: Tensor, mask: Tensor | None = None) -> Tensor:
        """Places (B, n, d) of embedded points (B, n, h), laid on a centred ``geometry`` (B, n, d) of the same points."""
        slides = self.slide.unique()
        taken = min(NEAREST * len(slides), MOST_NEAREST, len(self.bank))
        alone = [torch.empty(*z.shape[:2], 2) for _ in slides]  # places by each slide, in its own frame
        sums = [torch.empty(*z.shape[:2], 2) for _ in slides]  # of the nearest of all that are of it
        counts = [torch.empty(*z.shape[:2], 1) for _ in slides]
        flat = normalize(z, dim=-1).flatten(0, 1)
        for rows in torch.arange(len(flat)).split(ROWS):
            alike = flat[rows] @ self.bank.T  # (rows, m)
            nearest = alike.topk(taken, dim=1).indices
            for s, slide in enumerate(slides):
                own = (self.slide == slide).nonzero()[:, 0]
                few = alike[:, own].topk(min(NEAREST, len(own)), dim=1).indices
                of_it = (self.slide[nearest] == slide).float().unsqueeze(-1)  # (rows, taken, 1)
                alone[s].flatten(0, 1)[rows] = self.coords[own][few].mean(1)
                sums[s].flatten(0, 1)[rows] = (self.coords[nearest] * of_it).sum(1)
                counts[s].flatten(0, 1)[rows] = of_it.sum(1)
        real = torch.ones(*z.shape[:2], 1) if mask is None else mask.unsqueeze(-1).float()
        total = torch.zeros_like(geometry)
        for layout, summed, count in zip(alone, sums, counts, strict=True):
            origin = (layout * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp_min(1)
            total += (summed - count * origin) @ procrustes(layout - origin, geometry, mask)
        return total / taken


def best_weight(
    generated: Tensor, nearest: Tensor, truth: Tensor, *, spot: Tensor, slide: Tensor | None = None
) -> float:
    """The share of ``nearest`` in the mean with ``generated`` that places spots well, (m, 2) each.

    The smallest whose squared error is within one standard error of the least: what serves spots alone serves cells
    less, and where little is won nothing is changed.

    Parameters
    ----------
    generated, nearest, truth
        Places of views of spots: by a model that has not seen them, by the nearest spots, and the true ones.
    spot
        (m,) which spot each is a view of; spots count alike, and their number makes the standard error.
    slide
        (m,) given where whole slides were missed: then slides count alike, and their number makes it. Spots of a slide
        are wrong together.
    """
    unit = spot if slide is None else slide
    _, which, views = unit.unique(return_inverse=True, return_counts=True)
    shares = torch.linspace(0, 1, 101)
    error = torch.stack([(torch.lerp(generated, nearest, w) - truth).square().sum(1) for w in shares])
    error = torch.zeros(len(shares), len(views)).index_add(1, which, error) / views  # (shares, units)
    excess = error - error[error.mean(1).argmin()]
    within = excess.mean(1) <= excess.std(1) / len(views) ** 0.5
    return float(shares[int(within.float().argmax())])
