"""SC2Spa with its defaults (polar coordinates, 500 epochs at most); batches of an eighth of the spots.

Its batches of 4,096 are made for Slide-seq and larger than these slides. With a seed it does not shuffle the spots, and
normalises by batch; so it gets them in random order, not from one side of the slide to the other.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anndata as ad
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import hundred, log_normalised, run


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> np.ndarray:
    """The predicted coordinates, brought back from the first quadrant, which its polar coordinates need."""
    notebook = sys.modules["IPython.display"] = type(sys)("IPython.display")  # only notebooks have it
    vars(notebook)["clear_output"] = print
    from SC2Spa import tl

    spots = spots[np.random.default_rng(seed).permutation(spots.n_obs)]
    slide, singles = log_normalised(spots, 1e4), log_normalised(cells, 1e4)
    location, corner, size = hundred(spots)
    slide.obsm["spatial"] = location + 1
    tl.FineMapping(
        slide,
        singles,
        sparse=False,
        batch_size=max(1, spots.n_obs // 8),
        loss="mse",  # as in its Train; the present Keras refuses to watch its RMSE
        loss_name="mse",
        save=False,
        FM=False,
        seed=seed,
    )
    return singles.obsm["spatial_mapping"] / (location.max(0) + 2) * size + corner


if __name__ == "__main__":
    run(place)
