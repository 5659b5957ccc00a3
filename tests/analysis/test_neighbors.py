from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import spatialgears as sg
from spatialgears.analysis.neighbors import matrix
from spatialgears.errors import InputError


def found_in(adata) -> dict[str, pd.DataFrame]:
    """What was found, each (type, type of its neighbours)."""
    table = adata.uns["gears_neighbors"]["table"]
    return {name: matrix(table, name) for name in table if name not in ("type", "neighbours")}


def checkerboard(planted, unsure: float):
    """Types 0 and 1 share one half of the tissue, 2 and 3 the other."""
    rng = np.random.default_rng(0)
    side = planted.obs["cell_type"].isin(["type 0", "type 1"]).to_numpy()
    planted.obsm["X_gears"] = rng.random((planted.n_obs, 2)) + np.where(side, 0.0, 1.0)[:, None] * [1, 0]
    planted.obs["gears_radius50"] = unsure
    return planted


def test_planted_neighbours_are_found(planted):
    assert sg.tl.neighbors_by_type(checkerboard(planted, 0.03), "cell_type", n_permutations=200) is None
    found = found_in(planted)
    together = np.kron(np.eye(2), np.ones((2, 2))).astype(bool)
    assert (found["pvalue_adj"] < 0.05).all(axis=None)
    np.testing.assert_array_equal(found["log2_ratio"] > 0, together)
    np.testing.assert_array_equal(found["zscore"] > 3, together)
    assert list(found["count"].index) == [f"type {i}" for i in range(4)]
    assert found["count"].to_numpy().sum() == pytest.approx(600 * 6)
    for name in ("zscore", "count"):  # where squidpy looks
        np.testing.assert_array_equal(planted.uns["cell_type_nhood_enrichment"][name], found[name])


def test_places_nobody_is_sure_of_prove_nothing(planted):
    rng = np.random.default_rng(0)
    n = planted.n_obs // 2
    pairs = rng.random((n, 2)) * 2
    planted.obsm["X_gears"] = np.concatenate([pairs, pairs + 0.001])  # each of the first half has a twin
    planted.obs["pair"] = pd.Categorical(np.tile(rng.choice(["a", "b"], n), 2))
    zscore = {}
    for radius in (0.0, 0.5):
        planted.obs["gears_radius50"] = radius
        sg.tl.neighbors_by_type(planted, "pair", n_permutations=200, n_neighbors=1)
        zscore[radius] = found_in(planted)["zscore"].loc["a", "a"]
    assert zscore[0.0] > 5 and abs(zscore[0.5]) < 3


def test_types_without_place_are_called_at_the_stated_rate(planted):
    called = []
    for seed in range(15):
        planted.obs["random"] = np.random.default_rng(seed).permutation(planted.obs["cell_type"])
        sg.tl.neighbors_by_type(planted, "random", n_permutations=80, n_layouts=2, radius=None, seed=seed)
        called.append(found_in(planted)["pvalue"].to_numpy().ravel() < 0.05)
    assert np.mean(called) < 0.1  # 16 dependent tests in each of 15 draws


def test_same_seed_same_result_and_a_copy_leaves_the_input(planted, tmp_path):
    options = {"n_permutations": 20, "n_layouts": 3, "copy": True}
    first, second = (sg.tl.neighbors_by_type(planted, "cell_type", seed=4, **options) for _ in range(2))
    assert found_in(first)["zscore"].equals(found_in(second)["zscore"])
    assert not planted.uns
    first.write_h5ad(tmp_path / "cells.h5ad")


def test_names_with_slashes_can_be_written(planted, tmp_path):
    planted.obs["type"] = planted.obs["cell_type"].map(
        {f"type {i}": ("T", "T/NK", "NK", "B")[i] for i in range(4)}
    )
    sg.tl.neighbors_by_type(planted, "type", n_permutations=20, radius=None)
    sg.io.write_h5ad(planted, tmp_path / "cells.h5ad")
    kept = sg.read(tmp_path / "cells.h5ad")
    pd.testing.assert_frame_equal(found_in(kept)["count"], found_in(planted)["count"])
    table = planted.uns["gears_neighbors"]["table"]
    wide = table.pivot(index="type", columns="neighbours", values="zscore")
    assert wide.loc["T", "T/NK"] == found_in(planted)["zscore"].loc["T", "T/NK"]


def test_errors_name_what_there_is(planted):
    with pytest.raises(InputError, match="'cell_type'"):
        sg.tl.neighbors_by_type(planted, "type")
    planted.obs["one"] = "a"
    with pytest.raises(InputError, match="one type only"):
        sg.tl.neighbors_by_type(planted, "one")
    planted.obs["gears_radius50"] = np.nan
    with pytest.raises(InputError, match=r"holds no radii(.|\n)*radius=None"):
        sg.tl.neighbors_by_type(planted, "cell_type")
    planted.obs["gears_radius50"] = "far"
    with pytest.raises(InputError, match="must hold radii, found text"):
        sg.tl.neighbors_by_type(planted, "cell_type")
    planted.obs["gears_radius50"] = -1.0
    with pytest.raises(InputError, match="finite and not negative"):
        sg.tl.neighbors_by_type(planted, "cell_type")


def test_squidpy_finds_a_row_for_every_category(planted):
    planted.obs["cell_type"] = pd.Categorical(
        planted.obs["cell_type"], ["none", *(f"type {i}" for i in range(4))]
    )
    sg.tl.neighbors_by_type(planted, "cell_type", n_permutations=20, n_layouts=2)
    zscore = planted.uns["cell_type_nhood_enrichment"]["zscore"]
    assert zscore.shape == (5, 5) and np.isnan(zscore[0]).all() and np.isfinite(zscore[1:, 1:]).all()


def test_cells_outside_are_nobodys_neighbours(planted):
    planted.obs["gears_outside"] = np.arange(planted.n_obs) < 200
    left = planted[200:].copy()
    for one in (planted, left):
        sg.tl.neighbors_by_type(one, "cell_type", n_permutations=20, n_layouts=2)
    assert found_in(planted)["count"].equals(found_in(left)["count"])
    assert planted.uns["gears_neighbors"]["params"]["n_outside"] == 200


def test_p_goes_on_where_no_permutation_is_as_extreme(planted):
    sg.tl.neighbors_by_type(checkerboard(planted, 0.0), "cell_type", n_permutations=30)
    p = found_in(planted)["pvalue"].to_numpy()
    assert p.min() < 1e-6 < 2 / 31
