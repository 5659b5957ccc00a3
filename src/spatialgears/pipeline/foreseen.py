"""What can be said of a run before it starts, from its inputs and its configuration alone."""

from __future__ import annotations

import numpy as np

from spatialgears.config import Config
from spatialgears.errors import ConfigError
from spatialgears.pipeline.self_check import not_held_out, weak_signal
from spatialgears.validate.donors import Donors


def require_sets(config: Config, n_slides: int) -> None:
    """Refuse more processes than there are minisets to share.

    Raises
    ------
    ConfigError
        If some would have nothing to train on.
    """
    if config.processes > (sets := config.geometry.sets(n_slides)):
        raise ConfigError(
            f"{config.processes} processes cannot share the {sets} sets of a training step.",
            "Use fewer devices, or a larger geometry.batch_size and geometry.slide_batch.",
        )


def foreseen(moran: np.ndarray, donors: Donors, config: Config) -> list[str]:
    """Warnings that a run on slides whose genes have these Moran's I (G,) will give, whatever it learns."""
    geometry = config.geometry
    slides = len(donors.names) > 1 and geometry.slide_steps > 0
    return not_held_out(geometry.crossfit > 0 or slides, slides, donors=donors) + weak_signal(moran)
