from __future__ import annotations

import gzip
import os

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
from scipy import io as scipy_io
from scipy import sparse

from spatialgears.errors import InputError
from spatialgears.io import read, write_h5ad
from spatialgears.io.stored import on_disk, source_of


@pytest.fixture
def spots() -> ad.AnnData:
    rng = np.random.default_rng(0)
    counts = sparse.csr_matrix(rng.poisson(0.5, (12, 7)).astype(np.float32))
    obs = pd.DataFrame(
        {"px": rng.normal(size=12), "py": rng.normal(size=12)}, index=[f"AAAC{i}-1" for i in range(12)]
    )
    var = pd.DataFrame(
        {"gene_ids": [f"ENSG{i:011d}" for i in range(7)]}, index=[f"GENE{i}" for i in range(7)]
    )
    return ad.AnnData(counts, obs=obs, var=var, obsm={"spatial": rng.uniform(0, 100, (12, 2))})


def same(left: ad.AnnData, right: ad.AnnData) -> None:
    assert list(left.obs_names) == list(right.obs_names)
    assert list(left.var_names) == list(right.var_names)
    assert sparse.issparse(left.X)
    np.testing.assert_array_equal(left.X.toarray(), right.X.toarray())


def write_mtx(folder, adata, *, prefix="", zipped=True):
    folder.mkdir(parents=True, exist_ok=True)
    end, opener = (".gz", gzip.open) if zipped else ("", open)
    with opener(folder / f"{prefix}matrix.mtx{end}", "wb") as file:
        scipy_io.mmwrite(file, adata.X.T.astype(int))
    rows = [f"{gene_id}\t{name}\tGene Expression\n" for name, gene_id in adata.var["gene_ids"].items()]
    if not zipped:
        rows = [row.replace("\tGene Expression", "") for row in rows]
    with opener(folder / f"{prefix}{'features' if zipped else 'genes'}.tsv{end}", "wt") as file:
        file.writelines(rows)
    with opener(folder / f"{prefix}barcodes.tsv{end}", "wt") as file:
        file.writelines(f"{name}\n" for name in adata.obs_names)


def write_10x_h5(path, adata):
    with h5py.File(path, "w") as file:
        group = file.create_group("matrix")
        x = adata.X.tocsr()
        group["data"], group["indices"], group["indptr"] = x.data.astype(np.int32), x.indices, x.indptr
        group["shape"] = np.array(adata.shape[::-1])
        group["barcodes"] = adata.obs_names.to_numpy().astype("S")
        features = group.create_group("features")
        features["name"] = adata.var_names.to_numpy().astype("S")
        features["id"] = adata.var["gene_ids"].to_numpy().astype("S")
        features["feature_type"] = np.full(adata.n_vars, b"Gene Expression")
        features["genome"] = np.full(adata.n_vars, b"GRCh38")


def positions(adata, *, outside=()):
    xy = adata.obsm["spatial"]
    return pd.DataFrame(
        {
            "barcode": adata.obs_names,
            "in_tissue": [int(i not in outside) for i in range(adata.n_obs)],
            "array_row": range(adata.n_obs),
            "array_col": range(adata.n_obs),
            "pxl_row_in_fullres": xy[:, 1],
            "pxl_col_in_fullres": xy[:, 0],
        }
    )


def test_h5ad_and_backed(spots, tmp_path):
    spots.write_h5ad(tmp_path / "a.h5ad")
    same(read(tmp_path / "a.h5ad"), spots)
    backed = read(tmp_path / "a.h5ad", backed=True)
    assert on_disk(backed) and not on_disk(read(tmp_path / "a.h5ad"))
    same(backed.to_memory(), spots)


V2 = pytest.mark.filterwarnings("ignore:Writing zarr v2 data")


@V2
def test_zarr_of_anndata(spots, tmp_path):
    spots.write_zarr(tmp_path / "a.zarr")
    out = read(tmp_path / "a.zarr")
    same(out, spots)
    np.testing.assert_array_equal(out.obsm["spatial"], spots.obsm["spatial"])


@V2
def test_zarr_of_spatialdata(spots, tmp_path):
    zarr = pytest.importorskip("zarr")
    store = zarr.open_group(str(tmp_path / "sd.zarr"), mode="w", zarr_format=2)
    store.create_group("tables")
    store.create_group("shapes")
    spots.write_zarr(tmp_path / "sd.zarr" / "tables" / "table")
    out = read(tmp_path / "sd.zarr")
    same(out, spots)
    np.testing.assert_array_equal(out.obsm["spatial"], spots.obsm["spatial"])
    spots[:5].copy().write_zarr(tmp_path / "sd.zarr" / "tables" / "other")
    with pytest.raises(InputError, match="'other', 'table'"):
        read(tmp_path / "sd.zarr")
    assert read(tmp_path / "sd.zarr", table="other").n_obs == 5


def test_10x_h5(spots, tmp_path):
    write_10x_h5(tmp_path / "filtered.h5", spots)
    out = read(tmp_path / "filtered.h5")
    same(out, spots)
    same(read(tmp_path / "filtered.h5", genes="gene_ids"), _renamed(spots))


def _renamed(adata):
    out = adata.copy()
    out.var_names = out.var["gene_ids"].to_numpy()
    return out


def test_repeated_names_in_10x_are_left_for_validation(spots, tmp_path):
    spots.var_names = ["GENE0", "GENE0", *spots.var_names[2:]]
    write_10x_h5(tmp_path / "filtered.h5", spots)  # warnings are errors here: the reader must not warn
    assert read(tmp_path / "filtered.h5").var_names.duplicated().sum() == 1


@pytest.mark.parametrize(("prefix", "zipped"), [("", True), ("GSM1_", True), ("", False)])
def test_10x_mtx_folder(spots, tmp_path, prefix, zipped):
    write_mtx(tmp_path / "m", spots, prefix=prefix, zipped=zipped)
    same(read(tmp_path / "m"), spots)


def test_folder_with_two_matrices_asks_which(spots, tmp_path):
    write_mtx(tmp_path / "m", spots, prefix="a_")
    write_mtx(tmp_path / "m", spots[:4], prefix="b_")
    with pytest.raises(InputError, match=r"a_matrix\.mtx\.gz, b_matrix\.mtx\.gz"):
        read(tmp_path / "m")
    assert read(tmp_path / "m" / "b_matrix.mtx.gz").n_obs == 4


@pytest.mark.parametrize(
    "name", ["tissue_positions.csv", "tissue_positions_list.csv", "tissue_positions.parquet"]
)
@pytest.mark.parametrize("matrix", ["h5", "folder"])
def test_space_ranger_folder_keeps_spots_in_tissue(spots, tmp_path, name, matrix):
    outs = tmp_path / "run" / "outs"
    (outs / "spatial").mkdir(parents=True)
    table = positions(spots, outside=(1, 3)).sample(frac=1, random_state=0)  # another order than the counts
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
        table.to_parquet(outs / "spatial" / name)
    else:
        table.to_csv(outs / "spatial" / name, index=False, header="list" not in name)
    if matrix == "h5":
        write_10x_h5(outs / "sample_filtered_feature_bc_matrix.h5", spots)
    else:
        write_mtx(outs / "filtered_feature_bc_matrix", spots)
    kept = [i for i in range(12) if i not in (1, 3)]
    for path in (outs, outs.parent):
        out = read(path)
        same(out, spots[kept])
        np.testing.assert_allclose(out.obsm["spatial"], spots.obsm["spatial"][kept])


def test_space_ranger_folder_that_lacks_a_part(spots, tmp_path):
    (tmp_path / "spatial").mkdir()
    with pytest.raises(InputError, match="no positions"):
        read(tmp_path)
    positions(spots[2:]).to_csv(tmp_path / "spatial" / "tissue_positions.csv", index=False)
    with pytest.raises(InputError, match="no counts"):
        read(tmp_path)
    write_10x_h5(tmp_path / "filtered_feature_bc_matrix.h5", spots)
    with pytest.raises(InputError, match=r"2 of 12 barcodes are missing, e\.g\. AAAC0-1"):
        read(tmp_path)


@pytest.mark.parametrize("matrix", ["h5", "folder"])
def test_cell_ranger_folder_has_counts_alone(spots, tmp_path, matrix):
    outs = tmp_path / "run" / "outs"
    outs.mkdir(parents=True)
    if matrix == "h5":
        write_10x_h5(outs / "filtered_feature_bc_matrix.h5", spots)
    else:
        write_mtx(outs / "filtered_feature_bc_matrix", spots)
    for path in (outs, outs.parent):
        found = read(path)
        same(found, spots)
        assert "spatial" not in found.obsm


def test_a_folder_above_names_the_one_below(spots, tmp_path):
    write_mtx(tmp_path / "sample", spots)
    with pytest.raises(InputError, match=r"holds no data itself; .*sample does"):
        read(tmp_path)


def test_visium_hd_asks_for_a_bin(tmp_path):
    (tmp_path / "binned_outputs" / "square_008um" / "spatial").mkdir(parents=True)
    with pytest.raises(InputError, match="square_008um"):
        read(tmp_path)


@pytest.mark.parametrize("name", ["counts.csv", "counts.tsv", "counts.csv.gz"])
@pytest.mark.parametrize("genes_in_rows", [False, True])
def test_table_with_coordinates_finds_its_orientation(spots, tmp_path, name, genes_in_rows):
    frame = spots.to_df().T if genes_in_rows else spots.to_df()
    frame.to_csv(tmp_path / name, sep="\t" if "tsv" in name else ",")
    places = pd.DataFrame(spots.obsm["spatial"], columns=["X", "Y"], index=spots.obs_names).assign(extra=1)
    places.iloc[::-1].to_csv(tmp_path / "xy.csv")
    out = read(tmp_path / name, coordinates=tmp_path / "xy.csv")
    same(out, spots)
    np.testing.assert_allclose(out.obsm["spatial"], spots.obsm["spatial"])


def test_table_without_coordinates_and_without_corner(spots, tmp_path):
    """R writes a header with one field less than the rows have."""
    text = spots.to_df().T.to_csv()
    (tmp_path / "r.csv").write_text(text.removeprefix(","))
    same(read(tmp_path / "r.csv", transpose=True), spots)


def test_table_keeps_repeated_gene_names(tmp_path):
    (tmp_path / "c.csv").write_text("cell,A,A,B\nc1,1,2,3\nc2,0,0,5\n")
    assert list(read(tmp_path / "c.csv").var_names) == ["A", "A", "B"]


def test_text_in_a_table_of_counts_is_told(tmp_path):
    (tmp_path / "c.csv").write_text("cell,A,type\nc1,1,T cell\nc2,0,B cell\n")
    with pytest.raises(InputError, match=r"'T cell'(.|\n)*columns of text, such as cell types"):
        read(tmp_path / "c.csv")


def test_table_longer_than_a_chunk(tmp_path, monkeypatch, spots):
    monkeypatch.setattr("spatialgears.io.tables.CHUNK", 5)
    spots.to_df().to_csv(tmp_path / "c.csv")
    same(read(tmp_path / "c.csv"), spots)


def test_positions_list_serves_as_coordinates(spots, tmp_path):
    spots.to_df().to_csv(tmp_path / "c.csv")
    positions(spots).to_csv(tmp_path / "tissue_positions_list.csv", index=False, header=False)
    out = read(tmp_path / "c.csv", coordinates=tmp_path / "tissue_positions_list.csv")
    np.testing.assert_allclose(out.obsm["spatial"], spots.obsm["spatial"])


def test_coordinates_from_columns_of_obs(spots, tmp_path):
    spots.write_h5ad(tmp_path / "a.h5ad")
    out = read(tmp_path / "a.h5ad", coordinates=("px", "py"))
    np.testing.assert_array_equal(out.obsm["spatial"], spots.obs[["px", "py"]].to_numpy())
    with pytest.raises(InputError, match=r"\.obs has 'px', 'py'"):
        read(tmp_path / "a.h5ad", coordinates=("x", "y"))


def test_endings_may_be_in_capitals(spots, tmp_path):
    spots.write_h5ad(tmp_path / "A.H5AD")
    spots.to_df().to_csv(tmp_path / "B.CSV.GZ", compression="gzip")
    for name in ("A.H5AD", "B.CSV.GZ"):
        same(read(tmp_path / name), spots)


def test_a_file_that_ends_too_early(spots, tmp_path):
    path = tmp_path / "a.h5ad"
    spots.write_h5ad(path)
    path.write_bytes(path.read_bytes()[:-4096])
    with pytest.raises(InputError, match=r"a\.h5ad could not be read as an \.h5ad file: it ends too early"):
        read(path)


def test_coordinates_that_do_not_fit(spots, tmp_path):
    spots.to_df().to_csv(tmp_path / "c.csv")
    (tmp_path / "few.csv").write_text("name,x,y\nAAAC0-1,1,2\n")
    with pytest.raises(InputError, match=r"it names .*11 of 12 spots have no coordinates, e\.g\. 'AAAC1-1'"):
        read(tmp_path / "c.csv", coordinates=tmp_path / "few.csv")
    (tmp_path / "odd.csv").write_text("name,a,b,c\nAAAC0-1,1,2,3\n")
    with pytest.raises(InputError, match="found a, b, c"):
        read(tmp_path / "c.csv", coordinates=tmp_path / "odd.csv")
    (tmp_path / "array.csv").write_text("name,array_row,array_col\nAAAC0-1,1,2\n")  # hexagons: not x and y
    with pytest.raises(InputError, match="found array_row, array_col"):
        read(tmp_path / "c.csv", coordinates=tmp_path / "array.csv")
    (tmp_path / "twice.csv").write_text("name,x,y\nAAAC0-1,1,2\nAAAC0-1,1,2\n")
    with pytest.raises(InputError, match="occur twice"):
        read(tmp_path / "c.csv", coordinates=tmp_path / "twice.csv")
    (tmp_path / "bare.csv").write_text("x,y\n1.5,2\n1.5,3\n")
    with pytest.raises(InputError, match=r"should name the spots, and holds numbers, e\.g\. 1\.5"):
        read(tmp_path / "c.csv", coordinates=tmp_path / "bare.csv")


def test_layer_and_raw(spots, tmp_path):
    spots.layers["counts"] = spots.X.copy()
    spots.raw = spots[:, :]
    spots = spots[:, :3].copy()
    spots.X = spots.X * 0.5
    spots.write_h5ad(tmp_path / "a.h5ad")
    for backed in (False, True):
        found = read(tmp_path / "a.h5ad", layer="counts", backed=backed)
        assert on_disk(found) == backed
        np.testing.assert_array_equal(found.to_memory().X.toarray(), spots.layers["counts"].toarray())
        raw = read(tmp_path / "a.h5ad", layer="raw", backed=backed)
        assert raw.shape == (12, 7) and raw.obsm["spatial"].shape == (12, 2)
    with pytest.raises(InputError, match="layer 'counts', 'raw'"):
        read(tmp_path / "a.h5ad", layer="cuonts")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\n<!DOCTYPE html><html>Sign in</html>", "it is a web page"),
        ("", "it is empty(.|\n)*was the disk full"),
        ("cell,A,B\nc1,1,2\n", "it is not an HDF5 file; it begins with 'cell,A,B'(.|\n)*\\.csv or \\.tsv"),
    ],
)
def test_what_is_no_data_at_all_is_told(tmp_path, text, words):
    (tmp_path / "page.h5ad").write_text(text)
    with pytest.raises(InputError, match=rf"page\.h5ad could not be read as an \.h5ad file: {words}"):
        read(tmp_path / "page.h5ad")
    with pytest.raises(InputError, match=r"Did you mean .*page\.h5ad\?"):
        read(tmp_path / "pages.h5ad")


def test_errors_say_what_is_there(tmp_path):
    (tmp_path / "b.h5ad").write_bytes(b"not hdf5")
    (tmp_path / "c.rds").write_bytes(b"")
    (tmp_path / "d.csv").write_text("")
    with pytest.raises(InputError, match=r"no file or folder .*a\.h5ad\.\n.*'b\.h5ad', 'c\.rds'"):
        read(tmp_path / "a.h5ad")
    with pytest.raises(InputError, match=r"could not be read as an \.h5ad file"):
        read(tmp_path / "b.h5ad")
    with pytest.raises(InputError, match=r"c\.rds is in no format .*\.h5ad, \.zarr") as error:
        read(tmp_path / "c.rds")
    assert str(error.value).count(".zarr") == 1 and "writeH5AD" in str(error.value)
    with pytest.raises(InputError, match="it begins with nothing"):
        read(tmp_path / "d.csv")
    with pytest.raises(InputError, match=r"holds 'b\.h5ad', 'c\.rds', 'd\.csv'"):
        read(tmp_path)


def test_write_is_whole_or_nothing_and_changes_nothing(spots, tmp_path, monkeypatch):
    spots.obs["words"] = ["a", "b"] * 6
    path = tmp_path / "deep" / "a.h5ad"
    write_h5ad(spots, path)
    assert spots.obs["words"].dtype == object  # anndata's own writer would have made it categorical
    same(read(path), spots)
    before = path.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_h5ad(spots[:3].copy(), path)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["a.h5ad"]


def test_writing_a_backed_object_leaves_it_on_its_file(spots, tmp_path):
    write_h5ad(spots, tmp_path / "a.h5ad")
    backed = read(tmp_path / "a.h5ad", backed=True)
    write_h5ad(backed, tmp_path / "b.h5ad")
    assert source_of(backed) == tmp_path / "a.h5ad"
    same(read(tmp_path / "b.h5ad"), spots)


def test_table_keeps_names_that_look_like_gaps(tmp_path):
    (tmp_path / "fly.csv").write_text(
        "gene,s1,s2\nnan,1,2\nActb,0,3\nNA,4,\nnull,5,6\n".replace("4,\n", "4,0\n")
    )
    assert list(read(tmp_path / "fly.csv", transpose=True).var_names) == ["nan", "Actb", "NA", "null"]
    (tmp_path / "xy.csv").write_text("spot,x,y\nnan,1,2\nNA,3,4\n")
    (tmp_path / "counts.csv").write_text("spot,g1,g2\nnan,1,2\nNA,0,3\n")
    assert list(read(tmp_path / "counts.csv", coordinates=tmp_path / "xy.csv").obs_names) == ["nan", "NA"]


@pytest.mark.parametrize("prefix", ["", "s1_"])
def test_text_files_of_10x_that_are_not_gzipped(spots, tmp_path, prefix):
    write_mtx(tmp_path / "m", spots, prefix=prefix)
    for path in (tmp_path / "m").glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    same(read(tmp_path / "m"), spots)
    (tmp_path / "m" / f"{prefix}barcodes.tsv").write_text("one\n")
    with pytest.raises(InputError, match="three files from one run"):
        read(tmp_path / "m")


def test_10x_tables_of_any_form_are_read(spots, tmp_path):
    """Cell Ranger 2 as GEO gzips it: genes.tsv.gz of two columns, beside a matrix that is perhaps not gzipped."""
    write_mtx(tmp_path / "m", spots, zipped=False)
    for name in ("genes.tsv", "barcodes.tsv"):
        path = tmp_path / "m" / name
        path.with_name(f"{name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    same(read(tmp_path / "m"), spots)
    (tmp_path / "m" / "genes.tsv.gz").unlink()
    with pytest.raises(InputError, match=r"expected features.tsv or .*genes.tsv.gz beside it"):
        read(tmp_path / "m")
    (tmp_path / "m" / "matrix.mtx").rename(tmp_path / "m" / "counts.mtx")
    with pytest.raises(InputError, match=r"a name that ends in matrix.mtx"):
        read(tmp_path / "m" / "counts.mtx")


def test_text_with_gaps_is_written_as_categories_and_left_as_it_is(spots, tmp_path):
    spots.obs["kind"] = ["a", np.nan, None] * 4
    spots.obs["nullable"] = pd.array(["x", pd.NA] * 6, dtype="string")
    spots.layers["counts"], spots.raw = spots.X.copy(), spots.copy()
    before = spots.obs.dtypes.copy()
    write_h5ad(spots, tmp_path / "a.h5ad")
    found = ad.read_h5ad(tmp_path / "a.h5ad")
    assert found.obs["kind"].tolist()[0] == "a" and found.obs["kind"].isna().sum() == 8
    assert found.obs["nullable"].notna().sum() == 6 and found.raw.shape == found.layers["counts"].shape
    assert (spots.obs.dtypes == before).all()
    spots.obs["odd"] = [{"a": 1}] * 12
    with pytest.raises(InputError, match="key 'odd'"):
        write_h5ad(spots, tmp_path / "a.h5ad")


@pytest.mark.parametrize(("index", "kept"), [("ensembl", "ensembl"), (None, "gene_ids")])
def test_genes_by_another_column_keep_the_names_they_had(spots, tmp_path, index, kept):
    spots.var = pd.DataFrame({"symbol": spots.var_names}, index=pd.Index(spots.var["gene_ids"], name=index))
    spots.write_h5ad(tmp_path / "a.h5ad")
    for backed in (False, True):
        found = read(tmp_path / "a.h5ad", genes="symbol", backed=backed)
        assert list(found.var_names) == list(spots.var["symbol"])
        assert list(found.var[kept]) == list(spots.var_names)
        assert set(found.var) == {"symbol", kept}


def test_a_layer_keeps_the_graph_of_the_cells(spots, tmp_path):
    spots.layers["counts"], spots.obsp["gears_connectivities"] = spots.X.copy(), sparse.eye(12, format="csr")
    spots.write_h5ad(tmp_path / "a.h5ad")
    assert "gears_connectivities" in read(tmp_path / "a.h5ad", layer="counts").obsp


def test_words_and_gaps_among_coordinates_are_told_apart(spots, tmp_path):
    spots.obs["px"] = spots.obs["px"].astype(str).replace(spots.obs["px"].astype(str).iloc[4], "off slide")
    spots.write_h5ad(tmp_path / "a.h5ad")
    with pytest.raises(InputError, match=r"must be numbers, found \['off slide', .* of AAAC4-1"):
        read(tmp_path / "a.h5ad", coordinates=["px", "py"])
    spots.obs["px"] = pd.array([None, *range(11)], dtype="Int64")
    spots.write_h5ad(tmp_path / "a.h5ad")
    with pytest.raises(InputError, match="1 of 12 spots have no coordinates"):
        read(tmp_path / "a.h5ad", coordinates=["px", "py"])


def test_a_table_parted_by_blanks_is_told(tmp_path):
    (tmp_path / "a.txt").write_text("g1 g2\nc1 1 2\n")
    with pytest.raises(InputError, match=r"separated by commas.* begins with g1 g2 / c1 1 2"):
        read(tmp_path / "a.txt")


def test_folder_with_two_samples_of_cell_ranger_asks_which(spots, tmp_path):
    for name in ("GSM1", "GSM2"):
        write_10x_h5(tmp_path / f"{name}_filtered_feature_bc_matrix.h5", spots)
    with pytest.raises(InputError, match=r"2 matrices: GSM1_filtered.*, GSM2_filtered.*"):
        read(tmp_path)


@pytest.mark.parametrize("header", [",x,y\n", "\ufeffspot,x,y\n", "x,y\n", "spot,x,y\n"])
def test_names_in_a_table_of_places_stay_as_they_are_whatever_its_header(tmp_path, header):
    names = ["001", "NA", "1e5"]
    (tmp_path / "xy.csv").write_text(
        header + "".join(f"{name},{i},{i + 1}\n" for i, name in enumerate(names))
    )
    (tmp_path / "counts.csv").write_text("spot,g1,g2\n" + "".join(f"{name},1,2\n" for name in names))
    found = read(tmp_path / "counts.csv", coordinates=tmp_path / "xy.csv")
    assert list(found.obs_names) == names
    np.testing.assert_array_equal(found.obsm["spatial"], [[0, 1], [1, 2], [2, 3]])
