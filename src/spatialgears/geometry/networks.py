"""Context encoder f_phi and generator Phi_psi (section 3.4)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spatialgears.config import GeometryConfig
from spatialgears.geometry.attention import ISAB, mlp, pointwise
from spatialgears.supervision.targets import centre


class ContextEncoder(nn.Module):
    """f_phi: what each point's expression means beside the rest of its set, H = f_phi(x) of shape (B, n, c).

    ``hidden = 0`` is the paper's linear projection; otherwise a hidden layer with dropout stands before the
    ISABs, which is what keeps the model from learning a few hundred spots by heart.
    """

    def __init__(self, n_features: int, config: GeometryConfig) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Dropout(config.input_dropout)]
        if config.hidden:
            layers += [nn.Linear(n_features, config.hidden), nn.LayerNorm(config.hidden), nn.SiLU()]
            layers += [nn.Dropout(config.hidden_dropout)]
        layers.append(nn.Linear(config.hidden or n_features, config.width))
        self.project = nn.Sequential(*layers)
        self.blocks = isabs(config.context_blocks, config)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, *, hide: torch.Generator | None = None
    ) -> Tensor:
        """Context H (B, n, c) of features x (B, n, f); ``hide`` decides a dropout as in training, in any mode."""
        h = pointwise(self.project if hide is None else partial(_dropped, self.project, hide), x)
        for block in self.blocks:
            h = block(h, mask)
        return h


def _dropped(layers: nn.Sequential, hide: torch.Generator, h: Tensor) -> Tensor:
    """The layers with their dropout drawn from a generator; neither their mode nor global randomness is touched."""
    for layer in layers:
        if isinstance(layer, nn.Dropout):
            h = h * (torch.rand(h.shape, generator=hide) >= layer.p).to(h) / max(1 - layer.p, 1e-6)
        else:
            h = layer(h)
    return h


class Generator(nn.Module):
    """Phi_psi: the coarse geometry V_base = Phi_psi(H) of shape (B, n, d), centred over real points."""

    def __init__(self, dim: int, config: GeometryConfig) -> None:
        super().__init__()
        self.blocks = isabs(config.generator_blocks, config)
        self.head = mlp(config.width, config.width, dim)

    def forward(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        """V_base (B, n, d) of context h (B, n, c); padding is zero."""
        for block in self.blocks:
            h = block(h, mask)
        return centre(pointwise(self.head, h).float(), mask)


def isabs(count: int, config: GeometryConfig) -> nn.ModuleList:
    """``count`` ISABs of the configured width."""
    return nn.ModuleList(ISAB(config.width, config.heads, config.inducing) for _ in range(count))
