"""A small tissue-like layout, and a promise that no window is ever shown and no figure is left open."""

from __future__ import annotations

import anndata as ad
import matplotlib
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def _closed_figures(monkeypatch):
    import matplotlib.pyplot as plt

    monkeypatch.setattr(plt, "show", lambda *args, **kwargs: pytest.fail("a figure was shown"))
    yield
    plt.close("all")


@pytest.fixture
def make_adata():
    def make(n: int = 300, seed: int = 0) -> ad.AnnData:
        rng = np.random.default_rng(seed)
        places = rng.normal(size=(n, 2)) * [1.2, 0.7]
        obs = pd.DataFrame(
            {
                "cell_type": pd.Categorical(np.array(["neuron", "glia", "vessel"])[np.arange(n) % 3]),
                "depth": rng.random(n),
                "gears_uncertainty": rng.random(n),
                "gears_radius50": rng.random(n) / 2,
                "gears_domain": np.where(places[:, 0] > 0, "right", "left"),
            },
            index=[f"cell{i}" for i in range(n)],
        )
        counts = sparse.csr_matrix(rng.poisson(1.0, (n, 4)).astype(np.float32))
        adata = ad.AnnData(counts, obs=obs, var=pd.DataFrame(index=["Sox2", "Mbp", "Gad1", "Cux2"]))
        adata.layers["scaled"] = counts * 2
        adata.obsm["X_gears"] = places
        return adata

    return make


@pytest.fixture
def adata(make_adata):
    return make_adata()
