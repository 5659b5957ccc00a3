from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from spatialgears.errors import InputError
from spatialgears.plotting.values import UNIT, color_values, coordinates, pair, turned_onto


def test_gene_is_the_same_sparse_and_dense_and_from_a_layer(adata):
    sparse_values, label = color_values(adata, "Mbp")
    dense = adata.copy()
    dense.X = dense.X.toarray()
    np.testing.assert_array_equal(sparse_values, color_values(dense, "Mbp")[0])
    np.testing.assert_array_equal(sparse_values, adata.X.toarray()[:, 1])
    doubled, layer_label = color_values(adata, "Mbp", layer="scaled")
    np.testing.assert_array_equal(doubled, 2 * sparse_values)
    assert (label, layer_label) == ("Mbp (X)", "Mbp (scaled)")


def test_truth_is_matched_by_the_names_of_cells(adata):
    truth = adata.copy()
    truth.obsm["spatial"] = np.arange(2.0 * adata.n_obs).reshape(-1, 2)
    expected = pair(adata, truth)[1]
    np.testing.assert_array_equal(expected, truth.obsm["spatial"])
    np.testing.assert_array_equal(pair(adata, truth[::-1])[1], expected)
    named = SimpleNamespace(coords=adata.obsm["X_gears"], obs_names=np.asarray(adata.obs_names))
    np.testing.assert_array_equal(pair(named, truth[::-1])[1], expected)
    truth.obs_names = [f"other {i}" for i in range(truth.n_obs)]
    np.testing.assert_array_equal(pair(adata, truth)[1], expected)


def test_short_names_find_what_the_reconstruction_wrote(adata):
    values, label = color_values(adata, "uncertainty")
    assert values is adata.obs["gears_uncertainty"] or values.equals(adata.obs["gears_uncertainty"])
    assert UNIT in label
    assert color_values(adata, "domain")[0].equals(adata.obs["gears_domain"])
    adata.obs["domain"] = "mine"
    assert set(color_values(adata, "domain")[0]) == {"mine"}


def test_reconstruction_needs_no_adata():
    rec = SimpleNamespace(
        coords=np.zeros((3, 2), np.float32), uncertainty=np.array([1.0, 2.0, 3.0]), status="ok"
    )
    assert color_values(rec, "uncertainty")[0].tolist() == [1, 2, 3]
    with pytest.raises(InputError, match="status"):
        color_values(rec, "status")
    with pytest.raises(InputError, match="Mbp"):
        color_values(np.zeros((3, 2)), "Mbp")


def test_missing_colour_names_what_there_is(adata):
    with pytest.raises(InputError, match="cell_type") as error:
        color_values(adata, "cell_typ")
    assert "Sox2" in str(error.value) and "Did you mean 'cell_type'" in error.value.advice
    with pytest.raises(InputError, match="'scaled'"):
        color_values(adata, "Mbp", layer="counts")


def test_what_was_not_run_yet_is_named(adata):
    del adata.obs["gears_domain"], adata.obs["gears_uncertainty"]
    for color in ("domain", "gears_domain"):
        with pytest.raises(InputError, match=r"Run sg\.tl\.spatial_domains\(cells\) first"):
            color_values(adata, color)
    with pytest.raises(InputError, match=r"Run model\.reconstruct"):
        color_values(adata, "uncertainty")
    with pytest.raises(InputError, match="Did you mean 'Sox2'"):
        color_values(adata, "SOX2")


def test_duplicated_gene_is_refused(adata):
    adata.var_names = ["Sox2", "Sox2", "Gad1", "Cux2"]
    with pytest.raises(InputError, match="2 genes are called 'Sox2'"):
        color_values(adata, "Sox2")


def test_shapes_are_checked(adata):
    with pytest.raises(InputError, match="300 cells but 2 values"):
        color_values(adata, [1, 2])
    with pytest.raises(InputError, match="X_gears"):
        coordinates(adata, "X_umap")
    with pytest.raises(InputError, match=r"\(5,\)"):
        coordinates(np.zeros(5))
    with pytest.raises(InputError, match="3 predicted places and 4 true ones"):
        pair(np.zeros((3, 2)), np.zeros((4, 2)))


def test_turning_recovers_a_similarity():
    truth = np.random.default_rng(0).normal(size=(20, 2))
    turn = np.array([[0.6, -0.8], [-0.8, -0.6]])  # a reflection
    moved = 3 * truth @ turn + 5
    np.testing.assert_allclose(turned_onto(moved, truth, scale=True), truth, atol=1e-12)
    np.testing.assert_allclose(turned_onto(truth @ turn + 5, truth, scale=False), truth, atol=1e-12)
    assert not np.allclose(turned_onto(moved, truth, scale=False), truth)
