"""Pose-invariant targets: Gram matrices, their factors, and orthogonal alignment (section 3.2).

Masks are (..., n) booleans, true for real points; ``None`` means that every point is real.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

DIM = 32  # the paper's appendix: d, the overcomplete latent dimension


def centre(points: Tensor, mask: Tensor | None = None) -> Tensor:
    """Points (..., n, d) minus their mean over real points; padding becomes zero."""
    if mask is None:
        return points - points.mean(-2, keepdim=True)
    weight = mask.unsqueeze(-1).to(points.dtype)  # (..., n, 1)
    mean = (points * weight).sum(-2, keepdim=True) / weight.sum(-2, keepdim=True).clamp_min(1)
    return (points - mean) * weight


def gram(points: Tensor, mask: Tensor | None = None) -> Tensor:
    """G = Y Y^T (..., n, n) of the centred points; rows and columns of padding are zero."""
    centred = centre(points, mask)
    return centred @ centred.transpose(-1, -2)


def gram_factor(points: Tensor, dim: int, mask: Tensor | None = None) -> Tensor:
    """V_target (..., n, dim) with V V^T = G, the same for every pose of the points.

    The eigenvectors of G = Y Y^T come from the small matrix Y^T Y: V = Y W with W its eigenvectors, largest
    first, padded with zeros to ``dim``. Signs are set by the third moment of each column, which makes the
    factor canonical.
    """
    centred = centre(points, mask)
    own = centred.shape[-1]
    if dim < own:
        raise ValueError(f"dim must be at least {own}, the dimension of the points; found {dim}")
    _, axes = torch.linalg.eigh(centred.transpose(-1, -2) @ centred)  # ascending eigenvalues
    factor = centred @ axes.flip(-1)
    skew = factor.pow(3).sum(-2, keepdim=True)
    return F.pad(factor * torch.where(skew < 0, -1.0, 1.0), (0, dim - own))


def procrustes(source: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Q (..., p, d) that minimises ||source Q - target||_F over orthogonal matrices, reflections included.

    Both sets must be centred. With p = d this is Q in O(d). A source with p < d columns stands for itself
    padded with zero columns, and Q holds the p rows of that O(d) matrix which matter: a small SVD instead of
    a d x d one. Values that are not finite count as zero: what they break is for the caller to notice.
    """
    if mask is not None:
        source = source * mask.unsqueeze(-1)
    product = (source.transpose(-1, -2) @ target).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)  # (..., p, d)
    left, _, right = torch.linalg.svd(product, full_matrices=False)
    return left @ right


class Pose(NamedTuple):
    """Lays places (..., n, p) of one frame onto those (..., n, d) of another: (x - origin) turn + shift."""

    origin: Tensor  # (..., 1, p)
    turn: Tensor  # (..., p, d)
    shift: Tensor  # (..., 1, d)

    @classmethod
    def between(cls, layout: Tensor, target: Tensor, mask: Tensor | None = None) -> Pose:
        """The orthogonal one that brings the points of ``layout`` closest to the same points of ``target``."""
        turn = procrustes(centre(layout, mask), centre(target, mask), mask)
        real = torch.ones(layout.shape[:-1]) if mask is None else mask.float()
        mean = (real / real.sum(-1, keepdim=True).clamp_min(1)).unsqueeze(-2)  # (..., 1, n)
        return cls(mean @ layout, turn, mean @ target)

    def __call__(self, sums: Tensor, share: Tensor) -> Tensor:
        """Sums (..., n, p) of places with weights that add up to ``share`` (..., n, 1)."""
        return (sums - share * self.origin) @ self.turn + share * self.shift

    def inverse(self, target: Tensor) -> Tensor:
        """Points (..., n, d) of the other frame in the first, (..., n, p)."""
        return (target - self.shift) @ self.turn.mT + self.origin
