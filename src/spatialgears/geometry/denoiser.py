"""The score network F_omega: ISABs with per-block FiLM, self-conditioning, local geometry (section 3.4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spatialgears.config import GeometryConfig
from spatialgears.geometry.attention import HEADS, ISAB, MAB, mlp, pointwise
from spatialgears.geometry.local import ANGLE_BINS, DISTANCE_BINS, LocalGeometry, take
from spatialgears.supervision.targets import centre

FREQUENCIES = 16  # of the noise embedding


class LocalGraph(nn.Module):
    """One round of messages along the kNN graph, with offsets and binned distances as edge features."""

    def __init__(self, dim: int, config: GeometryConfig, inner: int = 32) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.own, self.other = nn.Linear(config.width, inner), nn.Linear(config.width, inner, bias=False)
        self.offset = nn.Linear(dim, inner, bias=False)
        self.distance = nn.Embedding(DISTANCE_BINS, inner)
        self.out = nn.Linear(inner, config.width)

    def forward(self, h: Tensor, local: LocalGeometry) -> Tensor:
        """Points (B, n, c) after one round of messages from their neighbours."""
        normed, laid = self.norm(h), self.offset(local.points.to(h.dtype))
        other, own = self.other(normed) + laid, self.own(normed) - laid  # the offset is that of two points

        def heard(own: Tensor, neighbour: Tensor, distance_bin: Tensor, valid: Tensor) -> Tensor:
            message = (
                take(other, neighbour) + own.unsqueeze(2) + self.distance(distance_bin)
            )  # (B, n, k, inner)
            weight = valid.unsqueeze(-1).to(h.dtype)
            return (nn.functional.silu(message) * weight).sum(2) / weight.sum(2).clamp_min(1)

        mean = pointwise(heard, own, local.neighbour, local.distance_bin, local.valid)
        return h + self.out(mean)


class DenoiserBlock(nn.Module):
    """FiLM by the noise level, messages from neighbours, attention to landmarks, attention to the whole set."""

    def __init__(self, dim: int, config: GeometryConfig) -> None:
        super().__init__()
        self.film = nn.Linear(config.width, 2 * config.width)
        self.graph = LocalGraph(dim, config)
        self.landmarks = MAB(config.width)
        self.bias = nn.Embedding(DISTANCE_BINS, HEADS)
        self.isab = ISAB(config.width, config.inducing)

    def forward(self, h: Tensor, noise: Tensor, local: LocalGeometry, mask: Tensor | None) -> Tensor:
        """Points (B, n, c) under the noise embedding (B, c)."""
        scale, shift = self.film(noise).unsqueeze(1).chunk(2, dim=-1)  # (B, 1, c) each
        h = self.graph(h * (1 + scale) + shift, local)
        landmarks = take(h, local.landmark)
        h = pointwise(
            lambda piece, near: self.landmarks(
                piece, landmarks, local.landmark_mask, self.bias(near).permute(0, 3, 1, 2)
            ),
            h,
            local.landmark_bin,
        )
        return self.isab(h, mask)


class Denoiser(nn.Module):
    """F_omega(c_in U; c_noise, H): the raw network inside the EDM preconditioning.

    Beside the scaled noisy input it sees the context H, V_base (the residual is expressed in its frame), its own previous
    estimate (self-conditioning) and the local geometry of the current layout.
    """

    frequencies: Tensor

    def __init__(self, dim: int, config: GeometryConfig) -> None:
        super().__init__()
        width = config.width
        sees = 3 * dim + width + ANGLE_BINS
        self.register_buffer(
            "frequencies", torch.pi * 2.0 ** torch.linspace(-2, 4, FREQUENCIES), persistent=False
        )
        self.embed_noise = nn.Sequential(mlp(2 * FREQUENCIES, width, width), nn.SiLU())
        self.project = nn.Linear(sees, width)
        self.blocks = nn.ModuleList(DenoiserBlock(dim, config) for _ in range(config.denoiser_blocks))
        self.norm, self.head = nn.LayerNorm(width), mlp(width, width, dim)

    def forward(
        self,
        u: Tensor,
        noise: Tensor,
        context: Tensor,
        base: Tensor,
        previous: Tensor,
        local: LocalGeometry,
        mask: Tensor | None,
    ) -> Tensor:
        """F (B, n, d), centred; ``noise`` is c_noise (B,)."""
        h = self.project(torch.cat([u, base, context, local.angles.to(u.dtype), previous], dim=-1))
        phase = noise[:, None] * self.frequencies
        embedding = self.embed_noise(torch.cat([phase.sin(), phase.cos()], dim=-1))
        for block in self.blocks:
            h = block(h, embedding, local, mask)
        return centre(pointwise(lambda piece: self.head(self.norm(piece)), h).float(), mask)
