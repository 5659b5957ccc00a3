"""scSpace from its repository, with its defaults: transfer component analysis, then an MLP to coordinates.

It is trained on coordinates that start at zero, in units of the spot pitch, as in its vignettes. Far from zero it learns
less: its last layer has to reach them in small steps.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anndata as ad
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import log_normalised, pitch, run


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> np.ndarray:
    """The pseudo-space, brought back to the slide."""
    from scSpace.scspace import construct_pseudo_space

    singles, mixed = log_normalised(cells, 1e4), log_normalised(spots, 1e4)
    corner, unit = spots.obsm["spatial"].min(0), pitch(spots)
    mixed.obsm["spatial"] = (spots.obsm["spatial"] - corner) / unit
    placed, _ = construct_pseudo_space(sc_adata=singles, st_adata=mixed, dim=min(50, spots.n_vars))
    return placed.obsm["pseudo_space"] * unit + corner


if __name__ == "__main__":
    run(place)
