"""SpaOTsc from its repository as in its tutorial: binarised genes, cost exp(1 - r)^2, alpha .1, rho 100, epsilon 1."""

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
    return place_with(spots, cells, seed, binarised=True, epsilon=1.0)


if __name__ == "__main__":
    run(place)
