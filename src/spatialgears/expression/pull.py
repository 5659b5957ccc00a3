"""Moving the profiles of cells towards similar profiles, which reduces platform effects and noise.

The generators are trained on spots only. Moving a cell's profile part of the way to the mean of its most similar spots brings
it closer to their training data. The share is small, because a cell that moves too far loses what is specific to it. On whole
transcriptomes :mod:`~spatialgears.expression.signal` has the same effect, so this step is for targeted panels.

A cell of another donor may instead move towards the mean of its most similar cells (:mod:`~spatialgears.pipeline.likeness`):
the mean is less noisy, and predicts position across donors better than what is specific to one cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import normalize

NEAREST, DIM = 5, 30
ROWS = 2000  # cells compared with all spots at once


@dataclass(frozen=True, eq=False)
class Pull:
    """Profiles, and how far cells are moved towards those most similar to them."""

    bank: Tensor  # (m, G) spots, each the mean of several thinned views, or cells
    axes: Tensor  # (G, p) the principal axes of the bank, in which similarity is the cosine
    share: float  # share of the way from a cell to the mean of the nearest
    nearest: int = NEAREST  # how many these are

    @classmethod
    def fit(cls, bank: Tensor, share: float, *, nearest: int = NEAREST) -> Pull:
        """From mean views (m, G) of spots, or from cells."""
        axes = torch.linalg.svd(bank - bank.mean(0), full_matrices=False).Vh[:DIM].T
        return cls(bank, axes.contiguous(), share, nearest)

    @cached_property
    def directions(self) -> Tensor:
        """(m, p) coordinates of the bank along the axes, scaled to unit length."""
        return normalize(self.bank @ self.axes, dim=1)

    def __call__(self, x: Tensor) -> Tensor:
        """Features (n, G) of cells, moved."""
        parts = []
        for part in x.split(ROWS):
            similarity = normalize(part @ self.axes, dim=1) @ self.directions.T  # (rows, m)
            nearest = similarity.topk(min(self.nearest, len(self.bank)), dim=1).indices
            parts.append(torch.lerp(part, self.bank[nearest].mean(1), self.share))
        return torch.cat(parts) if parts else x
