"""Tangram, cells mode, as in its tutorial on Visium: counts-based density prior, 500 epochs."""

from __future__ import annotations

import sys
from pathlib import Path

import anndata as ad
import numpy as np
import scanpy as sc

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import expected, run


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> np.ndarray:
    """Expected coordinates under the soft mapping of cells to spots."""
    import tangram as tg

    sc.pp.normalize_total(cells)
    tg.pp_adatas(cells, spots, genes=None)
    mapped = tg.map_cells_to_space(
        cells,
        spots,
        mode="cells",
        density_prior="rna_count_based",
        num_epochs=500,
        device="cpu",
        random_state=seed,
    )
    return expected(mapped.X, spots)


if __name__ == "__main__":
    run(place)
