"""The start of a residual encoder: a weighted SVD, so that training starts as good as a simple reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from sklearn.utils.extmath import randomized_svd
from torch import Tensor

from spatialgears.expression.panel import morans_i

COMPONENTS = 200  # of the SVD that a residual encoder sees
#: Rows of each domain that the SVD is computed from.
SVD_ROWS = 5000


class Start(NamedTuple):
    """A linear start: ``projection`` (f, h) to unit variance, and ``scale`` (h,) of the finished dimensions."""

    projection: Tensor
    scale: Tensor


def svd_basis(spots: Tensor, cells: Tensor, *, seed: int) -> Tensor:
    """Leading right singular vectors (G, f) of spots and as many cells, both weighted expression (n, G).

    They are divided by the largest component's standard deviation, so that an MLP sees values of order one.
    """
    rng = np.random.default_rng(seed)
    count = min(len(spots), SVD_ROWS)
    rows = [x[torch.from_numpy(rng.permutation(len(x))[:count])] for x in (spots, cells)]
    joint = torch.cat(rows).numpy()
    n_components = min(COMPONENTS, *joint.shape)
    _, size, right = randomized_svd(joint, n_components, n_iter=4, random_state=int(rng.integers(2**31)))
    basis = right.T * (np.sqrt(len(joint)) / size[0])
    return torch.from_numpy(np.ascontiguousarray(basis, dtype=np.float32))


def weighted_start(
    spots: Tensor, cells: Tensor, embed_dim: int, *, slide: Tensor, coords: Sequence[np.ndarray] | None
) -> Start:
    """The leading components, half whitened, each weighted by how spatial it is on the slides.

    A component of standard deviation s and Moran's I of I gets the standard deviation ``sqrt(s) I``: large components do
    not dominate finer ones, and components that are noise on the slides vanish. Without ``coords`` all weights are equal.

    ``spots`` and ``cells`` (n, f) are in the basis of components, of which ``embed_dim`` are taken, or as many as there
    are; ``slide`` (n,) is that of the spots.
    """
    dims = min(embed_dim, spots.shape[1])
    std = 0.5 * (spots[:, :dims].std(0) + cells[:, :dims].std(0))
    scale = std.sqrt().double().numpy()
    if coords is not None:
        z = spots[:, :dims].numpy()
        moran = [morans_i(z[slide.numpy() == i], xy, raw=False) for i, xy in enumerate(coords)]
        scale = scale * np.maximum(np.mean(moran, axis=0), 0)
    projection = torch.eye(spots.shape[1], dims) / std
    return Start(projection, torch.from_numpy(scale / np.sqrt(np.mean(scale**2))).float())
