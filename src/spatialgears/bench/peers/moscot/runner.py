"""moscot's spatial mapping as in its tutorial: PCA of the cells, local PCA of shared genes, defaults."""

from __future__ import annotations

import sys
from pathlib import Path

import anndata as ad
import numpy as np
import scanpy as sc

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import expected, log_normalised, run


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> np.ndarray:
    """Expected coordinates under the transport plan."""
    from moscot.problems.space import MappingProblem

    singles, mixed = log_normalised(cells, 1e4), log_normalised(spots, 1e4)
    sc.pp.pca(singles, n_comps=min(30, singles.n_vars - 1))
    problem = MappingProblem(adata_sc=singles, adata_sp=mixed)
    problem = problem.prepare(
        sc_attr={"attr": "obsm", "key": "X_pca"},
        xy_callback="local-pca",
        xy_callback_kwargs={"n_comps": min(30, singles.n_vars - 1)},
    )
    problem = problem.solve()
    (solution,) = problem.solutions.values()
    return expected(np.asarray(solution.transport_matrix).T, spots)  # the plan is (spots, cells)


if __name__ == "__main__":
    run(place)
