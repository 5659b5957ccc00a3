"""The uncertainty of each cell's position, calibrated on held-out spots.

Every point has a spread: how far it moves when parts of its expression are masked. The errors of held-out spots in units of
their spread give the radii of cells (split conformal prediction). A cell that resembles no spot is also flagged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SUPPORT, DIM = 10, 20
BLOCK = 2**25  # distances held at once
FAR_QUANTILE = 0.99
MOST_JUDGED = 20_000  # most held-out views whose support sets the limit


@dataclass(frozen=True, eq=False)
class Confidence:
    """Radii of cells from their spread, and support by the held-out spots nearest in expression."""

    #: (f,) and (f, p): the principal axes of the spots' features.
    centre: Tensor
    axes: Tensor
    bank: Tensor  # (m, p) held-out spots, several views of each
    #: (m,) sorted ratios of error to spread, whose quantiles turn a spread into a radius: on left-out donors or slides if
    #: there are any, else on held-out spots.
    ratios: Tensor
    own: Tensor  # (k,) the same on held-out spots of training slides
    far: float  # a cell whose distance to its nearest spots is larger resembles no spot

    @classmethod
    def fit(
        cls, features: Tensor, error: Tensor, spread: Tensor, *, spot: Tensor, own: Tensor | None = None
    ) -> Confidence:
        """Calibrate on held-out spots.

        Parameters
        ----------
        features
            (m, f) views of held-out spots.
        error
            (m,) distance between the predicted and the true position of each.
        spread
            (m,) how far each moves under dropout, in the model that was trained without it.
        spot
            (m,) the spot that each is a view of; a spot does not support itself.
        own
            (k,) ratios of error to spread on held-out spots of training slides; None: ``features`` are such spots.
        """
        centre = features.mean(0)
        _, axes = torch.linalg.eigh((features - centre).T @ (features - centre))
        axes = axes[:, -DIM:].flip(1)
        bank = (features - centre) @ axes
        some = torch.arange(0, len(bank), -(-len(bank) // MOST_JUDGED))
        distance = _support(bank[some], bank, own=(spot[some], spot))
        far = float(distance.quantile(FAR_QUANTILE)) * 1.25
        ratios = (error / spread).sort().values
        return cls(centre, axes, bank, ratios, ratios if own is None else own.sort().values, far)

    def radii(self, spread: Tensor, level: float) -> NDArray[np.float32]:
        """(N,) radius that contains the true position of a cell with this spread with probability ``level``."""
        return (spread * self.quantile(level)).numpy()

    def outside(self, features: Tensor) -> NDArray[np.bool_]:
        """(N,) whether cells with features (N, f) resemble no spot; O(N m)."""
        return (_support((features - self.centre) @ self.axes, self.bank) > self.far).numpy()

    def quantile(self, level: float, *, own: bool = False) -> float:
        """The finite-sample quantile of the ratios, or of the slides' ``own``: ceil(level (m + 1)) of m."""
        ratios = self.own if own else self.ratios
        rank = int(np.ceil(level * (len(ratios) + 1)))
        return float(ratios[min(rank, len(ratios)) - 1])

    def tensors(self) -> dict[str, Tensor]:
        """For a model folder."""
        return {
            "centre": self.centre,
            "axes": self.axes,
            "bank": self.bank,
            "ratios": self.ratios,
            "own": self.own,
            "far": torch.tensor(self.far, dtype=torch.float64),
        }

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Confidence:
        """Back from :meth:`tensors`."""
        centre, axes, bank = tensors["centre"], tensors["axes"], tensors["bank"]
        return cls(centre, axes, bank, tensors["ratios"], tensors["own"], float(tensors["far"]))


def error_of_mean(error: Tensor, spread: Tensor, *, noise: float, members: int) -> Tensor:
    """Errors (m,) that the mean of several models would make, from those of single models.

    Parameters
    ----------
    error, spread
        (m,) of points placed by one model each.
    noise
        Variance by which members differ from their mean, divided by the squared spread. The mean does not have it; errors
        that all members share remain.
    members
        Number of models: no error becomes smaller than the mean of as many independent errors.
    """
    squared = error.square()
    return torch.maximum(squared - noise * spread.square(), squared / members).sqrt()


def _support(points: Tensor, bank: Tensor, *, own: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Mean distance (N,) to the nearest bank entries, without those of a point's own spot."""
    k = min(SUPPORT, len(bank) - (0 if own is None else int(torch.bincount(own[1]).max())))
    found = []
    for part in torch.arange(len(points)).split(max(1, BLOCK // len(bank))):
        gap = torch.cdist(points[part], bank)  # (rows, m)
        if own is not None:
            gap.masked_fill_(own[0][part, None] == own[1][None], torch.inf)
        found.append(gap.topk(k, largest=False).values.mean(1))
    return torch.cat(found)
