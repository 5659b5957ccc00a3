"""Tangram with input, training genes and entropy penalty chosen on held-out spots; otherwise as in its tutorial.

Its tutorial with squidpy gives log-normalised values instead of counts, and trains on marker genes: here those that vary
most over the slide. ``lambda_r`` favours peaked mappings. Tangram sums this penalty over cells, so settings hold it per
cell.
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
    {"log": True, "n_genes": 100, "per_cell": 0.0},
    {"log": True, "n_genes": 300, "per_cell": 0.0},
    {"log": True, "n_genes": None, "per_cell": 0.0},
    {"log": True, "n_genes": None, "per_cell": 0.1},
    {"log": False, "n_genes": None, "per_cell": 0.1},
]


def place_with(spots: ad.AnnData, cells: ad.AnnData, setting: Setting) -> np.ndarray:
    """Expected coordinates under the soft mapping of cells to spots."""
    import tangram as tg

    most_variable = np.argsort(-log_normalised(spots, 1e4).X.var(0))[: setting["n_genes"]]
    genes = list(spots.var_names[most_variable])
    if setting["log"]:
        cells, spots = log_normalised(cells, 1e4), log_normalised(spots, 1e4)
        cells.X = csr_matrix(cells.X)  # it fails on dense cells
    else:
        sc.pp.normalize_total(cells)
    tg.pp_adatas(cells, spots, genes=genes)
    mapped = tg.map_cells_to_space(
        cells,
        spots,
        mode="cells",
        density_prior="rna_count_based",
        lambda_r=setting["per_cell"] / cells.n_obs,
        num_epochs=500,
        device="cpu",
        random_state=0,
    )
    return expected(mapped.X, spots)


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> dict[str, np.ndarray]:
    """The cells with the best setting."""
    return with_best_setting(spots, cells, SETTINGS, place_with)


if __name__ == "__main__":
    run(place)
