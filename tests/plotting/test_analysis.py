from __future__ import annotations

import anndata as ad
import numpy as np
import pandas as pd
import pytest

import spatialgears as sg
from spatialgears.analysis.markers import MarkerEnrichment
from spatialgears.errors import InputError
from spatialgears.text import p_value


def legend_names(ax) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


@pytest.fixture
def found(adata):
    coords = np.random.default_rng(0).random((60, 2))
    near = pd.Series(coords[:, 0] > 0.5)
    genes = ["BST2", "$odd"]
    values = pd.DataFrame(np.random.default_rng(1).random((60, 2)) + near.to_numpy()[:, None], columns=genes)
    table = pd.DataFrame(
        {"effect": [0.9, 0.8], "pvalue_adj": [1e-4, 0.2], "log2fc": [0.61, 0.5]}, index=genes
    )
    return MarkerEnrichment(table, near, coords, values, "pDC", 12, 0.1, 0.15)


def test_domains_are_named_and_noise_is_grey(adata):
    adata.uns["gears_domain"] = {
        "table": pd.DataFrame(
            {"majority": ["neuron", "glia"], "purity": [0.814, 0.5], "noise": [False, True]},
            index=["left", "right"],
        )
    }
    ax = sg.pl.spatial_domains(adata)
    assert legend_names(ax) == ["left: neuron (81%)", "missing"]
    assert len(ax.collections[0].get_offsets()) == (adata.obs["gears_domain"] == "right").sum()


def test_a_domain_is_not_named_after_a_type_that_few_of_its_cells_have(adata):
    table = pd.DataFrame({"majority": ["neuron", "glia"], "purity": [0.49, 0.08]}, index=["left", "right"])
    adata.uns["gears_domain"] = {"table": table}
    assert legend_names(sg.pl.spatial_domains(adata)) == ["left: mixed types", "right: mixed types"]
    assert legend_names(sg.pl.reconstruction(adata, color="domain")) == [
        "left: mixed types",
        "right: mixed types",
    ]


def test_registration_draws_cells_over_spots_in_the_units_of_the_slide(adata):
    adata.obsm["X_gears_slide"] = 100 * adata.obsm["X_gears"]
    slide = ad.AnnData(
        np.ones((50, 1)), obsm={"spatial": 100 * np.random.default_rng(0).normal(size=(50, 2))}
    )
    ax = sg.pl.registration(adata, slide, color="cell_type")
    assert [len(part.get_offsets()) for part in ax.collections] == [50, 0, 300]
    assert "units of the slide" in ax.get_xlabel()


def test_markers_show_near_and_other_with_their_p(found):
    ax = sg.pl.marker_map(found)
    near = int(found.near.sum())
    assert [len(part.get_offsets()) for part in ax.collections] == [60 - near, near]
    assert legend_names(ax) == [f"near pDC ({near})", f"other ({60 - near})"]
    ax = sg.pl.marker_enrichment(found)
    ax.figure.canvas.draw()
    assert [text.get_text() for text in ax.get_xticklabels()] == ["BST2", "$odd"]
    assert ax.texts[0].get_text() == "P = 0.0001\nlog2 FC 0.61"
    assert p_value(4e-49) == "< 1e-16" and p_value(0.0312) == "= 0.03"
    assert [text.get_text() for text in sg.pl.marker_enrichment(found, genes="BST2").get_xticklabels()] == [
        "BST2"
    ]
    with pytest.raises(InputError, match="'NRP1' was not tested"):
        sg.pl.marker_enrichment(found, genes="NRP1")


def test_smoothed_gene(adata):
    adata.obsm["gears_expression"] = pd.DataFrame({"Sox2": np.linspace(0, 1, 300)}, adata.obs_names)
    assert len(sg.pl.spatial_expression(adata, "Sox2").collections[1].get_array()) == 300
    adata.obsm["elsewhere"] = adata.obsm.pop("X_gears") + 5
    moved = sg.pl.spatial_expression(adata, "Sox2", basis="elsewhere").collections[1].get_offsets()
    np.testing.assert_allclose(np.sort(moved, axis=0), np.sort(adata.obsm["elsewhere"], axis=0), rtol=1e-6)
    with pytest.raises(InputError, match=r"not smoothed; there is Sox2"):
        sg.pl.spatial_expression(adata, "Mbp")
    adata.obsm["X_gears"] = adata.obsm["elsewhere"]
    with pytest.raises(
        InputError, match=r"'Mbp' was not smoothed.*\n.*spatial_expression\(adata, \['Sox2', 'Mbp'\]\)"
    ):
        sg.pl.spatial_expression(adata, ["Sox2", "Mbp"])
    adata.obsm["gears_expression"]["Mbp"] = 1.0
    assert len(sg.pl.spatial_expression(adata, ["Sox2", "Mbp"])) == 2


def test_the_markers_of_all_genes_can_be_drawn(make_adata):
    rng = np.random.default_rng(0)
    cells = make_adata(200)
    cells.obs["cluster"] = np.arange(200) % 3
    cells.obsm["X_gears_slide"] = cells.obsm["X_gears"]
    counts = rng.poisson(2.0, size=(90, 80)).astype(float)
    slide = ad.AnnData(counts, var=pd.DataFrame(index=[f"g{i}" for i in range(80)]))
    slide.obsm["spatial"] = rng.normal(size=(90, 2))
    slide.X[slide.obsm["spatial"][:, 0] > 0, 7] += 9
    cells.obsm["X_gears_slide"][cells.obs["cluster"] == 2] = [[1.5, 0.0]]
    found = sg.tl.marker_enrichment(cells, slide, 2, labels="cluster", within=8)  # a type that is a number
    assert len(found.table) == 80 and len(found.values.columns) == 50
    drawn = [text.get_text() for text in sg.pl.marker_enrichment(found).get_xticklabels()]
    assert len(drawn) == 8 and drawn[0] == "g7"
    least = found.table["effect"].abs().idxmin()
    with pytest.raises(InputError, match=f"Values of '{least}' were not kept"):
        sg.pl.marker_enrichment(found, genes=least)


def test_what_was_not_run_is_said(adata):
    with pytest.raises(InputError, match=r"sg\.tl\.spatial_domains"):
        sg.pl.spatial_domains(adata)
