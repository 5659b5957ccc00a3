"""novoSpaRc with the weight of the atlas and the entropy chosen on held-out spots; otherwise as in its tutorial."""

from __future__ import annotations

import sys
from pathlib import Path

import anndata as ad
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import expected, log_normalised, run
from held_out import Setting, with_best_setting

SETTINGS = [
    {"alpha_linear": alpha, "epsilon": epsilon} for alpha in (0.5, 0.8, 1.0) for epsilon in (5e-4, 5e-3)
]


def place_with(spots: ad.AnnData, cells: ad.AnnData, setting: Setting) -> np.ndarray:
    """Expected coordinates under the transport plan."""
    import novosparc

    atlas = log_normalised(spots, 1e4)
    tissue = novosparc.cm.Tissue(dataset=log_normalised(cells, 1e4), locations=spots.obsm["spatial"])
    tissue.setup_reconstruction(
        atlas_matrix=atlas.X, markers_to_use=np.arange(spots.n_vars), num_neighbors_s=5, num_neighbors_t=5
    )
    tissue.reconstruct(**setting)
    return expected(tissue.gw, spots)  # NaN for cells whose weights underflow


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> dict[str, np.ndarray]:
    """The cells with the best setting."""
    return with_best_setting(spots, cells, SETTINGS, place_with)


if __name__ == "__main__":
    run(place)
