"""Folds: which spots are held out of which model, decided once before training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from spatialgears.runtime.seeds import child_seed, torch_rng

PARTS = 10  # a cross-fitted model is trained without one of at least so many random parts of the spots
MOST_LEFT_OUT = 3  # donors, or slides of one donor, that are left out in turn, at most


@dataclass(frozen=True, eq=False)
class Folds:
    """For every spot, the models that are trained without it. Spots are numbered through the slides in order."""

    #: (n_spots,) number of the cross-fitted model that is trained without the spot; ``crossfit`` or more for none.
    part: NDArray[np.int64]
    #: (n_spots,) number of what is left out as a whole with the spot: its donor, or its slide where all slides are of one
    #: donor. Model i of those that leave out a whole is trained without whole i.
    whole: NDArray[np.int64]
    crossfit: int  # cross-fitted models: 0 where one model is trained on all spots
    left_out: int  # models that each leave out a whole donor or slide

    @classmethod
    def draw(
        cls,
        sizes: Sequence[int],
        *,
        crossfit: int,
        left_out: int,
        seed: int,
        wholes: Sequence[int] | None = None,
    ) -> Folds:
        """Draw the folds of slides with ``sizes`` spots each.

        ``crossfit`` is the number of cross-fitted models, ``left_out`` that of models that each leave out a whole donor or
        slide. Slides with the same number in ``wholes``, from 0, are left out together; by default each slide alone.
        """
        n_spots = sum(sizes)
        order = torch.randperm(n_spots, generator=torch_rng(child_seed(seed, "geometry"), "folds")).numpy()
        wholes = range(len(sizes)) if wholes is None else wholes
        return cls(order % max(crossfit, PARTS), np.repeat(wholes, sizes), crossfit, left_out)

    @property
    def wholes(self) -> int:
        """Donors, or slides of one donor, that could be left out."""
        return len(np.unique(self.whole))

    @property
    def held_out(self) -> NDArray[np.bool_]:
        """(n_spots,) whether some cross-fitted model is trained without the spot."""
        return self.part < self.crossfit


def models_left_out(wholes: int) -> int:
    """How many models each leave out one of ``wholes`` donors, or slides of one donor."""
    return min(wholes, MOST_LEFT_OUT) if wholes > 1 else 0
