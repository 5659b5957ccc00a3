"""What is left on disk gives what it gives in memory, is never read whole, and is never written to."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import zarr
from scipy import sparse

from spatialgears.errors import InputError
from spatialgears.io import read
from spatialgears.io.stored import on_disk, source_of
from spatialgears.runtime.files import fingerprint
from spatialgears.validate import counts, sampling, validate_cells, validate_inputs
from spatialgears.validate.counts import row_totals, to_csr

pytestmark = pytest.mark.filterwarnings("ignore:Writing zarr v2 data", "ignore:Consolidated metadata is")

N, G, CHUNK = 400, 90, 3000
GENES = np.array([f"GENE{i}" for i in range(G)])
KINDS = {"csr": sparse.csr_matrix, "csc": sparse.csc_matrix, "dense": np.asarray}


@pytest.fixture
def cells() -> ad.AnnData:
    rng = np.random.default_rng(0)
    made = ad.AnnData(
        sparse.csr_matrix(rng.poisson(0.5, (N, G)).astype(np.float32)),
        obs=pd.DataFrame({"kind": ["a", "b"] * (N // 2)}, index=[f"c{i}" for i in range(N)]),
        var=pd.DataFrame({"name": GENES}, index=GENES),
        uns={"note": "kept", "nested": {"number": 3, "words": np.array(["x", "y"], object)}},
        obsp={"graph": sparse.csr_matrix(np.eye(N, dtype=np.float32))},
    )
    made.raw = made.copy()
    return made


@pytest.fixture(params=["h5ad", "zarr2", "zarr3"])
def write(request, tmp_path):
    """Writes an AnnData as one of the kinds of store, and gives its path."""

    def write(adata: ad.AnnData, name: str = "cells") -> Path:
        path = tmp_path / f"{name}.{request.param[:4]}"
        if request.param == "h5ad":
            adata.write_h5ad(path)
        else:
            with ad.settings.override(zarr_write_format=int(request.param[-1]), auto_shard_zarr_v3=True):
                adata.write_zarr(path)
        return path

    return write


@pytest.fixture
def reads(monkeypatch) -> list[int]:
    """How many entries of matrices each access to a file gave; pointers of sparse matrices are not counted."""
    sizes: list[int] = []
    for kind in (h5py.Dataset, zarr.Array):

        def spied(self, *args, plain=kind.__getitem__, **kwargs):
            found = plain(self, *args, **kwargs)
            if re.fullmatch(r"/(X|raw/X|layers/\w+)(/data|/indices)?", self.name or ""):
                sizes.append(int(np.size(found)))
            return found

        monkeypatch.setattr(kind, "__getitem__", spied)
    return sizes


def with_layers(cells: ad.AnnData, kind: str) -> ad.AnnData:
    """Counts as a layer, other values in ``.X``, both stored as ``kind``."""
    given = cells.copy()
    given.layers["counts"] = KINDS[kind](cells.X.toarray())
    given.X = KINDS[kind](cells.X.toarray() * 0.5)
    return given


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", ["counts", "X", "raw"])
def test_rows_and_columns_are_those_in_memory_and_never_read_whole(
    cells, write, reads, kind, layer, monkeypatch
):
    given = with_layers(cells, kind)
    path = write(given)
    reads.clear()
    found = read(path, layer=layer, backed=True)
    assert on_disk(found) and sum(reads) == 0  # opening reads no matrix
    monkeypatch.setattr(counts, "CHUNK_ENTRIES", CHUNK)
    matrix = cells.X.toarray() * (0.5 if layer == "X" else 1)
    rng = np.random.default_rng(1)
    columns = rng.permutation(G)[:12]
    for rows in (None, np.sort(rng.permutation(N)[:50])):
        out = to_csr(found.X, columns, rows)
        np.testing.assert_array_equal(
            out.toarray(), matrix[slice(None) if rows is None else rows][:, columns]
        )
    np.testing.assert_allclose(row_totals(found.X), matrix.sum(1), rtol=1e-6)
    assert 0 < max(reads) <= CHUNK


def test_of_a_csc_file_only_the_genes_asked_for_are_read(cells, write, reads, monkeypatch):
    path = write(with_layers(cells, "csc"))
    monkeypatch.setattr(counts, "CHUNK_ENTRIES", CHUNK)
    found = read(path, layer="counts", backed=True)
    columns = np.array([70, 3, 40])
    reads.clear()
    to_csr(found.X, columns, np.arange(0, N, 10))
    assert sum(reads) == 2 * (cells.X.toarray()[:, columns] != 0).sum()  # values and their rows


@pytest.mark.parametrize("kind", KINDS)
def test_the_sample_for_fitting_and_its_judgement(cells, write, reads, kind, monkeypatch):
    places = np.random.default_rng(1).uniform(size=(60, 2))
    slide = ad.AnnData(cells.X[:60].toarray(), var=cells.var, obsm={"spatial": places})
    path = write(with_layers(cells, kind))
    monkeypatch.setattr(counts, "CHUNK_ENTRIES", CHUNK)
    monkeypatch.setattr(sampling, "FIT_CELLS", 100)
    reads.clear()
    found = read(path, layer="counts", backed=True)
    rows = sampling.sample_cells(found, seed=0)
    expected, valid = (validate_inputs(slide, one, rows=rows) for one in (cells, found))
    assert valid.cells.shape == (100, G) and (valid.cells != expected.cells).nnz == 0
    assert list(valid.obs_names) == list(cells.obs_names[rows]) == list(expected.obs_names)
    sampling.judge_all(found, valid.genes, layer=None, normalised=False, name="sc")
    assert max(reads) <= CHUNK
    with pytest.raises(InputError, match=r"Available: layer 'counts' \(whole numbers\)"):
        sampling.judge_all(read(path, backed=True), valid.genes, layer=None, normalised=False, name="sc")
    assert max(reads) <= CHUNK


def test_a_bad_value_is_told_by_its_row_and_gene(cells, write, monkeypatch):
    monkeypatch.setattr(counts, "CHUNK_ENTRIES", CHUNK)
    monkeypatch.setattr(sampling, "FIT_CELLS", 100)
    judge = partial(sampling.judge_all, layer=None, normalised=False, name="sc")
    for kind in KINDS:
        bad = cells.X.toarray()
        bad[333, 77] = -1
        given = cells.copy()
        given.X = KINDS[kind](bad)
        found = read(write(given, kind), backed=True)
        with pytest.raises(InputError, match="in row 333, gene GENE77"):
            judge(found, np.asarray(cells.var_names))
        judge(found, np.asarray(cells.var_names.drop("GENE77")))  # not shared


@pytest.mark.parametrize("layer", [None, "counts", "raw"])
def test_places_go_into_a_copy_and_the_input_stays(
    small_result, small_tissue, write, reads, layer, monkeypatch
):
    cells = small_tissue.cells.copy()
    cells.layers["counts"] = sparse.csc_matrix(cells.X)
    cells.raw = cells.copy()
    cells = cells[:, :40].copy()
    cells.uns["nested"] = {"number": 3, "words": np.array(["x", "y"], object)}
    cells.obsp["graph"] = sparse.csr_matrix((150, 150), dtype=np.float32)  # nothing stored
    path = write(cells)
    before = fingerprint(path)
    found = read(path, layer=layer, backed=True)
    assert source_of(found) == path
    monkeypatch.setattr(counts, "CHUNK_ENTRIES", 500)
    reads.clear()
    out = path.parent / "placed.h5ad"
    small_result.write(found, out)
    assert max(reads, default=0) <= 500
    assert fingerprint(path) == before and "X_gears" not in found.obsm
    placed, expected = ad.read_h5ad(out), small_result.to_adata(cells, copy=True)
    for one, other in (
        (placed.X, cells.X),
        (placed.layers["counts"], cells.layers["counts"]),
        (placed.raw.X, cells.raw.X),
        (placed.obsp["graph"], cells.obsp["graph"]),
        (placed.obsp["gears_distances"], expected.obsp["gears_distances"]),
    ):
        assert one.format == other.format and one.dtype == other.dtype and (one != other).nnz == 0
    np.testing.assert_array_equal(placed.obsm["X_gears"], small_result.coords)
    assert list(placed.var_names) == list(cells.var_names) and sorted(placed.obsm) == sorted(expected.obsm)
    assert list(placed.obs) == list(expected.obs) and list(placed.obs["cell_type"]) == list(
        cells.obs["cell_type"]
    )
    assert placed.uns["nested"]["number"] == 3 and list(placed.uns["nested"]["words"]) == ["x", "y"]


def test_copies_and_views_of_what_is_left_on_disk(small_result, small_tissue, write):
    found = read(write(small_tissue.cells), backed=True)
    copy = small_result.to_adata(found, copy=True)
    assert not on_disk(copy) and (copy.X != small_tissue.cells.X).nnz == 0
    view = found[:10]
    assert source_of(view) is None and (small_tissue.cells.X[:10] != view.copy().X).nnz == 0


@pytest.mark.parametrize("kind", ["csr", "csc"])
def test_a_model_places_them_alike(small_model, small_tissue, small_result, write, reads, kind, monkeypatch):
    given = with_layers(small_tissue.cells, kind)
    path = write(given)
    monkeypatch.setattr(counts, "CHUNK_ENTRIES", 1500)
    reads.clear()
    placed = small_model.reconstruct(read(path, layer="counts", backed=True))
    np.testing.assert_array_equal(placed.coords, small_result.coords)
    assert max(reads) <= 1500


def test_the_report_of_cells_on_disk(small_model, small_tissue, small_result, write, reads, monkeypatch):
    from spatialgears.report import report_content

    path = write(with_layers(small_tissue.cells, "csc"))
    expected = report_content(small_model, small_result, small_tissue.cells, slides=small_tissue.slides)
    monkeypatch.setattr(counts, "CHUNK_ENTRIES", 1500)
    reads.clear()
    found = report_content(
        small_model, small_result, read(path, layer="counts", backed=True), slides=small_tissue.slides
    )
    assert max(reads) <= 1500 and found.inputs == expected.inputs and set(found.genes) == set(expected.genes)
    for gene in expected.genes:
        np.testing.assert_allclose(found.genes[gene], expected.genes[gene], rtol=1e-6)


def chunk_of(array: Path) -> Path:
    """The first chunk of a zarr array on disk, of either version."""
    return next(path for path in sorted(array.rglob("0")) if path.is_file())


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("backed", [False, True])
def test_a_broken_zarr_folder_is_refused_by_name(cells, tmp_path, backed, version):
    with ad.settings.override(zarr_write_format=version, auto_shard_zarr_v3=True):
        cells.write_zarr(tmp_path / "cells.zarr")
    path = tmp_path / "cells.zarr"

    def place() -> None:
        validate_cells(read(path, backed=backed), GENES, np.ones(G), name="cells.zarr")

    place()
    chunk = chunk_of(path / "X" / "data")
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"cells\.zarr.* could not be read"):
        place()
    chunk.unlink()
    with pytest.raises(InputError, match=r"cells\.zarr is not complete: 1 of \d+ chunks of /X/data"):
        place()
    chunk.write_bytes(whole)
    (path / "obs").rename(tmp_path / "obs")
    with pytest.raises(
        InputError, match=r"cells\.zarr is a zarr store, but not a whole AnnData .* it holds 'X'"
    ):
        place()
    for file in [*path.glob(".z*"), *path.glob("zarr.json")]:
        file.unlink()
    with pytest.raises(InputError, match=r"cells\.zarr could not be read as a zarr store"):
        place()


def test_a_large_folder_is_left_on_disk_by_the_command(cells, tmp_path, monkeypatch):
    from spatialgears.cli import options

    cells.write_zarr(tmp_path / "cells.zarr")
    assert not options.is_large(str(tmp_path / "cells.zarr"))
    assert not on_disk(options.read_inputs([], str(tmp_path / "cells.zarr")).cells)
    monkeypatch.setattr(options, "LARGE_FILE", 1000)
    assert on_disk(options.read_inputs([], str(tmp_path / "cells.zarr")).cells)
