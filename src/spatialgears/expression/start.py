"""Where a residual encoder starts: a weighted SVD whose components are freed of counting noise.

Linear and closed-form, it is what VICReg on thinned views tends to: dimensions of unit variance, uncorrelated, and as
much alike as possible in two views that share no read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg import eigh
from sklearn.utils.extmath import randomized_svd
from torch import Tensor

from spatialgears.expression.inputs import Inputs
from spatialgears.expression.panel import morans_i

#: Rows of each domain that the SVD is taken of.
SVD_ROWS = 5000
#: Added to the noise of every component, as a multiple of its mean: components are not whitened beyond this.
RIDGE = 1.0


class Start(NamedTuple):
    """A linear start: ``projection`` (f, h) to unit variance, and ``scale`` (h,) of the finished dimensions."""

    projection: Tensor
    scale: Tensor


def svd_basis(spots: Tensor, cells: Tensor, n_components: int, *, seed: int) -> Tensor:
    """Leading right singular vectors (G, f) of spots and as many cells, both weighted expression (n, G)."""
    rng = np.random.default_rng(seed)
    count = min(len(spots), SVD_ROWS)
    rows = [x[torch.from_numpy(rng.permutation(len(x))[:count])] for x in (spots, cells)]
    joint = torch.cat(rows).numpy()
    n_components = min(n_components, *joint.shape)
    _, _, right = randomized_svd(joint, n_components, n_iter=4, random_state=int(rng.integers(2**31)))
    return torch.from_numpy(np.ascontiguousarray(right.T, dtype=np.float32))


def noise_whitened(spots: Inputs, embed_dim: int, *, coords: Sequence[np.ndarray] | None) -> Start:
    """Directions in which pairs of views agree most for their noise, weighted by the place they carry.

    With x1 and x2 two views of a profile, ``signal = cov(x1, x2)`` and ``noise = cov(x1) - signal``; the directions
    solve ``signal u = lambda noise u`` and are scaled to unit noise. Each then weighs the square root of its Moran's I,
    as genes do.

    Parameters
    ----------
    spots
        With a bank of pairs.
    embed_dim
        h, lowered to the number of components there are.
    coords
        (n_i, 2) spot places by slide, for the weights; None for equal weights.
    """
    assert spots.bank is not None
    x1, x2 = (spots.bank[:, half].flatten(0, 1).double() for half in (0, 1))  # (pairs * n, f)
    x1, x2 = x1 - x1.mean(0), x2 - x2.mean(0)
    signal = (x1.T @ x2 + x2.T @ x1).numpy() / (2 * len(x1))
    total = (x1.T @ x1 + x2.T @ x2).numpy() / (2 * len(x1))
    noise = total - signal
    noise += RIDGE * np.trace(noise) / len(noise) * np.eye(len(noise))
    f = len(noise)
    _, directions = eigh(signal, noise, subset_by_index=[f - min(embed_dim, f), f - 1])
    directions = directions[:, ::-1]  # (f, h), most signal first
    std = np.sqrt(np.einsum("fh,fg,gh->h", directions, total, directions))
    projection = torch.from_numpy(directions / std).float()
    scale = std
    if coords is not None:
        z = (spots.clean @ projection).numpy()
        slide = spots.group.numpy()
        moran = np.mean([morans_i(z[slide == i], xy, raw=False) for i, xy in enumerate(coords)], axis=0)
        scale = std * np.sqrt(np.maximum(moran, 0))
    return Start(projection, torch.from_numpy(scale / np.sqrt(np.mean(scale**2))).float())
