"""The losses of stage A on one batch: VICReg and the anchor on views, alignment of domains on clean embeddings.

VICReg, adversaries, MMD and CORAL are the paper's. The anchor is ours: the embedding of a view should equal the linear
start's embedding of the measured profile. It denoises, cannot collapse, and keeps the spatial information of the start while
the domains are aligned.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from spatialgears.config import ExpressionConfig
from spatialgears.expression.adversary import Discriminator
from spatialgears.expression.encoder import Encoder
from spatialgears.expression.losses import coral, local_alignment, mmd, vicreg

SPOTS, CELLS = 0, 1


class Batch(NamedTuple):
    """Profiles of spots followed by as many of cells, (2 n, f) each."""

    first: Tensor
    second: Tensor
    clean: Tensor
    group: Tensor  # (2 n,) slide of a spot, batch of a cell


class Objective(nn.Module):
    """Encoder and discriminators; the forward pass returns the weighted losses by name, without those of weight zero.

    The encoder is trained in place; ``n_groups`` are the numbers of slides and of batches of cells.
    """

    def __init__(self, encoder: Encoder, n_groups: tuple[int, int], config: ExpressionConfig) -> None:
        super().__init__()
        self.encoder, self.config = encoder, config
        width = len(encoder.scale)
        self.domain = Discriminator(width, 2) if config.adversary > 0 else None
        self.groups = nn.ModuleDict()
        for domain, count in enumerate(n_groups):
            if config.slide_adversary > 0 and count > 1:
                self.groups[str(domain)] = Discriminator(width, count)

    def forward(self, batch: Batch, alpha: float) -> dict[str, Tensor]:
        """Weighted losses of a batch; ``alpha`` is the coefficient of gradient reversal."""
        c, scale = self.config, self.encoder.scale
        h1, h2, h = (self.encoder(x) for x in batch[:3])
        z = h * scale  # as later stages see it
        halves = z.chunk(2)
        losses: dict[str, Tensor] = {}
        if c.lambda_inv or c.lambda_var or c.lambda_cov:
            terms = vicreg(h1, h2)
            weights = {"invariance": c.lambda_inv, "variance": c.lambda_var, "covariance": c.lambda_cov}
            losses |= {name: weight * terms[name] for name, weight in weights.items()}
        if c.anchor > 0 and self.encoder.start is not None:
            target = (batch.clean @ self.encoder.start) * scale
            losses["anchor"] = c.anchor * torch.stack([h1 * scale, h2 * scale, z]).sub(target).square().mean()
        if self.domain is not None:
            domain = torch.arange(2, device=z.device).repeat_interleave(len(z) // 2)  # (2 n,)
            losses["adversary"] = c.adversary * self.domain(z, domain, alpha)
        if self.groups:
            labels = batch.group.chunk(2)
            each = [net(halves[int(d)], labels[int(d)], alpha) for d, net in self.groups.items()]
            losses["slide adversary"] = c.slide_adversary * torch.stack(each).mean()
        if c.mmd > 0:
            losses["mmd"] = c.mmd * mmd(*halves)
        if c.coral > 0:
            losses["coral"] = c.coral * coral(*halves)
        if c.local_alignment > 0:
            losses["local alignment"] = c.local_alignment * local_alignment(*halves)
        return losses
