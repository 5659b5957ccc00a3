"""Context encoder f_phi and generator Phi_psi (section 3.4)."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from spatialgears.config import GeometryConfig
from spatialgears.geometry.attention import ISAB, mlp, pointwise
from spatialgears.supervision.targets import centre


class ContextEncoder(nn.Module):
    """f_phi: each point's expression in the context of its set, H = f_phi(x) of shape (B, n, c).

    ``hidden = 0`` is the paper's linear projection. Otherwise a hidden layer with dropout comes before the ISABs, which keeps
    the model from memorising a few hundred spots.
    """

    def __init__(self, n_features: int, config: GeometryConfig, noise: Tensor | None = None) -> None:
        super().__init__()
        p = config.input_dropout
        layers: list[nn.Module] = [Dropout(p) if noise is None else GeneMasking(p, noise)]
        if config.hidden:
            layers += [nn.Linear(n_features, config.hidden), nn.LayerNorm(config.hidden), nn.SiLU()]
            layers += [Dropout(config.hidden_dropout)]
        layers.append(nn.Linear(config.hidden or n_features, config.width))
        self.project = nn.Sequential(*layers)
        self.blocks = isabs(config.context_blocks, config)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, *, hide: torch.Generator | None = None
    ) -> Tensor:
        """Context H (B, n, c) of features x (B, n, f); with ``hide``, dropout is drawn from it in any mode."""
        h = pointwise(self.project if hide is None else partial(_dropped, self.project, hide), x)
        for block in self.blocks:
            h = block(h, mask)
        return h


def _dropped(layers: nn.Sequential, hide: torch.Generator, h: Tensor) -> Tensor:
    """Apply the layers with dropout from a generator; their mode and the global generator stay as they are."""
    for layer in layers:
        h = layer.drop(h, hide) if isinstance(layer, Dropout | GeneMasking) else layer(h)
    return h


class Dropout(nn.Dropout):
    """Dropout with 16 random bits per value, several times as fast as torch's own."""

    def forward(self, x: Tensor) -> Tensor:
        """Mask part of the values (...,) in training mode, by torch's global generator."""
        if torch.compiler.is_compiling():  # the compiler fuses torch's own
            return super().forward(x)
        return self.drop(x) if self.training else x

    def drop(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Mask part of the values (...,) in any mode, and scale up the rest."""
        if self.p in (0, 1):
            return x * (1 - self.p)
        bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None, generator=generator)
        bits = bits.view(torch.int16)[: x.numel()].view(x.shape).to(x.device)
        least = min(round(self.p * 2**16), 2**16 - 1) - 2**15
        return x * (bits >= least).to(x.dtype).div_(1 - self.p)


class GeneMasking(nn.Module):
    """What masking genes does to coordinates along a few directions of expression: normal noise of the same covariance.

    Each coordinate sums over hundreds of genes, so the noise of masking some of them is close to normal.

    Parameters
    ----------
    p
        Probability that a gene is masked.
    noise
        (k, k) covariance for a profile of length one at p = 1/2 (:func:`spatialgears.expression.signal.masking_noise`).
    """

    root: Tensor

    def __init__(self, p: float, noise: Tensor) -> None:
        super().__init__()
        size, axes = torch.linalg.eigh(noise)
        self.register_buffer("root", (p / (1 - p) * size.clamp_min(0)).sqrt()[:, None] * axes.T)

    def forward(self, x: Tensor) -> Tensor:
        """Coordinates (..., k) with noise in training mode, by torch's global generator."""
        return self.drop(x) if self.training else x

    def drop(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Coordinates (..., k) with noise in any mode."""
        noise = torch.randn(x.shape, generator=generator).to(x.device)
        return x + x.norm(dim=-1, keepdim=True) * (noise @ self.root.to(x.dtype))


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
    return nn.ModuleList(ISAB(config.width, config.inducing) for _ in range(count))
