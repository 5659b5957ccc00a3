"""Warnings and refusals known before training, from the inputs and the configuration alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spatialgears.config import Config
from spatialgears.errors import ConfigError
from spatialgears.pipeline.self_check import FEWEST_SPOTS, not_held_out, weak_signal
from spatialgears.supervision.folds import Folds
from spatialgears.validate.donors import Donors


def require_sets(config: Config, n_slides: int) -> None:
    """Refuse more processes than there are minisets to share: some would have nothing to train on."""
    if config.processes > (sets := config.geometry.sets(n_slides)):
        raise ConfigError(
            f"{config.processes} processes cannot share the {sets} sets of a training step.",
            "Use fewer devices, or a larger geometry.batch_size and geometry.slide_batch.",
        )


def foreseen(moran: np.ndarray, donors: Donors, folds: Folds, sizes: Sequence[int]) -> list[str]:
    """Warnings that do not depend on training: weak spatial signal (Moran's I, (G,)), and what is not held out.

    ``sizes`` are the numbers of spots of each slide.
    """
    held = np.bincount(np.repeat(np.arange(len(sizes)), sizes)[folds.held_out])
    spots = bool((held >= FEWEST_SPOTS).any()) or folds.left_out > 0
    return not_held_out(spots, folds.left_out > 0, donors=donors) + weak_signal(moran)
