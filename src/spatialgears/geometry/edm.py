"""EDM in four parts: preconditioning, noise levels, schedule, Heun sampler (section 3.4; Karras et al. 2022).

Noise levels sigma are (B,) tensors in absolute units; ``sigma_data`` is the scale of the clean signal,
sigma_data,resid.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

#: In units of sigma_data,resid: the lowest noise level (the paper is silent), and sigma_cap of each stage of training.
SIGMA_MIN, CURRICULUM = 0.02, (1.0, 3.0, 5.0)


class Coefficients(NamedTuple):
    """c_skip, c_out, c_in and c_noise at given noise levels, each (B,)."""

    skip: Tensor
    out: Tensor
    scale_in: Tensor
    noise: Tensor


def precondition(sigma: Tensor, sigma_data: Tensor) -> Coefficients:
    """The coefficients that give the network inputs and targets of unit variance at every noise level."""
    total = (sigma**2 + sigma_data**2).sqrt()
    return Coefficients(sigma_data**2 / total**2, sigma * sigma_data / total, 1 / total, sigma.log() / 4)


def loss_weight(sigma: Tensor, sigma_data: Tensor) -> Tensor:
    """w(sigma) = (sigma^2 + sigma_data^2) / (sigma sigma_data)^2, the inverse of c_out squared."""
    return (sigma**2 + sigma_data**2) / (sigma * sigma_data) ** 2


def noise_levels(batch: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    """Stratified log-uniform levels in [low, high], one from each of ``batch`` strata, in random order."""
    strata = torch.randperm(batch, generator=generator)
    place = (strata + torch.rand(batch, generator=generator)) / batch
    return low * (high / low) ** place


def sigma_cap(progress: float) -> float:
    """The curriculum's largest noise level at a share of training; its stages are equally long."""
    return CURRICULUM[min(int(progress * len(CURRICULUM)), len(CURRICULUM) - 1)]


def karras_schedule(steps: int, sigma_start: float, sigma_min: float, *, rho: float = 7.0) -> Tensor:
    """``steps`` levels from sigma_start down to sigma_min, then zero: (steps + 1,)."""
    ramp = torch.linspace(0, 1, steps, dtype=torch.float64)
    low, high = min(sigma_min, sigma_start) ** (1 / rho), sigma_start ** (1 / rho)
    return torch.cat([(high + ramp * (low - high)) ** rho, torch.zeros(1, dtype=torch.float64)])


def heun(
    denoise: Callable[[Tensor, float], Tensor],
    u: Tensor,
    sigmas: Tensor,
) -> Tensor:
    """Follow dU/dsigma = (U - D(U, sigma)) / sigma along ``sigmas`` by Heun's second-order method.

    Parameters
    ----------
    denoise
        D(U, sigma), the estimate of the clean signal.
    u
        Noisy signal at ``sigmas[0]``.
    sigmas
        Decreasing levels; a last level of zero takes an Euler step, since the slope does not exist there.
    """
    for now, after in itertools.pairwise(sigmas.tolist()):
        slope = (u - denoise(u, now)) / now
        euler = u + (after - now) * slope
        if after > 0:
            slope = (slope + (euler - denoise(euler, after)) / after) / 2
            u = u + (after - now) * slope
        else:
            u = euler
    return u
