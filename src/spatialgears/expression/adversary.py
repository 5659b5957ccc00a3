"""Adversaries with gradient reversal, which make domains, slides and batches hard to distinguish (section 3.1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

#: The paper's appendix: hidden units and dropout of a discriminator.
HIDDEN, DROPOUT = 512, 0.1


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: float) -> Tensor:
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return -ctx.alpha * grads[0], None


def reverse_gradient(x: Tensor, alpha: float) -> Tensor:
    """``x`` unchanged; its gradient is multiplied by ``-alpha`` in the backward pass."""
    return _Reversal.apply(x, alpha)


def grl_coefficient(epoch: float, *, warmup: int, ramp: int) -> float:
    """alpha_GRL: 0 during the warm-up, then up to 1 along a straight ramp (appendix, Stage A)."""
    return min(max((epoch - warmup) / ramp, 0.0), 1.0)


class Discriminator(nn.Module):
    """D_eta: which of ``n_classes`` domains, slides or batches an embedding comes from (two-layer MLP)."""

    def __init__(self, embed_dim: int, n_classes: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(embed_dim, HIDDEN), nn.SiLU(), nn.Dropout(DROPOUT), nn.Linear(HIDDEN, n_classes)
        )

    def forward(self, z: Tensor, labels: Tensor, alpha: float) -> Tensor:
        """Cross-entropy L_adv of ``labels`` (n,); the encoder of ``z`` (n, h) is trained to increase it."""
        logits = self.net(reverse_gradient(z, alpha))
        return nn.functional.cross_entropy(logits, labels)
