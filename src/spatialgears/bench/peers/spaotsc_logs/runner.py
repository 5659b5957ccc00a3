"""SpaOTsc with log-normalised instead of binarised genes; otherwise as in its tutorial."""

from __future__ import annotations

import sys
from pathlib import Path

import anndata as ad
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from by_spaotsc import place_with
from common import run


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> np.ndarray:
    """Expected coordinates under the transport plan."""
    return place_with(spots, cells, seed, binarised=False, epsilon=1.0)


if __name__ == "__main__":
    run(place)
