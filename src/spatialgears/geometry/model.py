"""The geometry model: context encoder, generator and residual diffusion refiner (sections 3.3 and 3.4)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from spatialgears.config import GeometryConfig
from spatialgears.geometry.denoiser import Denoiser
from spatialgears.geometry.edm import SIGMA_MIN, heun, karras_schedule, precondition
from spatialgears.geometry.local import Reference, describe, random_reference
from spatialgears.geometry.networks import ContextEncoder, Generator
from spatialgears.supervision.targets import centre, procrustes


class Proposal(NamedTuple):
    """What a refiner starts from."""

    base: Tensor  # (B, n, d) to be refined
    own: Tensor  # (B, n, d) V_base of the model itself, in whose frame residuals are
    condition: Tensor  # (B, n, c) context of the denoiser


class GeometryModel(nn.Module):
    """Expression of a set of points in, latent geometry out.

    Parameters
    ----------
    n_features
        Features per point, f.
    dim
        Latent dimension, d.
    config
        Widths and modes. With ``refiner="none"`` there is no denoiser. A refiner that is trained after the generator
        (``refiner_steps > 0``) has its own context encoder: the generator's has memorised the training spots, and a
        denoiser that relied on it would be overconfident on new cells.
    noise
        Where the features are coordinates along directions of expression: how masking genes moves them
        (:class:`~spatialgears.geometry.networks.GeneMasking`).

    Attributes
    ----------
    sigma_data
        sigma_data,resid: root mean square of the residuals the denoiser is trained on.
    """

    sigma_data: Tensor

    def __init__(
        self, n_features: int, dim: int, config: GeometryConfig, *, noise: Tensor | None = None
    ) -> None:
        super().__init__()
        self.n_features, self.dim, self.config = n_features, dim, config
        self.context = ContextEncoder(n_features, config, noise)
        self.generate = Generator(dim, config)
        self.register_buffer("sigma_data", torch.tensor(1.0))
        if config.refiner != "none":
            self.refiner_context = ContextEncoder(n_features, config, noise) if config.refiner_steps else None
            self.denoiser = Denoiser(dim, config)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """V_base (B, n, d) of features x (B, n, f); linear in n, so a whole data set can be one set."""
        return self.generate(self.context(x, mask), mask)

    def refiner_condition(self, x: Tensor, h: Tensor, mask: Tensor | None = None) -> Tensor:
        """The denoiser's context: its own, or the generator's H when both are trained jointly."""
        return h if self.refiner_context is None else self.refiner_context(x, mask)

    def denoise(
        self,
        u: Tensor,
        sigma: Tensor,
        condition: Tensor,
        base: Tensor,
        mask: Tensor | None = None,
        *,
        previous: Tensor | None = None,
        reference: Reference | None = None,
    ) -> Tensor:
        """Psi_omega(U, sigma): the clean estimate (B, n, d) of u (B, n, d) at noise levels sigma (B,)."""
        skip, out, scale_in, noise = precondition(sigma, self.sigma_data)
        skip, out, scale_in = (c[:, None, None] for c in (skip, out, scale_in))
        local = describe(base + (skip * u if previous is None else previous), mask, reference)
        previous = torch.zeros_like(u) if previous is None else previous / self.sigma_data
        raw = self.denoiser(scale_in * u, noise, condition, base, previous, local, mask)
        return skip * u + out * raw

    @torch.no_grad()
    def sample(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        steps: int,
        sigma_start: float,
        seeds: Tensor,
        base: Tensor | None = None,
    ) -> Tensor:
        """V_pred (B, n, d): the generator's proposal, refined along ``steps`` Heun steps.

        Parameters
        ----------
        x, mask
            Features (B, n, f) and real points (B, n).
        steps
            Heun steps; 0 returns V_base.
        sigma_start
            First noise level, in units of ``sigma_data``.
        seeds
            One per set, (B,): the noise of a set depends on its seed and its number of points, not on its batch.
        base
            A centred proposal (B, n, d) to refine instead of the generator's own; it is rotated into its frame.
        """
        if steps == 0 or self.config.refiner == "none":
            own = self(x, mask)
            return own if base is None else base @ procrustes(base, own, mask)
        proposal = self.propose(x, mask, base)
        return self.refine(proposal, mask, steps=steps, sigma_start=sigma_start, seeds=seeds)

    def propose(self, x: Tensor, mask: Tensor | None = None, base: Tensor | None = None) -> Proposal:
        """What :meth:`refine` needs of features (B, n, f); it does not depend on the seed."""
        h = self.context(x, mask)
        own = self.generate(h, mask)
        return Proposal(own if base is None else base, own, self.refiner_condition(x, h, mask))

    @torch.no_grad()
    def refine(
        self,
        proposal: Proposal,
        mask: Tensor | None = None,
        *,
        steps: int,
        sigma_start: float,
        seeds: Tensor,
    ) -> Tensor:
        """The proposal (B, n, d) in the model's own frame, refined along ``steps`` Heun steps."""
        base = proposal.base @ procrustes(proposal.base, proposal.own, mask)
        n, condition = base.shape[1], proposal.condition
        reference = random_reference(n, mask, self.config.reference, seeds)
        previous: Tensor | None = None

        def denoise(u: Tensor, sigma: float) -> Tensor:
            nonlocal previous
            level = u.new_full((len(u),), sigma)
            previous = self.denoise(u, level, condition, base, mask, previous=previous, reference=reference)
            return previous

        scale = float(self.sigma_data)
        sigmas = karras_schedule(steps, sigma_start * scale, SIGMA_MIN * scale)
        noise = set_noise(n, self.dim, seeds, mask)
        return base + heun(denoise, sigma_start * scale * noise, sigmas)


def set_noise(n: int, dim: int, seeds: Tensor, mask: Tensor | None = None) -> Tensor:
    """Centred standard normal noise (B, n, dim), each set's from its own seed, for real points only."""
    noise = torch.zeros(len(seeds), n, dim)
    for row, seed in enumerate(seeds.tolist()):
        generator = torch.Generator().manual_seed(seed)
        if mask is None:
            noise[row] = torch.randn(n, dim, generator=generator)
        else:
            real = mask[row].cpu()
            noise[row, real] = torch.randn(int(real.sum()), dim, generator=generator)
    return centre(noise.to(seeds.device), mask)
