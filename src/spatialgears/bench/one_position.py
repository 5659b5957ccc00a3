"""Cells at the position of one spot each, instead of at an average over similar spots: a trial that no preset uses.

Averages are closest to the true positions, but smooth what is read from the cells around a position. Single positions do not,
and balancing them over the spots puts cells everywhere.
"""

from __future__ import annotations

from copy import copy, deepcopy
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from spatialgears.geometry.nearest import NearestSpots
from spatialgears.model import GEARS
from spatialgears.pipeline.fitted import Fitted

REACH = 1.0  # search radius around the generators' position, in RMS radii of a slide
ROUNDS = 200  # of balancing cells and spots in turn


class OnePosition(NearestSpots):
    """Points at their single most similar spot near the geometry; if ``balanced``, every spot has the same share of them."""

    balanced: bool

    @classmethod
    def of(cls, nearest: NearestSpots, *, balanced: bool) -> OnePosition:
        """With the spots of ``nearest``."""
        rows = (nearest.bank, nearest.coords, nearest.slide, nearest.spot)
        found = cls(*rows, REACH, crowding=nearest.crowding)
        found.balanced = balanced
        return found

    def forward(self, z: Tensor, geometry: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Positions (B, n, d) of embedded points (B, n, h) in the frame of their ``geometry`` (B, n, d)."""
        assert geometry is not None and (mask is None or bool(mask.all()))
        z = normalize(z, dim=-1)
        slides = [(self.slide == slide).nonzero()[:, 0] for slide in self.slide.unique()]
        poses = self._poses(z, geometry, mask, slides)
        weights = torch.cat(
            [
                self._log_weights(z.flatten(0, 1), own, pose.inverse(geometry).flatten(0, 1))
                for own, pose in zip(slides, poses, strict=True)
            ],
            dim=1,
        )
        if self.balanced:
            weights = weights + balance(weights)
        best, placed = [], []
        for own, pose, part in zip(
            slides, poses, weights.split([len(own) for own in slides], 1), strict=True
        ):
            most = part.max(1)
            at = self.coords[own][most.indices].view(*z.shape[:2], 2)
            best.append(most.values.view(z.shape[:2]))
            placed.append(pose(at, torch.ones(*z.shape[:2], 1)))
        chosen = torch.stack(best).argmax(0)[None, ..., None].expand(1, *geometry.shape)
        return torch.stack(placed).gather(0, chosen)[0]


def balance(weights: Tensor) -> Tensor:
    """What to add to the log weights (n, m) of every spot so that all spots have the same share of the points: (m,)."""
    spots = torch.zeros(weights.shape[1])
    for _ in range(ROUNDS):
        points = -torch.logsumexp(weights + spots, 1, keepdim=True)
        spots = -torch.logsumexp(weights + points, 0)
    return spots


def at_one_position(state: Fitted, *, balanced: bool) -> Fitted:
    """The fitted model with cells at one spot each."""
    network = deepcopy(state.network)
    assert network.nearest is not None
    network.nearest = OnePosition.of(network.nearest, balanced=balanced)
    return replace(state, network=network)


def balanced(model: GEARS) -> GEARS:
    """The fitted model with cells at one spot each, balanced over the spots."""
    found = copy(model)
    found._fitted = at_one_position(model.fitted_, balanced=True)
    return found
