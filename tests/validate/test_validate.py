from __future__ import annotations

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from spatialgears.check import check_inputs
from spatialgears.errors import InputError
from spatialgears.validate import counts as counts_module
from spatialgears.validate import validate_inputs
from spatialgears.validate.coordinates import warn_unlike_extents
from spatialgears.validate.counts import describe, form_of, to_csr

GENES = [f"GENE{i}" for i in range(60)]


def make(n=50, *, genes=GENES, seed=0, places=True, kind=sparse.csr_matrix) -> ad.AnnData:
    rng = np.random.default_rng(seed)
    counts = rng.poisson(rng.gamma(0.5, 4, len(genes)), (n, len(genes))).astype(np.float32)
    counts[:, 0] += 1  # nobody is empty
    adata = ad.AnnData(kind(counts), obs=pd.DataFrame(index=[f"o{i}" for i in range(n)]))
    adata.var_names = list(genes)
    if places:
        adata.obsm["spatial"] = rng.uniform(0, 10, (n, 2))
    return adata


def renamed(adata: ad.AnnData, names) -> ad.AnnData:
    out = adata.copy()
    out.var_names = list(names)
    return out


def with_value(adata: ad.AnnData, value: float) -> ad.AnnData:
    out = adata.copy()
    dense = out.X.toarray()
    dense[3, 7] = value
    out.X = sparse.csr_matrix(dense)
    return out


@pytest.fixture
def slide() -> ad.AnnData:
    return make(seed=1)


@pytest.fixture
def cells() -> ad.AnnData:
    return make(80, seed=2, places=False)


# ---- what is given back


def test_slides_of_unlike_width_are_told():
    side = np.arange(30.0)
    whole = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    part, other_unit = whole[(whole < 15).all(1)], 100 * whole[(whole < 15).all(1)]
    (told,) = warn_unlike_extents([whole, part], ["slide 1", "slide 2"])
    assert "slide 1 is 2.0 times as wide as slide 2" in told
    assert warn_unlike_extents([whole, other_unit], ["a", "b"]) == []  # who knows
    assert warn_unlike_extents([whole, whole + 5], ["a", "b"]) == []


def test_shared_genes_in_one_order(slide, cells):
    other = make(40, genes=GENES[::-1][:50], seed=3)
    valid = validate_inputs([slide, other], cells)
    assert list(valid.genes) == sorted(set(GENES[10:]))
    for matrix, adata in zip([*valid.slides, valid.cells], [slide, other, cells], strict=True):
        assert matrix.format == "csr" and matrix.dtype == np.float32
        np.testing.assert_array_equal(matrix.toarray(), adata[:, valid.genes].X.toarray())
    np.testing.assert_array_equal(valid.coords[1], other.obsm["spatial"])
    assert valid.coords[0].dtype == np.float64
    assert valid.kind == "counts" and valid.forms == ["counts"] * 3
    assert list(valid.obs_names) == list(cells.obs_names)
    assert not valid.empty_cells.any() and not valid.unsupported_cells.any()


def test_cells_are_optional_and_one_slide_needs_no_list(slide):
    valid = validate_inputs(slide)
    assert valid.cells is None and len(valid.slides) == 1 and len(valid.obs_names) == 0


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csc_matrix, sparse.csr_array, np.asarray])
def test_every_kind_of_matrix_gives_the_same(slide, cells, kind):
    same = slide.copy()
    same.X = kind(slide.X.toarray())
    expected = validate_inputs(slide, cells)
    found = validate_inputs(same, cells)
    assert (expected.slides[0] != found.slides[0]).nnz == 0


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize(
    "kind", [sparse.coo_matrix, np.matrix, sparse.csc_array, lambda x: x.astype(np.int64)]
)
def test_columns_of_any_matrix(slide, kind):
    dense = slide.X.toarray()
    chosen = np.array([5, 2, 59, 0])
    out = to_csr(kind(dense), chosen)
    assert isinstance(out, sparse.csr_matrix)
    np.testing.assert_array_equal(out.toarray(), dense[:, chosen])


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csc_matrix, np.asarray])
def test_backed_files_are_read_in_chunks(slide, cells, tmp_path, monkeypatch, kind):
    expected = validate_inputs(slide, cells)
    slide.X = kind(slide.X.toarray())
    slide.write_h5ad(tmp_path / "a.h5ad")
    backed = ad.read_h5ad(tmp_path / "a.h5ad", backed="r")
    monkeypatch.setattr(counts_module, "CHUNK_ENTRIES", 7 * 60)  # seven rows at a time
    found = validate_inputs(backed, cells)
    assert (expected.slides[0] != found.slides[0]).nnz == 0
    assert backed.isbacked
    backed.file.close()


def test_views_work_and_inputs_are_not_changed(slide, cells):
    slide.X.data[:3] = 0  # stored zeros: cleaned in the copy only
    view, before = slide[10:45], slide.copy()
    valid = validate_inputs(view, cells)
    assert view.is_view and valid.slides[0].shape[0] == 35
    valid.slides[0].data[:] = -1
    valid.coords[0][:] = -1
    np.testing.assert_array_equal(slide.X.data, before.X.data)
    np.testing.assert_array_equal(slide.X.indices, before.X.indices)
    np.testing.assert_array_equal(slide.obsm["spatial"], before.obsm["spatial"])


def test_whole_input_is_copied_too(slide):
    slide = slide[:, sorted(GENES)].copy()
    validate_inputs(slide).slides[0].data[:] = -1
    assert slide.X.min() >= 0


# ---- coordinates


def test_no_coordinates(slide, cells):
    slide.obsm["X_pca"] = slide.obsm.pop("spatial")
    slide.obs["x_um"] = 0.0
    with pytest.raises(InputError, match=r"slide 1: expected coordinates .*'X_pca', \.obs has x_um") as error:
        validate_inputs(slide, cells)
    assert error.value.advice.startswith("Set spatial_key=") and "--coordinates" in error.value.advice
    slide.obs["X"], slide.obs["Y"], slide.obs["y"] = 1.0, 2.0, "text"
    cells.obsm["spatial"] = np.zeros((80, 2))
    with pytest.raises(InputError) as error:
        validate_inputs(slide, cells)
    cure = (
        "If .obs['X'] and .obs['Y'] are its places: read(path, coordinates=['X', 'Y']) (--coordinates X,Y). "
    )
    assert error.value.advice.startswith(cure + "Otherwise: Set spatial_key=")
    assert error.value.advice.endswith("The cells have coordinates: were slides and cells swapped?")


def test_another_key_and_data_frames(slide, cells):
    slide.obsm["place"] = pd.DataFrame(slide.obsm.pop("spatial"), index=slide.obs_names, columns=["x", "y"])
    assert validate_inputs(slide, cells, spatial_key="place").coords[0].shape == (50, 2)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_coordinates_that_are_not_finite(slide, value):
    slide.obsm["spatial"][4, 1] = value
    with pytest.raises(InputError, match=r"1 of 50 spots have NaN or infinite coordinates, e\.g\. o4"):
        validate_inputs(slide)


def test_three_coordinates(slide):
    flat = np.c_[slide.obsm["spatial"], np.full(50, 3.0)]
    slide.obsm["spatial"] = flat
    valid = validate_inputs(slide)
    assert valid.coords[0].shape == (50, 2) and "third coordinate is 3 everywhere" in valid.warnings[0]
    slide.obsm["spatial"] = flat + np.arange(50)[:, None]
    with pytest.raises(InputError, match="found three, and the third varies"):
        validate_inputs(slide)
    slide.obsm["spatial"] = flat[:, :1]
    with pytest.raises(InputError, match=r"shape \(spots, 2\), found \(50, 1\)"):
        validate_inputs(slide)


def test_coordinates_on_a_line_or_in_a_point(slide):
    slide.obsm["spatial"] = np.outer(np.arange(50.0), [1, 2])
    with pytest.raises(InputError, match="found a line"):
        validate_inputs(slide)
    slide.obsm["spatial"] = np.ones((50, 2))
    with pytest.raises(InputError, match="same coordinates"):
        validate_inputs(slide)


def test_repeated_coordinates(slide):
    slide.obsm["spatial"][:5] = slide.obsm["spatial"][5:10]
    assert any("5 of 50 spots lie exactly on another" in text for text in validate_inputs(slide).warnings)
    slide.obsm["spatial"] = np.repeat(slide.obsm["spatial"][:10], 5, axis=0)
    with pytest.raises(InputError, match="45 of 50 spots lie exactly on another"):
        validate_inputs(slide)


def test_several_sections_in_one_slide_are_odd(slide):
    two = ad.concat([slide, slide[:40].copy()], index_unique="-")
    two.obsm["spatial"] = two.obsm["spatial"] + np.linspace(0, 1, 90)[:, None]
    two.obs["Library_ID"] = ["a"] * 50 + ["b"] * 40
    (told,) = [text for text in validate_inputs(two).warnings if "Library_ID" in text]
    assert "slide 1: .obs['Library_ID'] names several parts (2: a, b)." in told
    assert "--split Library_ID" in told
    two.obs = two.obs.rename(columns={"Library_ID": "part"})
    assert not any("names several parts" in text for text in validate_inputs(two).warnings)
    two.uns["spatialdata_attrs"] = {"region": ["a", "b"], "region_key": "part"}
    assert any(".obs['part'] names several parts" in text for text in validate_inputs(two).warnings)
    two.obs["Library_ID"] = ["a"] * 80 + ["b"] * 10  # too few spots to be a section
    assert not any("Library_ID" in text for text in validate_inputs(two).warnings)


def test_a_small_slide_is_told(slide):
    told = [text for text in validate_inputs(slide).warnings if "fewer than 100" in text]
    assert len(told) == 1 and told[0].startswith("slide 1 has 50 spots")


def test_slide_too_small(slide):
    with pytest.raises(InputError, match="slide 1: expected at least 30 spots, found 29"):
        validate_inputs(slide[:29])
    assert validate_inputs(slide[:29], min_spots=20).slides[0].shape[0] == 29


# ---- genes


def test_repeated_gene_names_are_refused(slide, cells):
    slide = renamed(slide, ["GENE1", *GENES[1:]])
    with pytest.warns(UserWarning, match="not unique"):
        slide = slide.copy()
    with pytest.raises(InputError, match=r"1 gene name occurs more than once, e\.g\. GENE1"):
        validate_inputs(slide, cells)


def test_a_few_repeated_names_in_a_transcriptome_are_left_out():
    names = [f"G{i}" for i in range(1000)]
    slide, cells = make(genes=names), make(genes=names, seed=5, places=False)
    slide.var_names = ["G1", *names[1:]]
    valid = validate_inputs(slide, cells)
    assert "G1" not in valid.genes and len(valid.genes) == 998
    assert any("ambiguous and left out" in text for text in valid.warnings)
    np.testing.assert_array_equal(
        valid.slides[0].toarray(), slide.X.toarray()[:, [names.index(g) for g in valid.genes]]
    )


def symbols_in_a_column(adata):
    adata = renamed(adata, [f"ENSG{i:011d}" for i in range(60)])
    adata.var["feature_name"] = pd.Categorical(GENES)
    return adata


@pytest.mark.parametrize(
    ("spoil", "cause"),
    [
        (lambda a: renamed(a, [f"ENSG{i:011d}" for i in range(60)]), "by Ensembl identifiers"),
        (symbols_in_a_column, r"\.var\['feature_name'\] \(60 in common\).*\(--sc-genes feature_name\)"),
        (lambda a: renamed(a, [name.capitalize() for name in GENES]), "differ in case"),
        (lambda a: renamed(a, [f"{name}.{i % 9}" for i, name in enumerate(GENES)]), "version suffixes"),
        (lambda a: renamed(a, [str(i) for i in range(60)]), "numbers for gene names"),
        (lambda a: renamed(a, [f"other{i}" for i in range(60)]), "same species and annotation"),
    ],
)
def test_gene_names_that_do_not_meet(slide, cells, spoil, cause):
    with pytest.raises(InputError, match=cause) as error:
        validate_inputs(slide, spoil(cells))
    assert "at least 20 genes shared by all inputs, found 0" in error.value.problem
    assert "slide 1 has 60 genes: GENE0, GENE1" in error.value.problem
    assert f"the cells has 60 genes: {spoil(cells).var_names[0]}" in error.value.problem


def test_a_transposed_table_is_recognised(slide):
    cells = ad.AnnData(sparse.csr_matrix(np.ones((60, 70), np.float32)))
    cells.obs_names, cells.var_names = GENES, [f"cell{i}" for i in range(70)]
    with pytest.raises(InputError, match="genes in rows"):
        validate_inputs(slide, cells)


def test_too_few_shared_genes(slide, cells):
    with pytest.raises(InputError, match="at least 20 genes shared by all inputs, found 19"):
        validate_inputs(slide, cells[:, :19])
    assert len(validate_inputs(slide, cells[:, :19], min_genes=10).genes) == 19


def test_a_small_overlap_is_odd():
    names = [f"G{i}" for i in range(500)]
    slide, cells = make(genes=names), make(genes=[*names[:30], *(f"H{i}" for i in range(470))], places=False)
    assert any("Only 30 genes are shared, 6.0%" in text for text in validate_inputs(slide, cells).warnings)


# ---- values


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinite"), (-np.inf, "infinite")])
@pytest.mark.parametrize("normalised", [False, True])
def test_values_that_are_not_finite(slide, cells, value, word, normalised):
    with pytest.raises(InputError, match=rf"the cells: .* found 1 {word} value, .* row 3, gene GENE7"):
        validate_inputs(slide, with_value(cells, value), normalised=normalised)


def test_negative_values(slide, cells):
    with pytest.raises(
        InputError, match=r"found 1 negative value \(smallest -2\), e\.g\. -2 in row 3, gene GENE7"
    ):
        validate_inputs(slide, with_value(cells, -2))
    scaled = validate_inputs(slide, with_value(cells, -2), normalised=True)
    assert scaled.kind == "normalised" and scaled.forms == ["counts", "scaled"]


def normalise(adata, *, log):
    out = adata.copy()
    x = adata.X.toarray()
    x = x / x.sum(1, keepdims=True) * 1e4
    out.X = sparse.csr_matrix(np.log1p(x) if log else x)
    return out


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (True, "like log1p of values scaled to 10,000 each"),
        (False, "like values scaled to 10,000 each, not log-transformed"),
    ],
)
def test_normalised_values_are_recognised_and_accepted_when_said(slide, cells, log, words):
    cells.layers["raw_counts"] = cells.X.copy()
    cells = normalise(cells, log=log)
    with pytest.raises(InputError, match=rf"{words}.*'raw_counts' \(whole numbers\)") as error:
        validate_inputs(slide, cells)
    assert "read(path, layer='raw_counts') (--sc-layer raw_counts)" in error.value.advice
    assert "--normalised" in error.value.advice
    slide.layers["my counts"], slide.X = slide.X.copy(), -slide.X
    with pytest.raises(
        InputError, match=r"negative(.|\n)*layer='my counts'\) \(--layer 'my counts', with --sc-layer X"
    ):
        validate_inputs(slide)
    slide.X = slide.layers.pop("my counts")
    valid = validate_inputs(slide, cells, normalised=True)
    assert valid.kind == "normalised" and valid.forms == ["counts", "log" if log else "linear"]
    assert any("taken as normalised, as asked" in text for text in valid.warnings)


def test_slides_and_cells_that_were_normalised_otherwise_are_told(slide, cells):
    for one, unlike in ((normalise(slide, log=True), True), (normalise(slide, log=False), False)):
        found = validate_inputs(one, normalise(cells, log=False), normalised=True)
        assert any("Normalise slides and cells in the same way" in text for text in found.warnings) == unlike
        assert found.kind == "normalised"


def test_cells_with_counts_and_slides_without_are_mixed(slide, cells):
    assert (
        validate_inputs(slide, cells, normalised=True).kind == "normalised"
    )  # all are counts, as far as can be seen
    found = validate_inputs([slide, normalise(slide[:60].copy(), log=True)], cells, normalised=True)
    assert found.kind == "mixed" and found.forms == ["counts", "log", "counts"]
    assert not any("the cells" in text and "as asked" in text for text in found.warnings)
    assert not any("alike" in text for text in found.warnings)


def test_forms():
    assert form_of(sparse.csr_matrix(np.eye(3))) == "counts"
    assert form_of(sparse.csr_matrix((3, 3))) == "counts"
    assert form_of(sparse.csr_matrix(np.array([[0.5, 96.0], [3.2, 1.0]]))) == "linear"
    assert "counts" in describe(sparse.csr_matrix(np.eye(3)))


def test_bins_that_look_like_counts_are_odd(slide, cells):
    bins = cells.copy()
    bins.X = sparse.csr_matrix(np.random.default_rng(0).integers(0, 101, cells.shape).astype(np.float32))
    assert any("bins, ranks" in text for text in validate_inputs(slide, bins).warnings)
    told = [text for text in validate_inputs(slide, bins, normalised=True).warnings if "the cells" in text]
    assert told == [
        "the cells: many values equal the largest, 100: bins, ranks or clipped values, taken as normalised, as asked."
    ]
    assert not any("bins, ranks" in text for text in validate_inputs(slide, cells).warnings)


def test_wrong_layer(slide, cells):
    slide.layers["counts"] = slide.X.copy()
    with pytest.raises(
        InputError, match=r"slide 1: there is no layer 'cuonts'; available are \.X, layer 'counts'"
    ):
        validate_inputs(slide, layer="cuonts")
    with pytest.raises(InputError, match="the cells: there is no layer 'counts'"):
        validate_inputs(slide, cells, layer="counts")
    slide.layers["counts"] = slide.layers["counts"] * 2
    assert validate_inputs(slide, layer="counts").slides[0].sum() == 2 * slide.X.sum()


def test_raw_as_a_layer(slide):
    slide.raw = slide
    small = slide[:, :30].copy()
    assert len(validate_inputs(small, layer="raw").genes) == 60


def test_no_values_at_all(slide):
    bare = ad.AnnData(obs=slide.obs, var=slide.var, obsm={"spatial": slide.obsm["spatial"]})
    with pytest.raises(InputError, match=r"\.X is empty; available are nothing"):
        validate_inputs(bare)


def test_empty_cells_and_spots_are_kept_and_marked(slide, cells):
    for adata, rows in ((slide, [2]), (cells, [0, 7])):
        dense = adata.X.toarray()
        dense[rows] = 0
        adata.X = sparse.csr_matrix(dense)
    valid = validate_inputs(slide, cells)
    assert valid.cells.shape[0] == 80 and list(np.flatnonzero(valid.empty_cells)) == [0, 7]
    assert list(np.flatnonzero(valid.empty_spots[0])) == [2]
    assert any("the cells: 2 of 80 have no counts" in text for text in valid.warnings)
    assert not valid.unsupported_cells.any()


def test_cells_that_no_slide_supports(slide, cells):
    x = slide.X.toarray()
    x[:, 40:] = 0
    slide.X = sparse.csr_matrix(x)
    strange = cells.X.toarray()
    strange[5, :40] = 0
    strange[5, 40:] = 3
    cells.X = sparse.csr_matrix(strange)
    valid = validate_inputs(slide, cells)
    assert valid.unsupported_cells[5] and valid.unsupported_cells.sum() < 10
    assert any("genes that no slide shows" in text for text in valid.warnings)


# ---- the whole


def test_all_problems_are_told_at_once(slide, cells):
    other = make(10)
    del slide.obsm["spatial"]
    with pytest.raises(InputError) as error:
        validate_inputs([slide, other], cells, names=["a.h5ad", "b.h5ad", "c.h5ad"])
    assert "a.h5ad: expected coordinates" in str(error.value) and "b.h5ad: expected at least" in str(
        error.value
    )


def test_too_few_cells_to_learn_from(slide, cells):
    with pytest.raises(
        InputError, match=r"the cells: expected at least 10 .* found 3 of 3.\n .*Fit on more cells"
    ):
        validate_inputs(slide, cells[:3])
    assert validate_inputs(slide, cells[:3], min_cells=1).cells.shape[0] == 3


def test_half_precision_is_read_as_single(slide):
    slide.X = np.asarray(slide.X.todense() if sparse.issparse(slide.X) else slide.X, dtype=np.float16)
    assert validate_inputs(slide).slides[0].dtype == np.float32
    np.testing.assert_array_equal(counts_module.row_totals(slide.X), slide.X.sum(1, dtype=np.float64))


def test_names_of_the_slides_alone_are_enough(slide, cells):
    assert validate_inputs(slide, cells, names=["a.h5ad"]).cells is not None
    report = check_inputs([slide], cells, names=["a.h5ad"])
    assert (report.slides[0].name, report.cells.name) == ("a.h5ad", "the cells")


def test_a_digest_is_of_values_places_and_genes(slide, cells):
    known = validate_inputs(slide, cells).digest()
    assert validate_inputs(slide.copy(), cells.copy()).digest() == known
    moved = slide.copy()
    moved.obsm["spatial"] = moved.obsm["spatial"] * 2
    assert validate_inputs(moved, cells).digest() != known
    assert validate_inputs(slide, cells[::-1].copy()).digest() != known


def test_what_is_not_anndata(slide, cells):
    with pytest.raises(InputError, match="at least one slide"):
        validate_inputs([], cells)
    with pytest.raises(InputError, match=r"slide 1: expected an AnnData, found str.\n.*sg\.read"):
        validate_inputs(["a.h5ad"], cells)
    with pytest.raises(InputError, match="the cells: there are no cells"):
        validate_inputs(slide, cells[:0])
