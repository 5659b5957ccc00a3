from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score

import spatialgears as sg
from spatialgears.analysis.domains import compare
from spatialgears.errors import InputError


def test_planted_domains_are_found_named_and_real(planted):
    planted.obs["island"] = planted.obs["cell_type"].to_numpy()
    planted.obs.loc[planted.obs_names[:40], "cell_type"] = "type 0"  # 30 of these 40 are of another
    planted.obs.loc[planted.obs_names[40:60], "cell_type"] = None
    assert sg.tl.spatial_domains(planted, labels="cell_type", resolution=0.05) is None
    table = planted.uns["gears_domain"]["table"]
    assert adjusted_rand_score(planted.obs["gears_domain"], planted.obs["island"]) > 0.97
    assert len(table) == 4 and set(table["majority"]) == {f"type {i}" for i in range(4)}
    for name, row in table.iterrows():
        own = planted.obs["cell_type"][planted.obs["gears_domain"] == name].dropna()
        assert row["purity"] == pytest.approx((own == row["majority"]).mean())
        assert row["background"] == pytest.approx(
            (planted.obs["cell_type"].dropna() == row["majority"]).mean()
        )
    assert (table["n_cells"].diff().dropna() <= 0).all() and table["n_cells"].sum() == 600
    assert not table["noise"].any() and not planted.obs["gears_domain_noise"].any()


def test_domains_of_shuffled_places_are_noise(make_planted):
    wrong = []
    for seed in range(10):
        adata = make_planted(400, seed)
        adata.obsm["X_gears"] = np.random.default_rng(seed).random((400, 2))
        sg.tl.spatial_domains(adata, resolution=0.5, seed=seed)
        table = adata.uns["gears_domain"]["table"]
        assert len(table) > 2  # Leiden divides anything
        wrong.append(not table["noise"].all())
    assert np.mean(wrong) <= 0.2  # stated rate: one in twenty layouts has a domain wrongly taken for real


def test_only_the_part_without_order_is_noise(planted):
    rng = np.random.default_rng(0)
    lost = planted.obs["cell_type"].isin(["type 1", "type 3"]).to_numpy()
    planted.X = planted.X.toarray()
    planted.X[lost] = planted.X[rng.permutation(np.flatnonzero(~lost))]  # a mixture like that of all cells
    sg.tl.spatial_domains(planted, resolution=0.05)
    assert (planted.obs["gears_domain_noise"] == lost).mean() > 0.95


def test_a_domain_of_average_but_uniform_expression_is_real(planted):
    """Its mean is that of all cells; that its cells are alike shows in the spread."""
    rng = np.random.default_rng(0)
    middle = (planted.obs["cell_type"] == "type 2").to_numpy()
    planted.obsm["rep"] = np.where(middle[:, None], 0.3, 1.0) * rng.normal(size=(600, 5))
    sg.tl.spatial_domains(planted, resolution=0.05, use_rep="rep", labels="cell_type")
    assert not planted.uns["gears_domain"]["table"].set_index("majority").loc["type 2", "noise"]


def test_same_seed_same_domains_and_a_copy_leaves_the_input(planted):
    before = planted.copy()
    first, second = (sg.tl.spatial_domains(planted, copy=True, seed=3, resolution=1.0) for _ in range(2))
    assert first.obs.equals(second.obs)
    assert first.uns["gears_domain"]["table"].equals(second.uns["gears_domain"]["table"])
    assert planted.obs.equals(before.obs) and not planted.uns


def test_noise_of_domains_that_were_does_not_stay(planted):
    sg.tl.spatial_domains(planted, n_shuffles=20)
    assert "gears_domain_noise" in planted.obs
    sg.tl.spatial_domains(planted, n_shuffles=0)
    assert "gears_domain_noise" not in planted.obs


def test_clusters_of_another_tool_are_not_written_over(planted):
    planted.obs["leiden"], planted.uns["leiden"] = "0", {"params": {"resolution": 1}}
    with pytest.raises(InputError, match="is there already, and is not of domains"):
        sg.tl.spatial_domains(planted, key_added="leiden", n_shuffles=0)
    for _ in range(2):
        sg.tl.spatial_domains(planted, key_added="mine", n_shuffles=0)


def test_result_can_be_written(planted, tmp_path):
    sg.tl.spatial_domains(planted, labels="cell_type")
    planted.write_h5ad(tmp_path / "cells.h5ad")


def test_errors_name_what_there_is(planted):
    with pytest.raises(InputError, match=r"'cell_type'.*\n.*Did you mean 'cell_type'"):
        sg.tl.spatial_domains(planted, labels="celltype")
    with pytest.raises(InputError, match=r"no obsm\['X_pca'\]; obsm has 'X_gears'"):
        sg.tl.spatial_domains(planted, use_rep="X_pca")
    with pytest.raises(InputError, match="resolution positive"):
        sg.tl.spatial_domains(planted, resolution=0)
    planted.obsm["X_gears"][3] = np.nan
    with pytest.raises(InputError, match="1 of 600 places are not finite"):
        sg.tl.spatial_domains(planted)
    del planted.obsm["X_gears"]
    with pytest.raises(InputError, match="reconstruct"):
        sg.tl.spatial_domains(planted)


def test_a_missing_extra_is_named_with_its_command(planted, monkeypatch):
    monkeypatch.setitem(sys.modules, "leidenalg", None)
    with pytest.raises(InputError, match=r'pip install "spatialgears\[analysis\]"'):
        sg.tl.spatial_domains(planted)


def test_cells_outside_get_no_domain_and_change_none(planted):
    outside = np.arange(planted.n_obs) < 60
    left = planted[~outside].copy()
    planted.obs["gears_outside"] = outside
    planted.obsm["X_gears"][outside] = 0  # all in the middle, where they would join the islands
    for one in (planted, left):
        sg.tl.spatial_domains(one, labels="cell_type")
    assert planted.obs["gears_domain"].isna().to_numpy().tolist() == outside.tolist()
    assert not planted.obs["gears_domain_noise"][outside].any()
    assert planted.uns["gears_domain"]["table"].equals(left.uns["gears_domain"]["table"])
    assert planted.uns["gears_domain"]["params"]["n_outside"] == 60
    sg.tl.spatial_domains(planted, outside=None)
    assert planted.obs["gears_domain"].notna().all()


def test_marks_of_cells_outside_must_be_marks(planted):
    with pytest.raises(InputError, match="no obs column 'far'"):
        sg.tl.spatial_domains(planted, outside="far")
    planted.obs["gears_outside"] = "maybe"
    with pytest.raises(InputError, match="true or false"):
        sg.tl.spatial_domains(planted)
    planted.obs["gears_outside"] = True
    with pytest.raises(InputError, match=r"600 of 600 cells: too few"):
        sg.tl.spatial_domains(planted)


@pytest.mark.parametrize("seed", range(3))
def test_one_domain_of_all_cells_is_not_taken_for_real(seed):
    embedding = np.random.default_rng(seed).normal(size=(200, 5))
    found = compare(np.zeros(200, np.int64), embedding, pd.Index(["0"]), n_shuffles=20, seed=seed)
    assert found["noise"].all() and (found["pvalue"] == 1).all()
