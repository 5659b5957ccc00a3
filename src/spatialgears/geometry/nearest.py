"""Nearest spots: each cell is moved towards its most similar spots near the position that the generators predict.

Cosine similarity alone suffers from hubness: a few spots are everyone's nearest neighbour. The similarity of a spot is
therefore its cosine less half its mean cosine to the spots next to it (CSLS, Conneau et al. 2018). Several parts of a
tissue may look the same. The generators decide between them, and the spots then give a sharper position than the
generators' average over all that is possible.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize

from spatialgears.supervision.targets import Pose

NEAREST = 20  # spots averaged
CROWD = 10  # nearest spots over which the crowding of a spot is averaged
SOFTNESS = 0.05  # temperature: a spot whose similarity is lower by this has e times less weight
ROWS = 2000  # points compared with all spots at once
POSED = 2000  # points that a slide's pose is found from


class NearestSpots(nn.Module):
    """Positions by the spots most similar to each point, in the frame of a given geometry.

    Spot s has the weight exp(a_s / softness - |x_s - v|^2 / (2 reach^2)), where a_s is its similarity and v the point's
    position in the geometry: a posterior mean over spots with the geometry as prior. Slides have unrelated poses: every
    slide places the points in its own frame by similarity alone, and that layout is rotated onto the geometry.

    Parameters
    ----------
    bank
        (m, h) embedded spots.
    coords
        (m, 2) their canonical coordinates.
    slide, spot
        (m,) the slide of each, and its number among all spots.
    reach
        Search radius around the geometry's position, in RMS radii of a slide. At 0 the geometry is returned unchanged.
    crowding
        (m,) mean cosine of each spot to its nearest spots; computed if omitted.
    share
        How far points move from the geometry towards these spots: 1 is all the way.
    """

    bank: Tensor
    crowding: Tensor
    coords: Tensor
    slide: Tensor
    spot: Tensor
    reach: Tensor
    share: Tensor

    def __init__(
        self,
        bank: Tensor,
        coords: Tensor,
        slide: Tensor,
        spot: Tensor,
        reach: Tensor | float = 0.0,
        crowding: Tensor | None = None,
        share: Tensor | float = 1.0,
    ) -> None:
        super().__init__()
        self.register_buffer("bank", normalize(bank, dim=-1))
        self.register_buffer("crowding", _crowding(self.bank) if crowding is None else crowding)
        self.register_buffer("coords", coords.float())
        self.register_buffer("slide", slide)
        self.register_buffer("spot", spot)
        self.register_buffer("reach", torch.as_tensor(reach, dtype=torch.float32))
        self.register_buffer("share", torch.as_tensor(share, dtype=torch.float32))

    def without(self, spots: NDArray[np.bool_]) -> NearestSpots:
        """The same without the marked ``spots``, which can then be placed without leakage."""
        keep = ~torch.from_numpy(spots)[self.spot]
        rows = (self.bank[keep], self.coords[keep], self.slide[keep], self.spot[keep])
        return NearestSpots(*rows, float(self.reach), share=float(self.share))

    def forward(self, z: Tensor, geometry: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Positions (B, n, d) of embedded points (B, n, h), by spots in reach of a ``geometry`` (B, n, d) of the same points.

        Without a geometry, similarity alone decides, and the frame is that of the first slide.
        """
        if geometry is not None and not self.reach:
            return geometry
        z = normalize(z, dim=-1)
        slides = [(self.slide == slide).nonzero()[:, 0] for slide in self.slide.unique()]
        poses = self._poses(z, geometry, mask, slides)
        here = [None if geometry is None else pose.inverse(geometry).flatten(0, 1) for pose in poses]
        sums = torch.empty(len(slides), *z.shape[:2], 2)  # per slide: weighted coordinates
        shares = torch.empty(len(slides), *z.shape[:2], 1)
        for rows in torch.arange(z.shape[0] * z.shape[1]).split(ROWS):
            points = z.flatten(0, 1)[rows]
            found = [
                self._log_weights(points, own, None if at is None else at[rows]).topk(
                    min(NEAREST, len(own)), dim=1
                )
                for own, at in zip(slides, here, strict=True)
            ]
            weights = _top_weights(torch.cat([each.values for each in found], 1))
            weights_of = weights.split([each.values.shape[1] for each in found], 1)
            for s, (own, each, share) in enumerate(zip(slides, found, weights_of, strict=True)):
                sums[s].flatten(0, 1)[rows] = (self.coords[own][each.indices] * share.unsqueeze(-1)).sum(1)
                shares[s].flatten(0, 1)[rows] = share.sum(1, keepdim=True)
        placed = [pose(part, share) for pose, part, share in zip(poses, sums, shares, strict=True)]
        nearest = torch.stack(placed).sum(0)
        return nearest if geometry is None else torch.lerp(geometry, nearest, self.share)

    def _log_weights(self, points: Tensor, own: Tensor, here: Tensor | None = None) -> Tensor:
        """Log weights (rows, m_own) of a slide's ``own`` spots for points, which are at ``here`` in its frame.

        Similarity and distance in one matrix product: -|h - x|^2 / 2 = h x - |x|^2 / 2 - |h|^2 / 2.
        """
        left, right, bias = points / SOFTNESS, self.bank[own], self.crowding[own] / (-2 * SOFTNESS)
        if here is not None:
            here, x = here / self.reach, self.coords[own] / self.reach
            left = torch.cat([left, here, here.square().sum(1, keepdim=True) / -2], 1)
            right = torch.cat([right, x, torch.ones(len(own), 1)], 1)
            bias = bias - x.square().sum(1) / 2
        return torch.addmm(bias, left, right.T)

    def _poses(
        self, z: Tensor, geometry: Tensor | None, mask: Tensor | None, slides: Sequence[Tensor]
    ) -> list[Pose]:
        """Pose of each slide on the geometry, or on the first slide, from a sample of points placed by similarity alone."""
        some = slice(None, None, -(-z.shape[1] // POSED))
        z, real = z[:, some], None if mask is None else mask[:, some]
        layouts = []
        for own in slides:
            layout = torch.empty(*z.shape[:2], 2)
            for rows in torch.arange(z.shape[0] * z.shape[1]).split(ROWS):
                most = self._log_weights(z.flatten(0, 1)[rows], own).topk(min(NEAREST, len(own)), dim=1)
                weighted = self.coords[own][most.indices] * most.values.softmax(1).unsqueeze(-1)
                layout.flatten(0, 1)[rows] = weighted.sum(1)
            layouts.append(layout)
        target = layouts[0] if geometry is None else geometry[:, some]
        return [Pose.between(layout, target, real) for layout in layouts]


def nearest_places(known: Sequence[Tensor], coords: Sequence[np.ndarray], query: Tensor) -> np.ndarray:
    """Positions (m, 2) of embedded profiles ``query`` (m, h), by ``known`` spots (n_i, h) of slides at ``coords``."""
    slide = torch.repeat_interleave(torch.tensor([len(z) for z in known]))
    places = torch.from_numpy(np.concatenate(coords))
    spots = NearestSpots(torch.cat(list(known)), places, slide, torch.arange(len(slide)))
    return spots(query[None])[0].numpy()


def _crowding(bank: Tensor) -> Tensor:
    """Mean cosine (m,) of each unit vector (m, h) to its ``CROWD`` nearest others."""
    taken = min(CROWD + 1, len(bank))
    parts = [(part @ bank.T).topk(taken, dim=1).values[:, 1:].mean(1) for part in bank.split(ROWS)]
    return torch.cat(parts).nan_to_num()  # one spot alone has no neighbour


def _top_weights(counts: Tensor) -> Tensor:
    """Softmax weights (n, m) over the ``NEAREST`` largest log weights of each row (n, m); zero elsewhere."""
    found = counts.topk(min(NEAREST, counts.shape[1]), dim=1)
    return torch.zeros_like(counts).scatter(1, found.indices, found.values.softmax(1))
