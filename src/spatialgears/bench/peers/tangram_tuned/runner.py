"""Tangram with input, entropy penalty and number of epochs chosen on held-out spots; otherwise as in its tutorial.

Its tutorial with squidpy gives log-normalised values instead of counts; ``lambda_r`` favours peaked mappings. Tangram
sums this penalty over cells, so settings hold it per cell.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anndata as ad
import numpy as np
import scanpy as sc
from scipy.sparse import csr_matrix

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import expected, log_normalised, run
from held_out import Setting, with_best_setting

SETTINGS = [
    {"log": True, "per_cell": 0.0, "num_epochs": 500},
    {"log": True, "per_cell": 0.1, "num_epochs": 500},
    {"log": True, "per_cell": 0.0, "num_epochs": 1000},
    {"log": False, "per_cell": 0.1, "num_epochs": 500},
]


def place_with(spots: ad.AnnData, cells: ad.AnnData, setting: Setting) -> np.ndarray:
    """Expected coordinates under the soft mapping of cells to spots."""
    import tangram as tg

    if setting["log"]:
        cells, spots = log_normalised(cells, 1e4), log_normalised(spots, 1e4)
        cells.X = csr_matrix(cells.X)  # it fails on dense cells
    else:
        sc.pp.normalize_total(cells)
    tg.pp_adatas(cells, spots, genes=None)
    mapped = tg.map_cells_to_space(
        cells,
        spots,
        mode="cells",
        density_prior="rna_count_based",
        lambda_r=setting["per_cell"] / cells.n_obs,
        num_epochs=setting["num_epochs"],
        device="cpu",
        random_state=0,
    )
    return expected(mapped.X, spots)


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> dict[str, np.ndarray]:
    """The cells with the best setting."""
    return with_best_setting(spots, cells, SETTINGS, place_with)


if __name__ == "__main__":
    run(place)
