"""novoSpaRc, the slide as atlas, as in its Drosophila tutorial: 5 neighbours, alpha .8, epsilon 5e-3."""

from __future__ import annotations

import sys
from pathlib import Path

import anndata as ad
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import expected, log_normalised, run


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> np.ndarray:
    """Expected coordinates under the transport plan."""
    import novosparc

    atlas = log_normalised(spots, 1e4)
    tissue = novosparc.cm.Tissue(dataset=log_normalised(cells, 1e4), locations=spots.obsm["spatial"])
    tissue.setup_reconstruction(
        atlas_matrix=atlas.X, markers_to_use=np.arange(spots.n_vars), num_neighbors_s=5, num_neighbors_t=5
    )
    tissue.reconstruct(alpha_linear=0.8, epsilon=5e-3)
    return expected(tissue.gw, spots)


if __name__ == "__main__":
    run(place)
