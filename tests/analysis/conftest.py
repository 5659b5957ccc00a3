"""A planted tissue: four islands of cells, each of its own type, with genes that mark it; and a slide under them."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

ISLANDS = np.array([[-1.5, -1.0], [1.6, -1.1], [-1.4, 1.2], [1.5, 1.0]])
N_GENES, MARKERS = 40, 3  # genes 3t, 3t + 1, 3t + 2 mark type t


def counts_of(rng: np.random.Generator, island: np.ndarray, depth: float = 1.0) -> sparse.csr_matrix:
    rate = np.ones((len(island), N_GENES))
    for marker in range(MARKERS):
        rate[np.arange(len(island)), MARKERS * island + marker] = 4
    return sparse.csr_matrix(rng.poisson(depth * rate).astype(np.float32))


@pytest.fixture
def make_planted():
    def make(n: int = 600, seed: int = 0) -> ad.AnnData:
        rng = np.random.default_rng(seed)
        island = np.arange(n) % 4
        obs = pd.DataFrame(
            {
                "cell_type": [f"type {i}" for i in island],
                "gears_uncertainty": 0.2,
                "gears_radius50": 0.1,
                "batch": np.where(rng.random(n) < 0.5, "a", "b"),
            },
            index=[f"cell{i}" for i in range(n)],
        )
        adata = ad.AnnData(counts_of(rng, island), obs, pd.DataFrame(index=[f"g{i}" for i in range(N_GENES)]))
        adata.obsm["X_gears"] = (ISLANDS[island] + rng.normal(size=(n, 2)) * 0.4).astype(np.float32)
        return adata

    return make


@pytest.fixture
def planted(make_planted):
    return make_planted()


@pytest.fixture
def planted_slide():
    """Spots on a grid of pitch 0.2 over the islands, in the cells' own frame."""
    rng = np.random.default_rng(1)
    x, y = np.meshgrid(np.arange(-2.8, 2.8, 0.2), np.arange(-2.4, 2.4, 0.2))
    coords = np.column_stack([x.ravel(), y.ravel()])
    gap = np.linalg.norm(coords[:, None] - ISLANDS, axis=2)
    inside = gap.min(1) < 1.0
    slide = ad.AnnData(counts_of(rng, gap[inside].argmin(1), depth=5), obsm={"spatial": coords[inside]})
    slide.obs_names = [f"spot{i}" for i in range(slide.n_obs)]
    slide.var_names = [f"g{i}" for i in range(N_GENES)]
    return slide
