"""SpaOTsc from its repository, with its tutorial's cost exp(1 - r)^2, alpha .1, rho 100, epsilon 1."""

from __future__ import annotations

import sys
from pathlib import Path

import anndata as ad
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import expected, log_normalised, run


def correlations(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Pearson correlation of every row of ``a`` with every row of ``b``."""
    a, b = (x - x.mean(1, keepdims=True) for x in (a, b))
    a, b = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (a, b))
    return a @ b.T


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> np.ndarray:
    """Expected coordinates under the structured, unbalanced transport plan."""
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
