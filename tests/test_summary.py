from __future__ import annotations

from dataclasses import replace

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from spatialgears.summary import MOST_CATEGORIES, SHOWN_COLUMNS, report_content, write_summary


@pytest.fixture
def content(small_model, small_result, small_tissue):
    def content(**changes):
        given = {
            "slides": small_tissue.slides,
            "names": ["a/st_1.h5ad", "b/st_2.h5ad"],
            "command": "gears run",
        }
        return report_content(small_model, small_result, small_tissue.cells, **(given | changes))

    return content


def test_the_report_says_what_was_done(content, small_model, small_result):
    found = content()
    assert found.summary[0].startswith("150 cells were placed. Half of them are expected within ")
    assert [check.title for check in found.self_check] == [check.title for check in small_model.checks_]
    assert all(any(check.words in line for line in found.summary) for check in small_model.checks_)
    assert [row["input"] for row in found.inputs] == ["st_1", "st_2", "cells"]
    assert set(small_model.warnings_) <= set(found.warnings)
    assert any("Weak self-check" in one for one in found.warnings)
    assert {"cell_type", "outside the slides' range"} <= set(found.obs)
    assert {"fold-0", "fold-1", "refiner"} <= set(found.history) and "loss" in found.history["refiner"]
    np.testing.assert_array_equal(found.uncertainty, small_result.radius90)


def test_inputs_are_left_as_they_are(content, small_tissue):
    before = small_tissue.cells.copy()
    content()
    np.testing.assert_array_equal(small_tissue.cells.X.toarray(), before.X.toarray())
    assert list(small_tissue.cells.obs) == list(before.obs) and not small_tissue.cells.obsm


def test_genes_are_drawn_at_one_depth(content, small_model, small_tissue):
    found = content()
    gene = small_model.panel_.genes[0]
    counts = small_tissue.cells.X.toarray()
    total = counts.sum(1)
    column = counts[:, small_tissue.cells.var_names.get_loc(gene)]
    np.testing.assert_allclose(found.genes[gene], np.log1p(column * np.median(total) / total), rtol=1e-5)
    assert set(found.slides[0].genes) == set(found.genes)


def test_genes_that_a_slide_lacks_or_repeats_are_left_out(content, small_model, small_tissue):
    lost, twice = small_model.panel_.genes[:2]
    slide = small_tissue.slides[0][:, small_tissue.slides[0].var_names != lost].copy()
    slide = ad.AnnData(slide.X, slide.obs, obsm=dict(slide.obsm), var=pd.DataFrame(index=slide.var_names))
    names = slide.var_names.tolist()
    names[names.index(small_model.panel_.genes[5])] = twice
    slide.var_names = names
    found = content(slides=[slide], names=["one"])
    assert not {lost, twice} & set(found.slides[0].genes) and lost in found.genes


def test_without_radii_none_are_promised(small_model, small_result, small_tissue):
    unknown = np.full(150, np.nan, np.float32)
    placed = replace(small_result, radius50=unknown, radius90=unknown)
    found = report_content(small_model, placed, small_tissue.cells)
    assert found.summary[0] == "150 cells were placed." and "nan" not in " ".join(found.summary)


def test_columns_worth_colouring_by(small_model, small_result, small_tissue, tmp_path):
    cells = small_tissue.cells.copy()
    cells.obs["one kind"] = "same"
    cells.obs["barcode"] = [f"b{i}" for i in range(150)]
    cells.obs["number"] = np.arange(150.0)
    cells.obs["flag"] = np.arange(150) % 2 == 0
    cells.obs["cluster"] = pd.Categorical([f"c{i % 5}" for i in range(150)])
    for i in range(20):
        cells.obs[f"score {i}"] = np.random.default_rng(i).random(150)
    found = report_content(small_model, small_result, cells).obs
    assert {"number", "flag", "cluster", "cell_type"} <= set(found) and MOST_CATEGORIES < 150
    assert not {"one kind", "barcode"} & set(found) and len(found) == SHOWN_COLUMNS + 1
    assert write_summary(tmp_path / "r.html", small_model, small_result, cells=cells)
    assert (tmp_path / "r.html").stat().st_size > 10_000
