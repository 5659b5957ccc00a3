from __future__ import annotations

import json
from dataclasses import replace

import anndata as ad
import numpy as np
import pytest
from scipy import sparse
from scipy.spatial.distance import pdist, squareform

import spatialgears as sg
from spatialgears.errors import InputError
from spatialgears.reconstruction import GRAPH_NEIGHBORS, Reconstruction


@pytest.fixture
def adata() -> ad.AnnData:
    rng = np.random.default_rng(0)
    made = ad.AnnData(sparse.csr_matrix(rng.poisson(1.0, (40, 5)).astype(np.float32)))
    made.obs_names = [f"cell {i}" for i in range(40)]
    made.obs["cell_type"] = ["neuron", "glia"] * 20
    made.obsm["spatial"] = rng.normal(size=(40, 2))
    made.uns["log"] = "kept"
    return made


@pytest.fixture
def placed(adata) -> Reconstruction:
    rng = np.random.default_rng(1)
    return Reconstruction(
        coords=rng.normal(size=(40, 2)).astype(np.float32),
        radius50=np.full(40, 0.1, np.float32),
        radius90=np.linspace(0.2, 0.4, 40, dtype=np.float32),
        outside=np.arange(40) < 3,
        samples=np.zeros((0, 40, 2), np.float32),
        slides=[],
        obs_names=np.asarray(adata.obs_names, str),
        status="All 40 cells were placed in one pass.",
        diagnostics={"stress": np.float32(0.25), "steps": [1, 2], "profile": {"network": 0.1}},
    )


def test_it_is_told_in_a_line(placed):
    assert repr(placed) == (
        "Reconstruction of 40 cells from 0 slides: median 90% radius 0.30, 3 outside the slides' range, 0 samples; "
        ".to_adata(cells) writes it"
    )


def test_what_speaks_against_it_goes_with_it(placed, adata, tmp_path):
    odd = replace(placed, self_check=["Held-out spots: good."], warnings=["Few genes.", "Few spots."])
    assert repr(odd).endswith("; 2 warnings, see .warnings") and "warning" not in repr(placed)
    odd.write(adata, tmp_path / "cells.h5ad")
    told = ad.read_h5ad(tmp_path / "cells.h5ad").uns["gears"]
    assert told["warnings"] == "Few genes.\nFew spots." and told["self_check"] == "Held-out spots: good."


@pytest.mark.filterwarnings("ignore:.*view")
def test_results_of_other_places_go_also_from_a_view(placed, adata):
    whole = ad.concat([adata, adata[:5]], index_unique="-")
    whole.obs_names = [*adata.obs_names, *"abcde"]
    whole.obs["gears_domain"], whole.obsm["X_gears_slide"], whole.uns["gears_domain"] = (
        "1",
        np.zeros((45, 2)),
        {"of": "other"},
    )
    found = placed.to_adata(whole[:40])
    assert "gears_domain" not in found.obs and "X_gears_slide" not in found.obsm
    assert "gears_domain" not in found.uns and "gears_domain" in whole.uns


@pytest.mark.parametrize("name", ["p.tsv", "p.zarr", "p"])
def test_only_known_endings_are_written(placed, adata, tmp_path, name):
    with pytest.raises(InputError, match=r"ends in .h5ad or .csv, found"):
        placed.write(adata, tmp_path / name)
    assert not list(tmp_path.iterdir())
    placed.write(adata, tmp_path / "P.CSV")
    assert (tmp_path / "P.CSV").read_text().startswith("cell,x,y")


def test_what_is_written_is_a_copy(placed, adata):
    placed.to_adata(adata)
    before = placed.coords.copy()
    adata.obsm["X_gears"] *= 500  # to micrometres, say
    np.testing.assert_array_equal(placed.coords, before)


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("suffix", ["h5ad", "zarr"])
def test_what_was_not_read_of_the_source_is_kept(placed, adata, tmp_path, suffix):
    adata.layers["counts"] = adata.X.copy()
    adata.X = adata.X.multiply(0.5).tocsr()
    source = tmp_path / f"cells.{suffix}"
    with ad.settings.override(zarr_write_format=3, auto_shard_zarr_v3=True):
        getattr(adata, f"write_{suffix}")(source)
    read = sg.read(source, layer="counts")
    assert not read.layers
    placed.write(read, tmp_path / "out.h5ad", source=source)
    found = ad.read_h5ad(tmp_path / "out.h5ad")
    np.testing.assert_array_equal(found.X.toarray(), adata.X.toarray())
    np.testing.assert_array_equal(found.layers["counts"].toarray(), adata.layers["counts"].toarray())
    np.testing.assert_array_equal(found.obsm["X_gears"], placed.coords)


def test_genes_of_a_file_keep_their_names_when_raw_was_placed(placed, adata, tmp_path):
    adata.raw = adata[:, ::-1].copy()  # as many, in another order
    adata.var["highly_variable"] = True
    adata.write_h5ad(tmp_path / "cells.h5ad")
    placed.write(
        sg.read(tmp_path / "cells.h5ad", layer="raw"), tmp_path / "out.h5ad", source=tmp_path / "cells.h5ad"
    )
    found = ad.read_h5ad(tmp_path / "out.h5ad")
    assert list(found.var_names) == list(adata.var_names) and found.var["highly_variable"].all()


def test_genes_called_by_a_column_are_so_called_in_the_copy(placed, adata, tmp_path):
    adata.var["symbol"] = [f"S{i}" for i in range(adata.n_vars)]
    adata.write_h5ad(tmp_path / "cells.h5ad")
    read = sg.read(tmp_path / "cells.h5ad", genes="symbol")
    placed.write(read, tmp_path / "out.h5ad", source=tmp_path / "cells.h5ad")
    assert list(ad.read_h5ad(tmp_path / "out.h5ad").var_names) == list(adata.var["symbol"])


def test_results_of_other_places_go(placed, adata, tmp_path):
    adata.obsm["X_gears"], adata.obsm["X_gears_slide"] = placed.coords + 1, placed.coords
    adata.obs["gears_domain"], adata.obs["mine"] = "a", "b"
    adata.uns["gears_moran"] = {"agreement": 1.0}
    adata.write_h5ad(tmp_path / "cells.h5ad")
    placed.write(adata, tmp_path / "out.h5ad", source=tmp_path / "cells.h5ad")
    for found in (placed.to_adata(adata, copy=True), ad.read_h5ad(tmp_path / "out.h5ad")):
        assert "X_gears_slide" not in found.obsm and "gears_moran" not in found.uns and "gears" in found.uns
        assert "gears_domain" not in found.obs and "mine" in found.obs and "gears_uncertainty" in found.obs
    placed.to_adata(adata)
    adata.obs["gears_domain"] = "of these places"
    assert "gears_domain" in placed.to_adata(adata).obs


def test_a_path_in_the_home_folder(placed, adata, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    placed.write(adata, "~/deep/places.csv")
    assert (tmp_path / "deep" / "places.csv").is_file()


def test_a_source_of_other_cells_is_refused(placed, adata, tmp_path):
    adata[:30].copy().write_h5ad(tmp_path / "few.h5ad")
    with pytest.raises(InputError, match=r"few\.h5ad holds 30 cells, and 40 were placed"):
        placed.write(adata, tmp_path / "out.h5ad", source=tmp_path / "few.h5ad")
    adata[::-1].copy().write_h5ad(tmp_path / "turned.h5ad")
    with pytest.raises(InputError, match=r"turned\.h5ad holds these cells in another order"):
        placed.write(adata, tmp_path / "out.h5ad", source=tmp_path / "turned.h5ad")
    assert not (tmp_path / "out.h5ad").exists()


def test_distances_agree_with_each_other(placed):
    full = squareform(pdist(placed.coords.astype(np.float64)))
    np.testing.assert_allclose(placed.distance_matrix(), full, rtol=1e-5)
    np.testing.assert_allclose(placed.distances([[0, 1], [5, 5]]), [full[0, 1], 0], rtol=1e-6)
    index, distance = placed.nearest(4)
    np.testing.assert_allclose(distance, np.sort(full, axis=1)[:, 1:5], rtol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(full, index, 1), distance, rtol=1e-5)
    with pytest.raises(InputError, match="GB"):
        placed.distance_matrix(memory_gb=1e-9)


def test_slots_written(placed, adata):
    before = adata.copy()
    assert placed.to_adata(adata) is adata
    np.testing.assert_array_equal(adata.obsm["X_gears"], placed.coords)
    np.testing.assert_array_equal(adata.obs["gears_uncertainty"], placed.radius90)
    np.testing.assert_array_equal(adata.obs["gears_radius50"], placed.radius50)
    np.testing.assert_array_equal(adata.obs["gears_outside"], placed.outside)
    assert adata.obs["gears_outside"].dtype == bool
    assert adata.uns["gears"]["status"] == placed.status and adata.uns["gears"]["version"]
    assert json.loads(adata.uns["gears"]["diagnostics"])["stress"] == 0.25
    np.testing.assert_array_equal(adata.obsm["spatial"], before.obsm["spatial"])  # the user's own
    assert adata.uns["log"] == "kept" and adata.obs["cell_type"].equals(before.obs["cell_type"])


def test_truth_is_never_invented(placed, adata):
    del adata.obsm["spatial"]
    assert set(placed.to_adata(adata).obsm) == {"X_gears"}


def test_a_copy_leaves_the_original_alone(placed, adata):
    copy = placed.to_adata(adata, copy=True)
    assert "X_gears" in copy.obsm
    assert "X_gears" not in adata.obsm and "gears" not in adata.uns and not adata.obsp
    assert list(adata.obs) == ["cell_type"]


def test_the_graph_is_what_its_parameters_say(placed, adata):
    placed.to_adata(adata)
    distances, connected = adata.obsp["gears_distances"], adata.obsp["gears_connectivities"]
    assert (np.diff(distances.indptr) == GRAPH_NEIGHBORS).all() and distances.diagonal().sum() == 0
    assert (connected != connected.T).nnz == 0 and set(connected.data) == {1.0}
    assert ((distances > 0).astype(int) - (connected > 0).astype(int)).max() <= 0
    assert adata.uns["gears"]["params"]["n_neighbors"] == GRAPH_NEIGHBORS


def test_cells_in_one_place_stay_neighbours(placed, adata):
    from dataclasses import replace

    replace(placed, coords=np.zeros((40, 2), np.float32)).to_adata(adata)
    assert (np.diff(adata.obsp["gears_distances"].indptr) == GRAPH_NEIGHBORS).all()
    assert (np.diff(adata.obsp["gears_connectivities"].indptr) >= GRAPH_NEIGHBORS).all()


def test_scanpy_uses_the_graph(placed, adata):
    import scanpy as sc

    placed.to_adata(adata)
    graph = sc.Neighbors(adata, neighbors_key="gears")
    assert graph.n_neighbors == GRAPH_NEIGHBORS
    assert (graph.connectivities != adata.obsp["gears_connectivities"]).nnz == 0
    assert (graph.distances != adata.obsp["gears_distances"]).nnz == 0
    x = adata.obsm["X_gears"][:, 0]
    assert sc.metrics.morans_i(adata.obsp["gears_connectivities"], x) > 0.2  # neighbours lie near each other


def test_written_to_a_file_and_read_back(placed, adata, tmp_path):
    placed.to_adata(adata).write_h5ad(tmp_path / "a.h5ad")
    found = ad.read_h5ad(tmp_path / "a.h5ad")
    np.testing.assert_array_equal(found.obsm["X_gears"], placed.coords)
    np.testing.assert_array_equal(found.obs["gears_outside"], placed.outside)
    assert (found.obsp["gears_distances"] != adata.obsp["gears_distances"]).nnz == 0
    assert found.uns["gears"]["params"] == adata.uns["gears"]["params"]
    assert json.loads(found.uns["gears"]["diagnostics"]) == json.loads(adata.uns["gears"]["diagnostics"])


def test_backed_cells_are_copied_to_memory(placed, adata, tmp_path):
    adata.write_h5ad(tmp_path / "a.h5ad")
    backed = ad.read_h5ad(tmp_path / "a.h5ad", backed="r")
    copy = placed.to_adata(backed, copy=True)
    assert not copy.isbacked and "X_gears" not in backed.obsm
    backed.file.close()


def test_other_cells_are_refused(placed, adata):
    with pytest.raises(InputError, match="found 10 cells"):
        placed.to_adata(adata[:10].copy())
    with pytest.raises(InputError, match="other names"):
        placed.to_adata(adata[::-1].copy())


def test_a_real_result_goes_in_and_out(small_result, small_tissue, tmp_path):
    written = small_result.to_adata(small_tissue.cells, copy=True)
    written.write_h5ad(tmp_path / "cells.h5ad")
    found = ad.read_h5ad(tmp_path / "cells.h5ad")
    np.testing.assert_array_equal(found.obsm["X_gears"], small_result.coords)
    assert json.loads(found.uns["gears"]["diagnostics"])["mode"] == "one-shot"
    assert "X_gears" not in small_tissue.cells.obsm


def test_cells_on_disk_stay_there_and_their_copy_gets_the_places(
    small_result, small_files, small_tissue, tmp_path
):
    import anndata as ad

    source = small_files / "sc.h5ad"
    before = source.read_bytes()
    backed = ad.read_h5ad(source, backed="r")
    small_result.write(backed, tmp_path / "a.h5ad")
    small_result.write(small_tissue.cells, tmp_path / "b.h5ad")
    assert source.read_bytes() == before and backed.isbacked and "X_gears" not in backed.obsm
    a, b = ad.read_h5ad(tmp_path / "a.h5ad"), ad.read_h5ad(tmp_path / "b.h5ad")
    assert (
        list(a.obs) == list(b.obs) and sorted(a.obsm) == sorted(b.obsm) and sorted(a.obsp) == sorted(b.obsp)
    )
    np.testing.assert_array_equal(a.obsm["X_gears"], small_result.coords)
    np.testing.assert_array_equal(a.obsm["X_gears_sample1"], small_result.samples[0])
    assert (a.X != b.X).nnz == 0 and a.uns["gears"]["status"] == b.uns["gears"]["status"]
    assert (a.obsp["gears_distances"] != b.obsp["gears_distances"]).nnz == 0
