"""VICReg and the terms that align two domains (section 3.1 and appendix, Stage A). Small pure functions."""

from __future__ import annotations

import torch
from torch import Tensor

GAMMA = 1.0  # the paper's appendix: the least standard deviation of an embedded dimension
#: Bandwidths of the MMD kernels, as multiples of the mean squared distance of the batch.
BANDWIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)


def vicreg(z1: Tensor, z2: Tensor) -> dict[str, Tensor]:
    """Invariance, variance and covariance of two views' embeddings (n, h), unweighted.

    The sums of the paper's equation are divided by their number of terms (invariance by n h, variance and
    covariance by h), as in VICReg, so that weights do not depend on batch size and width.
    """
    h = z1.shape[1]
    variance = z1.new_zeros(())
    covariance = z1.new_zeros(())
    for z in (z1, z2):
        cov = torch.cov(z.T)  # (h, h)
        std = (cov.diagonal() + 1e-4).sqrt()
        variance = variance + torch.relu(GAMMA - std).sum() / h
        covariance = covariance + (cov.square().sum() - cov.diagonal().square().sum()) / h
    return {"invariance": (z1 - z2).square().mean(), "variance": variance, "covariance": covariance}


def mmd(a: Tensor, b: Tensor) -> Tensor:
    """Squared maximum mean discrepancy of two samples (n, h) and (m, h), mean over Gaussian kernels.

    Bandwidths are multiples of the mean squared distance between all samples, taken as a constant.
    """
    joint = torch.cat([a, b])
    squared = torch.cdist(joint, joint).square()
    sign = torch.cat([a.new_full((len(a),), 1 / len(a)), b.new_full((len(b),), -1 / len(b))])
    scale = squared.detach().mean().clamp_min(1e-8)
    kernel = torch.stack([torch.exp(-squared / (width * scale)) for width in BANDWIDTHS]).mean(0)
    return sign @ kernel @ sign


def coral(a: Tensor, b: Tensor) -> Tensor:
    """Squared Frobenius distance of the covariances of (n, h) and (m, h), over 4 h^2."""
    return (torch.cov(a.T) - torch.cov(b.T)).square().sum() / (4 * a.shape[1] ** 2)


def local_alignment(a: Tensor, b: Tensor, *, k: int = 5) -> Tensor:
    """Mean squared distance of each sample to the centre of its k nearest in the other domain, both ways.

    The paper gives only the name and weight of this term. MMD and CORAL match the domains as a whole; this term matches
    each neighbourhood with its counterpart.
    """

    def one_way(x: Tensor, y: Tensor) -> Tensor:
        nearest = torch.cdist(x.detach(), y.detach()).topk(min(k, len(y)), largest=False).indices  # (n, k)
        return (x - y[nearest].mean(1)).square().mean()

    return 0.5 * (one_way(a, b) + one_way(b, a))
