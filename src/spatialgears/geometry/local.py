"""Local geometry of a layout, for the denoiser: kNN graph, binned distances and angles, landmarks (appendix).

Nothing here is n x n on a large set. Neighbours and landmarks are chosen among *reference* points: the whole set at the sizes
used in training, a random subset of that size in a larger set. The cost is therefore linear in the set, and the density is
that of training. For the same reason the paper's 24-bin distance bias acts along the edges of the kNN graph and between
points and landmarks, not between all pairs. Everything is invariant to pose except the edge offsets, which are in the
generator's frame like the residual.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spatialgears.geometry.attention import pointwise

#: The paper's appendix: neighbours of a point, landmarks of a set, bins of distances and of angles.
NEIGHBORS, LANDMARKS, DISTANCE_BINS, ANGLE_BINS = 15, 16, 24, 8
REACH = 3.0  # distances beyond this many RMS radii are in the last bin


@dataclass(frozen=True)
class Reference:
    """Points that carry graph and landmarks: ``index`` (B, r) into the set and ``mask`` (B, r)."""

    index: Tensor
    mask: Tensor


@dataclass(frozen=True)
class LocalGeometry:
    """The layout as the denoiser sees it; k neighbours per point, L landmarks per set."""

    neighbour: Tensor  # (B, n, k) index into the set
    valid: Tensor  # (B, n, k)
    points: Tensor  # (B, n, d) in RMS radii of the set
    distance_bin: Tensor  # (B, n, k)
    angles: Tensor  # (B, n, ANGLE_BINS) shares of neighbours by angle to the centre of the set
    landmark: Tensor  # (B, L) index into the set
    landmark_mask: Tensor  # (B, L)
    landmark_bin: Tensor  # (B, n, L)


@torch.no_grad()
def describe(points: Tensor, mask: Tensor | None = None, reference: Reference | None = None) -> LocalGeometry:
    """The local geometry of layouts (B, n, d), centred with zeros at padded positions."""
    batch, n, _ = points.shape
    if reference is None:
        index = torch.arange(n, device=points.device).expand(batch, n)
        reference = Reference(index, torch.ones_like(index, dtype=torch.bool) if mask is None else mask)
    count = n if mask is None else mask.sum(1)[:, None, None]
    points = points / (points.square().sum((1, 2), keepdim=True) / count).sqrt().clamp_min(1e-12)

    def edges(piece: Tensor, near: Tensor) -> Tensor:
        """Distance to each neighbour, and cosine of its direction to that of the centre, (B, n, k, 2)."""
        offset = take(points, near) - piece.unsqueeze(2)  # (B, n, k, d)
        distance = offset.norm(dim=-1)
        inward = -piece / piece.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        along = (offset @ inward.unsqueeze(-1)).squeeze(-1)
        return torch.stack([distance, along / distance.clamp_min(1e-12)], dim=-1)

    neighbour, valid = _nearest(points, reference)
    distance, cosine = pointwise(edges, points, neighbour).unbind(-1)
    landmark, landmark_mask = _farthest(points, reference)
    to_landmark = torch.cdist(points, take(points, landmark))
    return LocalGeometry(
        neighbour,
        valid,
        points,
        _bin(distance / REACH, DISTANCE_BINS),
        _shares(cosine.clamp(-1, 1).acos() / torch.pi, valid),
        landmark,
        landmark_mask,
        _bin(to_landmark / REACH, DISTANCE_BINS),
    )


def random_reference(n: int, mask: Tensor | None, size: int, seeds: Tensor) -> Reference | None:
    """At most ``size`` random real points of each set, which depend on its seed alone; ``None``: all points."""
    if n <= size:
        return None
    index, kept = (
        torch.zeros(len(seeds), size, dtype=torch.long),
        torch.zeros(len(seeds), size, dtype=torch.bool),
    )
    for row, seed in enumerate(seeds.tolist()):
        real = torch.arange(n) if mask is None else mask[row].nonzero().squeeze(1).cpu()
        if len(real) > size:
            real = real[torch.randperm(len(real), generator=torch.Generator().manual_seed(seed))[:size]]
        index[row, : len(real)], kept[row, : len(real)] = real, True
    return Reference(index.to(seeds.device), kept.to(seeds.device))


def take(values: Tensor, index: Tensor) -> Tensor:
    """Values (B, n, d) at index (B, ...) of each set."""
    rows = torch.arange(len(values), device=values.device).view(-1, *[1] * (index.ndim - 1))
    return values[rows, index]


def _nearest(points: Tensor, reference: Reference) -> tuple[Tensor, Tensor]:
    """The nearest reference points of each point, itself excluded: index and validity, (B, n, k)."""
    targets = take(points, reference.index)  # (B, r, d)
    lengths = targets.square().sum(-1).masked_fill(~reference.mask, torch.inf)[:, None]  # (B, 1, r)
    k = min(NEIGHBORS, targets.shape[1] - 1)

    def search(piece: Tensor) -> Tensor:
        return (lengths - 2 * piece @ targets.mT).topk(k + 1, largest=False).indices

    place = pointwise(search, points)  # (B, n, k + 1) into the reference
    found, real = take(reference.index, place), take(reference.mask, place)
    itself = found == torch.arange(points.shape[1], device=points.device)[:, None]
    order = (
        (itself | ~real).to(torch.uint8).argsort(dim=-1, stable=True)[..., :k]
    )  # real others first, nearest first
    return found.gather(-1, order), (real & ~itself).gather(-1, order)


def _farthest(points: Tensor, reference: Reference) -> tuple[Tensor, Tensor]:
    """Landmarks by farthest-point sampling, the outermost point first: index and validity, (B, LANDMARKS)."""
    candidates = take(points, reference.index)
    gap = candidates.square().sum(-1).masked_fill(~reference.mask, -1)  # (B, r)
    chosen, fresh = [], []
    for step in range(LANDMARKS):
        best, place = gap.max(1)
        chosen.append(place)
        fresh.append(best > 0 if step else reference.mask.any(1))
        away = (candidates - take(candidates, place[:, None])).square().sum(-1)
        gap = torch.minimum(gap, away) if step else away.masked_fill(~reference.mask, -1)
    place, mask = torch.stack(chosen, 1), torch.stack(fresh, 1)
    return take(reference.index, place), mask


def _bin(share: Tensor, bins: int) -> Tensor:
    """Equal bins of [0, 1], the last one open."""
    return (share * bins).long().clamp(0, bins - 1)


def _shares(angles: Tensor, valid: Tensor) -> Tensor:
    """The share of valid angles (B, n, k), in units of pi, in each bin, (B, n, ANGLE_BINS)."""
    counts = torch.zeros(*angles.shape[:2], ANGLE_BINS, device=angles.device)
    counts.scatter_add_(2, _bin(angles, ANGLE_BINS), valid.to(counts.dtype))
    return counts / valid.sum(-1, keepdim=True).clamp_min(1)
