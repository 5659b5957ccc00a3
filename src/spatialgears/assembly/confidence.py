"""How far off each cell may be, learnt from spots that the model had not seen when it placed them.

Cells that look alike are placed alike well: the error of a cell is judged by the errors of the held-out spots
whose expression is nearest to its own (split conformal prediction with a local scale), and a cell that has no
such spots is marked instead of judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NEIGHBORS, SUPPORT, DIM = 64, 10, 20
BLOCK = 2**25  # distances held at once
FAR_QUANTILE = 0.99


@dataclass(frozen=True, eq=False)
class Confidence:
    """Radii and support of cells, by the held-out spots nearest in expression.

    Attributes
    ----------
    centre, axes
        (f,) and (f, p): the principal axes of the spots' features.
    bank
        (m, p) held-out spots, several views of each.
    log_error
        (m,) logarithm of how far off each was placed.
    ratios
        (m,) sorted: error over local scale, whose quantiles turn a local scale into a radius.
    far
        A cell whose distance to its nearest spots is larger lies outside what the slides show.
    """

    centre: Tensor
    axes: Tensor
    bank: Tensor
    log_error: Tensor
    ratios: Tensor
    far: float

    @classmethod
    def fit(cls, features: Tensor, error: Tensor, spot: Tensor) -> Confidence:
        """Learn from held-out spots.

        Parameters
        ----------
        features
            (m, f) views of held-out spots.
        error
            (m,) distance between the predicted and the true place of each.
        spot
            (m,) which spot each is a view of; a spot does not vouch for itself.
        """
        centre = features.mean(0)
        _, axes = torch.linalg.eigh((features - centre).T @ (features - centre))
        axes = axes[:, -DIM:].flip(1)
        bank = (features - centre) @ axes
        log_error = error.clamp_min(1e-6).log()
        scale, distance = _local(bank, bank, log_error, own=spot)
        ratios = (error / scale).sort().values
        far = float(distance.quantile(FAR_QUANTILE)) * 1.25
        return cls(centre, axes, bank, log_error, ratios, far)

    def radii(self, features: Tensor | NDArray[Any], level: float) -> NDArray[np.float32]:
        """(N,) radius that holds the true place of a cell with probability ``level``; O(N m)."""
        return (self._scale(features)[0] * self.quantile(level)).numpy()

    def judge(
        self, features: Tensor | NDArray[Any]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
        """50% radius, 90% radius and whether no slide supports the cell, (N,) each."""
        scale, distance = self._scale(features)
        return (
            (scale * self.quantile(0.5)).numpy(),
            (scale * self.quantile(0.9)).numpy(),
            (distance > self.far).numpy(),
        )

    def quantile(self, level: float) -> float:
        """The finite-sample quantile of the ratios: ceil(level (m + 1)) of m."""
        rank = int(np.ceil(level * (len(self.ratios) + 1)))
        return float(self.ratios[min(rank, len(self.ratios)) - 1])

    def _scale(self, features: Tensor | NDArray[Any]) -> tuple[Tensor, Tensor]:
        values = torch.as_tensor(np.asarray(features)) if not isinstance(features, Tensor) else features
        return _local((values - self.centre) @ self.axes, self.bank, self.log_error)

    def tensors(self) -> dict[str, Tensor]:
        """For a model folder."""
        return {
            "centre": self.centre,
            "axes": self.axes,
            "bank": self.bank,
            "log_error": self.log_error,
            "ratios": self.ratios,
            "far": torch.tensor(self.far, dtype=torch.float64),
        }

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Confidence:
        """Back from :meth:`tensors`."""
        centre, axes, bank = tensors["centre"], tensors["axes"], tensors["bank"]
        return cls(centre, axes, bank, tensors["log_error"], tensors["ratios"], float(tensors["far"]))


def _local(
    points: Tensor, bank: Tensor, log_error: Tensor, *, own: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Geometric mean error of the nearest bank entries, and mean distance to the very nearest, (N,) each."""
    k = min(NEIGHBORS, len(bank) - (0 if own is None else int(torch.bincount(own).max())))
    scales, distances = [], []
    rows = max(1, BLOCK // len(bank))
    for start in range(0, len(points), rows):
        gap = torch.cdist(points[start : start + rows], bank)  # (rows, m)
        if own is not None:
            gap.masked_fill_(own[start : start + rows, None] == own[None], torch.inf)
        near, index = gap.topk(k, largest=False)
        scales.append(log_error[index].mean(1).exp())
        distances.append(near[:, : min(SUPPORT, k)].mean(1))
    return torch.cat(scales), torch.cat(distances)
