"""Cells where the spots most like them in the embedding are.

The cosine alone would have a few spots, those in the midst of many alike, be everyone's nearest (hubs). A spot's
likeness to a cell is therefore the cosine less half its crowding, the mean cosine to the spots next to it (CSLS: Conneau
et al. 2018), and nearer spots count for more. Beside the generators this is one more voice: a generator errs where cells
differ from every spot it was trained on, and these places, in an embedding that has seen the cells, err elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from spatialgears.supervision.targets import procrustes

NEAREST = 20  # spots averaged
CROWD = 10  # spots next to one that make its crowding
SOFTNESS = 0.05  # a spot less alike by this counts e times less
ROWS = 2000  # points compared with all spots at once


class NearestSpots(nn.Module):
    """Places by the nearest spots of all slides, in the frame of a given geometry.

    Poses of slides are unknown to one another: every slide places the points in its own frame, which is turned onto
    the geometry; then the nearest spots of all are averaged there.

    Parameters
    ----------
    bank
        (m, h) embedded spots.
    coords
        (m, 2) their canonical places.
    slide, spot
        (m,) the slide of each, and its number among all spots.
    weight
        Share of the nearest spots in the mean with the generators.
    crowding
        (m,) mean cosine of each with the spots next to it, where it is known.
    """

    bank: Tensor
    crowding: Tensor
    coords: Tensor
    slide: Tensor
    spot: Tensor
    weight: Tensor

    def __init__(
        self,
        bank: Tensor,
        coords: Tensor,
        slide: Tensor,
        spot: Tensor,
        weight: Tensor | float = 0.0,
        crowding: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("bank", normalize(bank, dim=-1))
        self.register_buffer("crowding", _crowding(self.bank) if crowding is None else crowding)
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

    def forward(self, z: Tensor, geometry: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Places (B, n, d) of embedded points (B, n, h), laid on a centred ``geometry`` (B, n, d) of the same points.

        Without one they are in the frame of the first slide.
        """
        slides = [(self.slide == slide).nonzero()[:, 0] for slide in self.slide.unique()]
        alone = torch.empty(len(slides), *z.shape[:2], 2)  # places by each slide, in its own frame
        sums = torch.empty(len(slides), *z.shape[:2], 2)  # of the nearest of all that are of it, weighted
        shares = torch.empty(len(slides), *z.shape[:2], 1)
        flat = normalize(z, dim=-1).flatten(0, 1)
        for rows in torch.arange(len(flat)).split(ROWS):
            alike = flat[rows] @ self.bank.T - self.crowding / 2  # (rows, m)
            found = [alike[:, own].topk(min(NEAREST, len(own)), dim=1) for own in slides]
            weights = _of_most_alike(torch.cat([each.values for each in found], 1))
            weights_of = weights.split([each.values.shape[1] for each in found], 1)
            for s, (own, each, share) in enumerate(zip(slides, found, weights_of, strict=True)):
                places = self.coords[own][each.indices]  # (rows, taken, 2)
                alone[s].flatten(0, 1)[rows] = (places * _softened(each.values).unsqueeze(-1)).sum(1)
                sums[s].flatten(0, 1)[rows] = (places * share.unsqueeze(-1)).sum(1)
                shares[s].flatten(0, 1)[rows] = share.sum(1, keepdim=True)
        real = torch.ones(*z.shape[:2], 1) if mask is None else mask.unsqueeze(-1).float()
        origins = (alone * real).sum(2, keepdim=True) / real.sum(1, keepdim=True).clamp_min(1)
        total: Tensor | float = 0.0
        if geometry is None:
            total, geometry = origins[0], (alone[0] - origins[0]) * real
        for layout, origin, summed, share in zip(alone, origins, sums, shares, strict=True):
            total = total + (summed - share * origin) @ procrustes(layout - origin, geometry, mask)
        assert isinstance(total, Tensor)
        return total


def nearest_places(known: Sequence[Tensor], coords: Sequence[np.ndarray], query: Tensor) -> np.ndarray:
    """Places (m, 2) of embedded profiles ``query`` (m, h) by the embedded spots (n_i, h) of slides and their places."""
    slide = torch.repeat_interleave(torch.tensor([len(z) for z in known]))
    places = torch.from_numpy(np.concatenate(coords))
    spots = NearestSpots(torch.cat(list(known)), places, slide, torch.arange(len(slide)))
    return spots(query[None])[0].numpy()


def _crowding(bank: Tensor) -> Tensor:
    """Mean cosine (m,) of each of some unit vectors (m, h) with the ``CROWD`` others next to it."""
    taken = min(CROWD + 1, len(bank))
    parts = [(part @ bank.T).topk(taken, dim=1).values[:, 1:].mean(1) for part in bank.split(ROWS)]
    return torch.cat(parts).nan_to_num()  # one spot alone has no neighbour


def _of_most_alike(alike: Tensor) -> Tensor:
    """Weights (n, m), which sum to one in a row, of the ``NEAREST`` most alike of (n, m); none of the others."""
    found = alike.topk(min(NEAREST, alike.shape[1]), dim=1)
    return torch.zeros_like(alike).scatter(1, found.indices, _softened(found.values))


def _softened(alike: Tensor) -> Tensor:
    return (alike / SOFTNESS).softmax(1)
