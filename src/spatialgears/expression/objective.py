"""The losses of stage A on one batch: VICReg on views, adversaries and alignment on clean embeddings."""

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
    """Encoder and discriminators; its forward pass gives the weighted losses by name, those of weight zero left out.

    Parameters
    ----------
    encoder
        f_theta, trained in place.
    n_groups
        Number of slides, and of batches of cells.
    config
        The weights.
    """

    def __init__(self, encoder: Encoder, n_groups: tuple[int, int], config: ExpressionConfig) -> None:
        super().__init__()
        self.encoder, self.config = encoder, config

        def discriminator(n_classes: int) -> Discriminator:
            width, dropout = config.discriminator_hidden, config.discriminator_dropout
            return Discriminator(len(encoder.scale), n_classes, hidden=width, dropout=dropout)

        self.domain = discriminator(2) if config.adversary > 0 else None
        self.groups = nn.ModuleDict()
        for domain, count in enumerate(n_groups):
            if config.slide_adversary > 0 and count > 1:
                self.groups[str(domain)] = discriminator(count)

    def forward(self, batch: Batch, alpha: float) -> dict[str, Tensor]:
        """Weighted losses of a batch, the adversaries' gradients reversed with the coefficient ``alpha``."""
        c = self.config
        terms = vicreg(self.encoder(batch.first), self.encoder(batch.second), gamma=c.gamma)
        losses = {
            "invariance": c.lambda_inv * terms["invariance"],
            "variance": c.lambda_var * terms["variance"],
            "covariance": c.lambda_cov * terms["covariance"],
        }
        if self.domain is None and not self.groups and not (c.mmd or c.coral or c.local_alignment):
            return losses
        z = self.encoder(batch.clean)
        halves = z.chunk(2)
        domain = torch.arange(2, device=z.device).repeat_interleave(len(z) // 2)  # (2 n,)
        if self.domain is not None:
            losses["adversary"] = c.adversary * self.domain(z, domain, alpha)
        if self.groups:
            labels = batch.group.chunk(2)
            told = [net(halves[int(d)], labels[int(d)], alpha) for d, net in self.groups.items()]
            losses["slide adversary"] = c.slide_adversary * torch.stack(told).mean()
        if c.mmd > 0:
            losses["mmd"] = c.mmd * mmd(*halves)
        if c.coral > 0:
            losses["coral"] = c.coral * coral(*halves)
        if c.local_alignment > 0:
            losses["local alignment"] = c.local_alignment * local_alignment(*halves)
        return losses
