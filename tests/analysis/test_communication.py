"""Results go to tools for cell-cell communication without conversion; skipped where these are not installed."""

from __future__ import annotations

import pandas as pd
import pytest


@pytest.fixture
def cells(small_result, small_tissue):
    import scanpy as sc

    made = small_result.to_adata(small_tissue.cells, copy=True)
    sc.pp.normalize_total(made)
    sc.pp.log1p(made)
    made.obs["cell_type"] = made.obs["cell_type"].astype("category")
    return made


def test_squidpy_tests_ligands_and_receptors(cells):
    sq = pytest.importorskip("squidpy")
    ligand, receptor = cells.var_names[:2]
    found = sq.gr.ligrec(
        cells,
        cluster_key="cell_type",
        interactions=pd.DataFrame({"source": [ligand], "target": [receptor]}),
        use_raw=False,
        n_perms=10,
        threshold=0.0,
        copy=True,
        show_progress_bar=False,
    )
    assert (ligand.upper(), receptor.upper()) in {
        tuple(map(str.upper, pair)) for pair in found["means"].index
    }


def test_liana_reads_the_graph_of_neighbours(cells):
    li = pytest.importorskip("liana")
    pair = tuple(cells.var_names[:2])
    found = li.mt.bivariate(
        cells,
        interactions=[pair],
        local_name="cosine",
        connectivity_key="gears_connectivities",
        nz_prop=0.0,
        use_raw=False,
    )
    assert found.n_obs == cells.n_obs and found.n_vars == 1


def test_liana_weighs_neighbours_by_distance(cells):
    li = pytest.importorskip("liana")
    li.ut.spatial_neighbors(cells, spatial_key="X_gears", bandwidth=2 * cells.obs["gears_radius50"].median())
    found = li.mt.bivariate(
        cells, interactions=[tuple(cells.var_names[:2])], local_name="cosine", nz_prop=0.0, use_raw=False
    )
    assert found.shape == (cells.n_obs, 1)
