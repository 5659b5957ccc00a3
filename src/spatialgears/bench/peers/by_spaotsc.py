"""Placing cells with SpaOTsc, for its two runners: the cost is exp(1 - r)^2 of the correlation of cells and spots.

Its tutorial correlates binarised genes (Matthews correlation), and loads them ready-made: here a gene is on where its
log-normalised value is above its mean. SpaOTsc compares all pairs of cells in every iteration. More than ``BLOCK`` cells
are therefore placed in random blocks of equal size, each with all spots.
"""

from __future__ import annotations

import sys

import anndata as ad
import numpy as np
from common import expected, log_normalised

BLOCK = 1500


def place_with(
    spots: ad.AnnData, cells: ad.AnnData, seed: int, *, binarised: bool, epsilon: float
) -> np.ndarray:
    """Expected coordinates (cells, 2) under the structured, unbalanced transport plan, block by block."""
    lattice = type(sys)("dit.pid.lattice")  # gone from later versions, and not needed to place cells
    vars(lattice)["sort_key"] = None
    sys.modules["dit.pid.lattice"] = lattice
    singles, mixed = log_normalised(cells, 1e4), log_normalised(spots, 1e4)
    a, b = ((x > x.mean(0)) if binarised else x for x in (singles.X, mixed.X))
    across = correlations(a, b)  # (cells, spots)
    order = np.random.default_rng(seed).permutation(cells.n_obs)
    coords = np.empty((cells.n_obs, 2))
    for block in np.array_split(order, -(-cells.n_obs // BLOCK)):
        coords[block] = expected(_plan(singles[block], mixed, across[block], seed, epsilon), spots)
    return coords


def _plan(cells: ad.AnnData, spots: ad.AnnData, across: np.ndarray, seed: int, epsilon: float) -> np.ndarray:
    """The transport plan (cells, spots), with alpha and rho of the tutorial."""
    from scipy.spatial.distance import cdist
    from sklearn.decomposition import PCA
    from spaotsc import SpaOTsc

    scores = PCA(min(40, cells.n_obs - 1, cells.n_vars - 1), random_state=seed).fit_transform(cells.X)
    model = SpaOTsc.spatial_sc(
        sc_data=cells.to_df(),
        is_data=spots.to_df(),
        sc_dmat=np.exp(1 - correlations(scores, scores)),
        is_dmat=cdist(spots.obsm["spatial"], spots.obsm["spatial"]),
    )
    return model.transport_plan(
        np.exp(1 - across) ** 2, alpha=0.1, rho=100.0, epsilon=epsilon, cor_matrix=across, scaling=False
    )


def correlations(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Pearson correlation of every row of ``a`` with every row of ``b``; of binary rows, Matthews correlation."""
    a, b = (x - x.mean(1, keepdims=True) for x in (a.astype(float), b.astype(float)))
    a, b = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (a, b))
    return a @ b.T
