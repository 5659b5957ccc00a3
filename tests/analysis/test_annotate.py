"""What a run adds to the places, and where it is found again."""

from __future__ import annotations

import re

import anndata as ad
import numpy as np
import pandas as pd
import pytest

import spatialgears as sg
from spatialgears.analysis import lookup
from spatialgears.analysis.annotate import described


@pytest.fixture(scope="module")
def annotated(small_result, small_tissue, small_model):
    return described(
        small_result, small_tissue.cells, small_tissue.slides, titles=["a/1", "=2"], panel=small_model.panel_
    )


@pytest.fixture
def cells(annotated, small_tissue):
    return annotated.to_adata(small_tissue.cells, copy=True)


def test_cells_lie_on_each_slide_in_its_own_units(small_result, small_tissue):
    found = small_result.to_adata(small_tissue.cells, copy=True)
    for i, slide in enumerate(small_tissue.slides, start=1):
        fit = found.uns[f"X_gears_slide{i}"]
        pose = fit["scale"] * fit["matrix"]
        np.testing.assert_allclose(
            found.obsm["X_gears"] @ pose + fit["shift"], found.obsm[f"X_gears_slide{i}"], rtol=1e-5
        )
        laid = (
            small_result.slides[i - 1] @ pose + fit["shift"]
        )  # its spots return to where they were measured
        np.testing.assert_allclose(laid, slide.obsm["spatial"], atol=1e-3 * fit["pitch"])
        np.testing.assert_allclose(fit["corners"][0], slide.obsm["spatial"].min(0), atol=1e-6)
        near = np.linalg.norm(found.obsm[f"X_gears_slide{i}"][:, None] - slide.obsm["spatial"], axis=2).min(1)
        assert fit["coverage"] == pytest.approx((near <= 1.5 * fit["pitch"]).mean(), abs=0.01)


def test_a_run_also_says_how_well_cells_match_and_which_domain_they_lie_in(cells, annotated):
    fits = [cells.uns[f"X_gears_slide{i}"] for i in (1, 2)]
    assert [fit["slide"] for fit in fits] == ["a/1", "=2"] and all(fit["residual"] > 0 for fit in fits)
    best = max(fits, key=lambda fit: fit["explained"])
    assert cells.uns["X_gears_slide"]["slide"] == best["slide"]
    table = cells.uns["gears_domain"]["table"]
    np.testing.assert_array_equal(cells.obs["gears_domain"].value_counts()[table.index], table["n_cells"])
    assert {"majority", "noise"} <= set(table)


def test_every_slot_is_explained(cells, tmp_path):
    cells.write_h5ad(tmp_path / "cells.h5ad")
    told = ad.read_h5ad(tmp_path / "cells.h5ad").uns["gears"]["read_me"]
    own = [
        f'{room}["{key}"]'
        for room in ("obs", "obsm", "obsp")
        for key in getattr(cells, room)
        if "gears" in key
    ]
    assert [slot for slot in own if slot not in told and "sample" not in slot] == []


def test_the_table_holds_the_same(annotated, cells, tmp_path):
    annotated.write(cells, tmp_path / "places.csv")
    table = pd.read_csv(tmp_path / "places.csv", index_col="cell")
    np.testing.assert_allclose(table[["x_on_=2", "y_on_=2"]], cells.obsm["X_gears_slide2"], rtol=1e-5)
    np.testing.assert_array_equal(table["domain"].astype(str), cells.obs["gears_domain"])


def test_each_slide_finds_the_cells_in_its_own_frame(cells, small_tissue):
    first, second = small_tissue.slides
    for i, slide in enumerate((first, second), start=1):
        moved = slide.copy()
        moved.obsm["spatial"] = slide.obsm["spatial"] + 1e4
        np.testing.assert_array_equal(lookup.on_slide(cells, slide), cells.obsm[f"X_gears_slide{i}"])
        np.testing.assert_array_equal(lookup.on_slide(cells, slide[:60]), cells.obsm[f"X_gears_slide{i}"])
        with pytest.raises(sg.InputError, match=re.escape("laid on 'a/1', '=2'") + "|laid on '=2', 'a/1'"):
            lookup.on_slide(cells, moved)
    sg.tl.register(cells, moved)
    np.testing.assert_array_equal(lookup.on_slide(cells, moved), cells.obsm["X_gears_slide"])
