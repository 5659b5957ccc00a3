from __future__ import annotations

import anndata as ad
import numpy as np
import pytest
from scipy import sparse, stats

import spatialgears as sg
from spatialgears.errors import InputError


@pytest.fixture
def laid(planted):
    planted.obsm["X_gears_slide"] = planted.obsm["X_gears"]
    return planted


def test_planted_markers_are_significant_and_no_others(laid, planted_slide):
    found = sg.tl.marker_enrichment(laid, planted_slide, "type 1", labels="cell_type", alternative="greater")
    table = found.table
    planted = [f"g{i}" for i in (3, 4, 5)]
    assert (table.loc[planted, "pvalue_adj"] < 1e-10).all()
    assert (table.loc[planted, "effect"] > 0.7).all() and (table.loc[planted, "log2fc"] > 1).all()
    assert (table["pvalue_adj"].drop(planted) > 0.05).all()
    assert (table["pvalue"] > 0).all()  # very small, but never lost in single precision
    assert found.n_cells == 150 and found.pitch == pytest.approx(0.2) and found.radius == pytest.approx(0.3)


def test_genes_without_place_are_called_at_the_stated_rate(laid, planted_slide):
    noise = np.random.default_rng(0).poisson(1.0, (planted_slide.n_obs, 2000)).astype(np.float32)
    slide = ad.AnnData(noise, obsm={"spatial": planted_slide.obsm["spatial"]})
    table = sg.tl.marker_enrichment(laid, slide, "type 2", labels="cell_type").table
    assert stats.binomtest(int((table["pvalue"] < 0.05).sum()), 2000, 0.05).pvalue > 0.001
    assert (table["pvalue_adj"] < 0.05).sum() <= 1


def test_numbers_are_those_of_the_definitions(laid, planted_slide):
    found = sg.tl.marker_enrichment(laid, planted_slide, "type 0", labels="cell_type", genes=["g7", "g0"])
    assert list(found.table.index) == ["g7", "g0"]
    cells = laid.obsm["X_gears_slide"][laid.obs["cell_type"] == "type 0"].astype(float)
    gap = np.linalg.norm(planted_slide.obsm["spatial"][:, None] - cells, axis=2).min(1)
    near = gap <= 1.5 * 0.2
    np.testing.assert_array_equal(found.near, near)
    counts = planted_slide.X.toarray()
    share = 1e4 * counts / counts.sum(1, keepdims=True)
    for gene, row in found.table.iterrows():
        x = share[:, planted_slide.var_names.get_loc(gene)]
        test = stats.mannwhitneyu(x[near], x[~near])
        assert row["pvalue"] == pytest.approx(test.pvalue, rel=1e-6)
        higher = np.sign(x[near][:, None] - x[~near]).mean()
        assert row["effect"] == pytest.approx(higher, abs=1e-3)  # float32 ties
        assert row["log2fc"] == pytest.approx(
            np.log2((x[near].mean() + 0.01) / (x[~near].mean() + 0.01)), rel=1e-4
        )
    np.testing.assert_allclose(
        found.table["pvalue_adj"], stats.false_discovery_control(found.table["pvalue"])
    )


def test_fold_changes_do_not_depend_on_how_values_are_given(laid, planted_slide):
    from spatialgears.expression.normalise import log_normalise

    options = {"labels": "cell_type", "genes": ["g7", "g0"]}
    counted = sg.tl.marker_enrichment(laid, planted_slide, "type 0", **options)
    assert counted.unit == "log-normalised expression"
    planted_slide.X = log_normalise(planted_slide.X)
    logged = sg.tl.marker_enrichment(laid, planted_slide, "type 0", **options)
    assert logged.unit == "log-normalised expression"
    np.testing.assert_allclose(logged.table["log2fc"], counted.table["log2fc"], rtol=1e-3)
    values = planted_slide.X.toarray()
    planted_slide.X = (values - values.mean(0)) / values.std(0)
    scaled = sg.tl.marker_enrichment(laid, planted_slide, "type 0", **options)
    assert scaled.unit == "scaled expression" and scaled.table["log2fc"].isna().all()
    np.testing.assert_allclose(scaled.table["effect"], counted.table["effect"], atol=1e-3)


def test_dense_equals_sparse_and_nothing_is_changed(laid, planted_slide):
    before = planted_slide.copy()
    first = sg.tl.marker_enrichment(laid, planted_slide, "type 0", labels="cell_type").table
    assert planted_slide.obs.equals(before.obs) and (planted_slide.X != before.X).nnz == 0
    planted_slide.X = planted_slide.X.toarray()
    assert sg.tl.marker_enrichment(laid, planted_slide, "type 0", labels="cell_type").table.equals(first)
    assert sparse.issparse(before.X)


def test_a_silent_gene_shows_nothing(laid, planted_slide):
    planted_slide.X = planted_slide.X.toarray()
    planted_slide.X[:, 0] = 0
    row = sg.tl.marker_enrichment(laid, planted_slide, "type 0", labels="cell_type", genes="g0").table.iloc[0]
    assert (row["pvalue"], row["effect"], row["log2fc"]) == (1.0, 0.0, 0.0)


def test_what_cannot_be_asked_is_refused(laid, planted_slide):
    with pytest.raises(InputError, match="alternative cannot be 'bigger'"):
        sg.tl.marker_enrichment(laid, planted_slide, "type 0", labels="cell_type", alternative="bigger")
    with pytest.raises(InputError, match="named twice"):
        sg.tl.marker_enrichment(laid, planted_slide, "type 0", labels="cell_type", genes=["g0", "g0"])


def test_errors_name_what_there_is(laid, planted_slide):
    with pytest.raises(InputError, match="'type 0', 'type 1'"):
        sg.tl.marker_enrichment(laid, planted_slide, "pDC", labels="cell_type")
    with pytest.raises(InputError, match="no gene 'BST2'; there are 'g0'"):
        sg.tl.marker_enrichment(laid, planted_slide, "type 0", labels="cell_type", genes="BST2")
    renamed = planted_slide.copy()
    renamed.var_names = ["Pcp4", *renamed.var_names[1:]]
    with pytest.raises(InputError, match=r"Did you mean 'Pcp4'\?"):
        sg.tl.marker_enrichment(laid, renamed, "type 0", labels="cell_type", genes=["PCP4"])
    with pytest.raises(InputError, match="All of the"):
        sg.tl.marker_enrichment(laid, planted_slide, "type 0", labels="cell_type", within=100)
    laid.obsm["X_gears_slide"] = laid.obsm["X_gears_slide"] + 50
    with pytest.raises(InputError, match="None of the"):
        sg.tl.marker_enrichment(laid, planted_slide, "type 0", labels="cell_type")
    del laid.obsm["X_gears_slide"]
    with pytest.raises(InputError, match=r"sg\.tl\.register"):
        sg.tl.marker_enrichment(laid, planted_slide, "type 0", labels="cell_type")


def test_no_spot_is_near_a_cell_outside(laid, planted_slide):
    far = (laid.obs["cell_type"] == "type 0").to_numpy()
    laid.obs["gears_outside"] = far & (laid.obsm["X_gears"][:, 0] < -1.5)
    found = sg.tl.marker_enrichment(laid, planted_slide, "type 0", labels="cell_type")
    left = laid[~laid.obs["gears_outside"]].copy()
    again = sg.tl.marker_enrichment(left, planted_slide, "type 0", labels="cell_type")
    assert found.near.equals(again.near) and found.n_cells == again.n_cells < far.sum()
    every = sg.tl.marker_enrichment(laid, planted_slide, "type 0", labels="cell_type", outside=None)
    assert every.near.sum() > found.near.sum()
    laid.obs["gears_outside"] = far
    with pytest.raises(InputError, match="Every cell of type 'type 0' is marked"):
        sg.tl.marker_enrichment(laid, planted_slide, "type 0", labels="cell_type")


def test_a_type_that_is_everywhere_is_compared_by_its_density(laid, planted_slide):
    rng = np.random.default_rng(0)
    own = np.flatnonzero(laid.obs["cell_type"] == "type 0")
    spots = planted_slide.obsm["spatial"]
    obs = laid.obs.iloc[rng.choice(own, len(spots))].set_index(planted_slide.obs_names)
    stray = ad.AnnData(obs=obs, obsm={"X_gears_slide": spots})  # one in every spot, the others in one island
    laid = ad.AnnData(obs=laid.obs, obsm={"X_gears_slide": laid.obsm["X_gears_slide"]})
    both = ad.concat([laid, stray], index_unique="-")
    with pytest.raises(InputError, match="All of the"):
        sg.tl.marker_enrichment(both, planted_slide, "type 0", labels="cell_type")
    found = sg.tl.marker_enrichment(both, planted_slide, "type 0", labels="cell_type", min_cells=None)
    assert found.near.mean() <= 0.5 and found.min_cells > 1
    assert (found.table.loc[["g0", "g1", "g2"], "effect"] > 0.5).all()
