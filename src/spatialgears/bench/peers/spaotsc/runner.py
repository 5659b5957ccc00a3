"""SpaOTsc from its repository, with its tutorial's cost exp(1 - r)^2, alpha .1, rho 100, epsilon 1.

It compares all pairs of cells in every iteration. More than ``BLOCK`` cells are therefore placed in random blocks of
equal size, each with all spots.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anndata as ad
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import expected, log_normalised, run

BLOCK = 1500


def correlations(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Pearson correlation of every row of ``a`` with every row of ``b``."""
    a, b = (x - x.mean(1, keepdims=True) for x in (a, b))
    a, b = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (a, b))
    return a @ b.T


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> np.ndarray:
    """Expected coordinates under the structured, unbalanced transport plan, block by block."""
    lattice = type(sys)("dit.pid.lattice")  # gone from later versions, and not needed to place cells
    vars(lattice)["sort_key"] = None
    sys.modules["dit.pid.lattice"] = lattice
    order = np.random.default_rng(seed).permutation(cells.n_obs)
    coords = np.empty((cells.n_obs, 2))
    for block in np.array_split(order, -(-cells.n_obs // BLOCK)):
        coords[block] = place_block(spots, cells[block], seed)
    return coords


def place_block(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> np.ndarray:
    """Expected coordinates of cells that are few enough."""
    from scipy.spatial.distance import cdist
    from sklearn.decomposition import PCA
    from spaotsc import SpaOTsc

    singles, mixed = log_normalised(cells, 1e4), log_normalised(spots, 1e4)
    across = correlations(singles.X, mixed.X)  # (cells, spots)
    scores = PCA(min(40, singles.n_vars - 1), random_state=seed).fit_transform(singles.X)
    coords = spots.obsm["spatial"]
    model = SpaOTsc.spatial_sc(
        sc_data=singles.to_df(),
        is_data=mixed.to_df(),
        sc_dmat=np.exp(1 - correlations(scores, scores)),
        is_dmat=cdist(coords, coords),
    )
    plan = model.transport_plan(
        np.exp(1 - across) ** 2, alpha=0.1, rho=100.0, epsilon=1.0, cor_matrix=across, scaling=False
    )
    return expected(plan, spots)


if __name__ == "__main__":
    run(place)
