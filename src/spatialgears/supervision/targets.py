"""Pose-invariant targets by orthogonal alignment (section 3.2).

The paper's target V_target is a factor of the Gram matrix of the coordinates. Centred coordinates with zero columns are such
a factor, up to an orthogonal matrix that Procrustes determines, so no eigenvectors are needed. Masks are (..., n) booleans,
true for real points; ``None`` means that every point is real.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

DIM = 32  # the paper's appendix: d, the overcomplete latent dimension


def centre(points: Tensor, mask: Tensor | None = None) -> Tensor:
    """Points (..., n, d) minus their mean over real points; padding becomes zero."""
    if mask is None:
        return points - points.mean(-2, keepdim=True)
    weight = mask.unsqueeze(-1).to(points.dtype)  # (..., n, 1)
    mean = (points * weight).sum(-2, keepdim=True) / weight.sum(-2, keepdim=True).clamp_min(1)
    return (points - mean) * weight


def procrustes(source: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Q (..., p, d) that minimises ||source Q - target||_F over orthogonal matrices, reflections included.

    Both sets must be centred. With p = d this is Q in O(d). A source with p < d columns stands for itself padded with zero
    columns, and Q holds the p rows of the O(d) matrix that matter, from a small SVD instead of a d x d one. Values that are
    not finite count as zero; the caller must notice them.
    """
    if mask is not None:
        source = source * mask.unsqueeze(-1)
    product = (source.transpose(-1, -2) @ target).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)  # (..., p, d)
    left, _, right = torch.linalg.svd(product, full_matrices=False)
    return left @ right


class Pose(NamedTuple):
    """Maps coordinates (..., n, p) of one frame to those (..., n, d) of another: (x - origin) turn + shift."""

    origin: Tensor  # (..., 1, p)
    turn: Tensor  # (..., p, d)
    shift: Tensor  # (..., 1, d)

    @classmethod
    def between(cls, layout: Tensor, target: Tensor, mask: Tensor | None = None) -> Pose:
        """The orthogonal pose that brings the points of ``layout`` closest to the same points of ``target``."""
        turn = procrustes(centre(layout, mask), centre(target, mask), mask)
        real = torch.ones(layout.shape[:-1]) if mask is None else mask.float()
        mean = (real / real.sum(-1, keepdim=True).clamp_min(1)).unsqueeze(-2)  # (..., 1, n)
        return cls(mean @ layout, turn, mean @ target)

    def __call__(self, sums: Tensor, share: Tensor) -> Tensor:
        """Map sums (..., n, p) of coordinates whose weights add up to ``share`` (..., n, 1)."""
        return (sums - share * self.origin) @ self.turn + share * self.shift

    def inverse(self, target: Tensor) -> Tensor:
        """Map points (..., n, d) of the other frame back to the first, (..., n, p)."""
        return (target - self.shift) @ self.turn.mT + self.origin
