"""The losses of section 3.4: pure functions of geometries (B, n, d) that return one value per set, (B,).

The paper writes sums over points. Here they are means over real points (and dimensions, for the score), and Gram losses are
divided by ||G_target||_F^2, so that sets of all sizes count equally and weights have one meaning. Masks (B, n) are true for
real points, ``None`` when all are. Geometries are centred, with zeros at padded positions
(:func:`spatialgears.supervision.centre`). Gram matrices are compared through their d x d factors, in O(n d^2).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spatialgears.supervision.targets import centre

NEVER = -1e9  # a logit that softmax turns into zero, without the NaN gradients of -inf
TINY = 1e-12


@dataclass(frozen=True)
class Neighbours:
    """The k nearest neighbours of every point: ``index``, ``distance`` and ``valid``, all (B, n, k)."""

    index: Tensor
    distance: Tensor
    valid: Tensor


@torch.no_grad()
def neighbours(points: Tensor, k: int, mask: Tensor | None = None) -> Neighbours:
    """N_k(i) within each set, nearest first; fewer are valid in sets with fewer than k + 1 points."""
    n = points.shape[1]
    squared = squared_distances(points)
    forbidden = _forbidden(n, mask, points.device)
    distance, index = squared.masked_fill(forbidden, torch.inf).topk(min(k, n - 1), largest=False)
    valid = distance < torch.inf if mask is None else (distance < torch.inf) & mask[:, :, None]
    return Neighbours(index, distance.masked_fill(~valid, 0.0).sqrt(), valid)


def nca_temperature(near: Neighbours, mask: Tensor | None = None) -> Tensor:
    """The squared median distance to the farthest neighbour, (B,): a temperature that follows the density."""
    radius = near.distance.amax(-1)  # (B, n)
    if mask is not None:
        radius = radius.masked_fill(~mask, torch.nan)
    return radius.nanmedian(dim=1).values.square().clamp_min(TINY)


def score_loss(estimate: Tensor, target: Tensor, weight: Tensor, mask: Tensor | None = None) -> Tensor:
    """L_score: w(sigma) |R_hat - R_target|^2, mean over points and dimensions."""
    return weight * _mean((estimate - target).square().mean(-1), mask)


def gram_loss(pred: Tensor, target: Tensor) -> Tensor:
    """L_gram (and L_gen,gram, normalised the same way): |G_pred - G_target|_F^2 / |G_target|_F^2."""
    return _gram_distance(pred, target) / _inner(target, target).clamp_min(TINY)


def gram_scale_loss(pred: Tensor, target: Tensor) -> Tensor:
    """L_gram,scale: squared difference of log traces."""
    return (_trace(pred).log() - _trace(target).log()).square()


def nca_loss(pred: Tensor, near: Neighbours, temperature: Tensor, mask: Tensor | None = None) -> Tensor:
    """L_NCA: negative log probability of the true neighbours under each point's softmax over squared distances."""
    logits = (squared_distances(pred) / -temperature[:, None, None]).masked_fill(
        _forbidden(pred.shape[1], mask, pred.device), NEVER
    )
    logp = logits.gather(2, near.index).masked_fill(~near.valid, NEVER).logsumexp(-1) - logits.logsumexp(-1)
    return -_mean(logp, mask)


def local_scale_loss(pred: Tensor, near: Neighbours) -> Tensor:
    """Edge-wise local scale: squared difference of log distances along the true kNN edges."""
    batch = torch.arange(len(pred), device=pred.device)[:, None, None]
    edges = pred[batch, near.index] - pred.unsqueeze(2)  # (B, n, k, d)
    ratio = 0.5 * (edges.square().sum(-1) + TINY).log() - (near.distance + TINY**0.5).log()
    kept = near.valid.to(pred.dtype)
    return (ratio.square() * kept).sum((1, 2)) / kept.sum((1, 2)).clamp_min(1)


def gen_align_loss(base: Tensor, aligned: Tensor, mask: Tensor | None = None) -> Tensor:
    """L_gen,align: squared error to the target, which Procrustes has rotated into the generator's frame.

    min over Q of |V_base Q - V_target| equals min over Q of |V_base - V_target Q|; no gradient passes through Q.
    """
    return _mean((base - aligned).square().sum(-1), mask)


def gen_scale_loss(base: Tensor, target: Tensor) -> Tensor:
    """Squared difference of log RMS radii, which calibrates the size of the proposal."""
    return gram_scale_loss(base, target) / 4


def overlap_shape_loss(first: Tensor, second: Tensor, shared: Tensor | None = None) -> Tensor:
    """L_ov,shape: |G_1 / tr G_1 - G_2 / tr G_2|_F^2 over the shared points (B, k, d) of two views."""
    one, two = (centre(view, shared) for view in (first, second))
    unit_one, unit_two = (view / _trace(view).sqrt()[:, None, None] for view in (one, two))
    return _gram_distance(unit_one, unit_two)


def overlap_scale_loss(first: Tensor, second: Tensor, shared: Tensor | None = None) -> Tensor:
    """L_ov,scale: squared difference of log traces over the shared points."""
    return gram_scale_loss(centre(first, shared), centre(second, shared))


def overlap_kl_loss(
    first: Tensor, second: Tensor, temperature: Tensor, shared: Tensor | None = None
) -> Tensor:
    """Symmetric KL divergence between two views' softmax distance distributions over shared points."""
    forbidden = _forbidden(first.shape[1], shared, first.device)
    one, two = (
        (squared_distances(centre(view, shared)) / -temperature[:, None, None])
        .masked_fill(forbidden, NEVER)
        .log_softmax(-1)
        for view in (first, second)
    )
    divergence = ((one.exp() - two.exp()) * (one - two)).masked_fill(forbidden, 0.0).sum(-1)
    return _mean(divergence, shared) / 2


def squared_distances(points: Tensor) -> Tensor:
    """|v_i - v_j|^2 within each set, (B, n, n), from inner products."""
    norms = points.square().sum(-1)
    return torch.baddbmm(norms[:, :, None] + norms[:, None, :], points, points.mT, alpha=-2).clamp_min(0)


def _forbidden(n: int, mask: Tensor | None, device: torch.device) -> Tensor:
    """Pairs (1 or B, n, n) that do not count: a point with itself, or with padding."""
    own = torch.eye(n, dtype=torch.bool, device=device)[None]
    return own if mask is None else own | ~mask[:, None, :]


def _mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of values (B, n) over real points."""
    if mask is None:
        return values.mean(1)
    return torch.where(mask, values, 0.0).sum(1) / mask.sum(1).clamp_min(1)


def _inner(a: Tensor, b: Tensor) -> Tensor:
    """<A A^T, B B^T>_F = |A^T B|_F^2, (B,)."""
    return (a.mT @ b).square().sum((1, 2))


def _gram_distance(a: Tensor, b: Tensor) -> Tensor:
    return _inner(a, a) - 2 * _inner(a, b) + _inner(b, b)


def _trace(points: Tensor) -> Tensor:
    return points.square().sum((1, 2)).clamp_min(TINY)
