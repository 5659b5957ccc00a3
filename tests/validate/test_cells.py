from __future__ import annotations

import anndata as ad
import numpy as np
import pytest
from scipy import sparse

from spatialgears.errors import InputError
from spatialgears.validate import MOST_MISSING, validate_cells

GENES = np.array([f"G{i}" for i in range(20)])
WEIGHTS = np.linspace(2, 0.1, 20, dtype=np.float32)


@pytest.fixture
def cells() -> ad.AnnData:
    rng = np.random.default_rng(0)
    made = ad.AnnData(sparse.csr_matrix(rng.poisson(2.0, (30, 25)).astype(np.float32)))
    made.obs_names = [f"cell {i}" for i in range(30)]
    made.var_names = [f"G{i}" for i in range(25)]
    return made


def test_counts_come_in_the_order_of_the_model(cells):
    for given in (cells, cells[:, ::-1].copy(), cells[:, ::-1]):
        counts, missing, warnings = validate_cells(given, GENES[::-1], WEIGHTS[::-1])
        np.testing.assert_array_equal(counts.toarray(), cells.X.toarray()[:, :20][:, ::-1])
        assert not missing.any() and warnings == []
        assert counts.dtype == np.float32


def test_cells_are_not_modified(cells):
    before = cells.X.toarray()
    counts, _, _ = validate_cells(cells, GENES, WEIGHTS)
    counts.data[:] = -1
    np.testing.assert_array_equal(cells.X.toarray(), before)


def test_dense_and_backed_give_the_same(cells, tmp_path):
    expected = validate_cells(cells, GENES, WEIGHTS)[0].toarray()
    cells.write_h5ad(tmp_path / "a.h5ad")
    backed = ad.read_h5ad(tmp_path / "a.h5ad", backed="r")
    dense = cells.copy()
    dense.X = dense.X.toarray()
    for given in (dense, backed):
        np.testing.assert_array_equal(validate_cells(given, GENES, WEIGHTS)[0].toarray(), expected)
    backed.file.close()


def test_missing_genes_are_zero_marked_and_named(cells):
    fewer = cells[:, [i for i in range(25) if i not in (5, 17)]].copy()
    counts, missing, (warning,) = validate_cells(fewer, GENES, WEIGHTS, name="new.h5ad")
    assert list(GENES[missing]) == ["G5", "G17"]
    assert counts.shape == (30, 20) and counts[:, missing].nnz == 0
    np.testing.assert_array_equal(
        counts[:, ~missing].toarray(), cells.X[:, np.flatnonzero(~missing)].toarray()
    )
    assert "new.h5ad: 2 of the model's 20 genes are missing" in warning and "G5, G17" in warning


def test_weight_decides_how_many_may_be_missing(cells):
    light, heavy = GENES[-8:], GENES[:3]
    weight = WEIGHTS**2 / (WEIGHTS**2).sum()
    assert weight[-8:].sum() < MOST_MISSING < weight[:3].sum()
    assert validate_cells(cells[:, ~cells.var_names.isin(light)].copy(), GENES, WEIGHTS)[1].sum() == 8
    with pytest.raises(InputError, match=r"3 of the model's 20 genes are missing.*G0, G1, G2"):
        validate_cells(cells[:, ~cells.var_names.isin(heavy)].copy(), GENES, WEIGHTS)


def test_other_names_are_explained(cells):
    cells.var_names = [f"g{i}" for i in range(25)]
    with pytest.raises(InputError, match="20 of the model's 20 genes are missing, 100%") as error:
        validate_cells(cells, GENES, WEIGHTS)
    assert error.value.advice


def test_a_gene_named_twice_counts_as_missing():
    many = ad.AnnData(np.ones((3, 300), np.float32))
    many.var_names = [*(f"G{i}" for i in range(299)), "G19"]
    counts, missing, warnings = validate_cells(many, GENES, WEIGHTS)
    assert list(GENES[missing]) == ["G19"] and counts[:, 19].nnz == 0
    assert any("G19" in one for one in warnings)


def test_bad_values_are_refused_by_name(cells):
    for value, words in ((np.nan, "new.h5ad"), (-1.0, "negative"), (0.5, "whole|counts")):
        bad = cells.copy()
        bad.X = bad.X.toarray()
        bad.X[3, 4] = value
        with pytest.raises(InputError, match=words):
            validate_cells(bad, GENES, WEIGHTS, name="new.h5ad")


def test_normalised_values_when_accepted(cells):
    cells.X = cells.X.toarray() * 0.37
    counts, _, warnings = validate_cells(cells, GENES, WEIGHTS, normalised=True)
    np.testing.assert_allclose(counts.toarray(), cells.X[:, :20], rtol=1e-6)
    assert "taken as normalised" in warnings[0]


def test_what_is_no_anndata_or_empty_is_refused(cells):
    with pytest.raises(InputError, match="expected an AnnData, found ndarray"):
        validate_cells(np.ones((3, 20)), GENES, WEIGHTS)
    with pytest.raises(InputError, match="there are no cells"):
        validate_cells(cells[:0].copy(), GENES, WEIGHTS)


def test_slides_and_cells_that_were_swapped_are_told(small_tissue):
    from spatialgears.validate import validate_inputs

    with pytest.raises(InputError, match="were slides and cells swapped"):
        validate_inputs(small_tissue.cells, small_tissue.slides[0])
