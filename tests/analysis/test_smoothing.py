from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import spatialgears as sg
from spatialgears.analysis.smoothing import smooth
from spatialgears.errors import InputError


def test_smoothing_is_the_kernel_mean():
    rng = np.random.default_rng(0)
    coords, spread = rng.random((400, 2)), rng.choice([0.05, 0.2], 400)
    values = rng.random((400, 2))
    gap = np.square(coords[:, None] - coords).sum(2)
    kernel = np.exp(-gap / (2 * spread**2)) / spread**2  # each value spread by its own width
    expected = kernel @ values / kernel.sum(1, keepdims=True)
    found = smooth(coords, spread, sparse.csr_matrix(values))
    assert np.abs(found - expected).max() < 0.02


def test_a_constant_stays_and_wider_radii_blur_more():
    rng = np.random.default_rng(0)
    coords = rng.random((500, 2))
    step = sparse.csr_matrix(np.column_stack([np.ones(500), coords[:, 0] > 0.5]).astype(float))
    sharp, blurred = (smooth(coords, np.full(500, width), step) for width in (0.02, 0.3))
    np.testing.assert_allclose(sharp[:, 0], 1, rtol=1e-5)
    np.testing.assert_allclose(blurred[:, 0], 1, rtol=1e-5)
    assert np.ptp(sharp[:, 1]) > 0.99 and np.ptp(blurred[:, 1]) < 0.9


def test_planted_genes_agree_with_the_slide_and_shuffled_places_do_not(planted, planted_slide):
    assert sg.tl.spatial_expression(planted, ["g3", "g0"], slide=planted_slide) is None
    smoothed = planted.obsm["gears_expression"]
    assert list(smoothed.columns) == ["g3", "g0"] and list(smoothed.index) == list(planted.obs_names)
    own = (planted.obs["cell_type"] == "type 1").to_numpy()
    assert smoothed.loc[own, "g3"].mean() > 1.5 * smoothed.loc[~own, "g3"].mean()
    found = planted.uns["gears_moran"]
    table = found["table"]
    assert (table.iloc[:12] > 0.1).all(axis=None) and (table.iloc[12:].abs() < 0.15).all(axis=None)
    lost = planted.copy()
    lost.obsm["X_gears"] = np.random.default_rng(0).permutation(lost.obsm["X_gears"])
    sg.tl.spatial_expression(lost, slide=planted_slide)
    assert found["agreement"] > 0.5 > 0.4 > lost.uns["gears_moran"]["agreement"]


def test_a_copy_leaves_the_input_and_can_be_written(planted, planted_slide, tmp_path):
    done = sg.tl.spatial_expression(planted, "g1", slide=planted_slide, copy=True)
    assert "gears_expression" not in planted.obsm and not planted.uns
    done.write_h5ad(tmp_path / "cells.h5ad")


def test_errors_name_what_there_is(planted, planted_slide):
    with pytest.raises(InputError, match="'gears_radius50'"):
        sg.tl.spatial_expression(planted, "g1", radius="gears_radius")
    with pytest.raises(InputError, match="no gene 'x'"):
        sg.tl.spatial_expression(planted, "x")
    with pytest.raises(InputError, match="Nothing was asked"):
        sg.tl.spatial_expression(planted)
    planted_slide.var_names = [f"ENS{i}" for i in range(40)]
    with pytest.raises(InputError, match="share 0 genes"):
        sg.tl.spatial_expression(planted, slide=planted_slide)


def test_cells_outside_neither_give_nor_get_a_value(planted, planted_slide):
    outside = np.arange(planted.n_obs) < 100
    left = planted[~outside].copy()
    planted.obs["gears_outside"] = outside
    for one in (planted, left):
        sg.tl.spatial_expression(one, "g3", slide=planted_slide)
    smoothed = planted.obsm["gears_expression"]["g3"].to_numpy()
    assert np.isnan(smoothed[outside]).all()
    np.testing.assert_array_equal(smoothed[~outside], left.obsm["gears_expression"]["g3"])
    assert planted.uns["gears_moran"]["table"].equals(left.uns["gears_moran"]["table"])


def test_without_radii_places_are_taken_as_exact(planted):
    planted.obs["gears_radius50"] = np.nan
    with pytest.raises(InputError, match=r"holds no radii.*\n.*radius=None"):
        sg.tl.spatial_expression(planted, "g3")
    sg.tl.spatial_expression(planted, "g3", radius=None)
    exact = planted.obsm["gears_expression"]["g3"].to_numpy()
    planted.obs["gears_radius50"] = 1e-6
    sg.tl.spatial_expression(planted, "g3")
    np.testing.assert_array_equal(exact, planted.obsm["gears_expression"]["g3"])
