from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from spatialgears.model import GEARS
from spatialgears.pipeline import cell_check
from spatialgears.pipeline.kept_out import Placer, check_cells
from spatialgears.validate.order import row_order


@pytest.fixture
def counts(small_model, small_tissue):
    found = sparse.csr_matrix(small_tissue.cells[:, list(small_model.panel_.genes)].X)
    return found.astype(np.float32)


def test_places_do_not_depend_on_masked_genes(small_model, counts):
    mask = np.arange(counts.shape[1]) % 7 == 0
    other = counts.toarray()
    other[:, mask] = np.random.default_rng(0).permutation(other[:, mask]) * 3 + 1
    fitted, config = small_model.fitted_, small_model.config
    (coords, slides), (same, same_slides) = (
        Placer(fitted, one, config, 0)(mask) for one in (counts, sparse.csr_matrix(other))
    )
    np.testing.assert_array_equal(coords, same)
    for one, again, slide in zip(slides, same_slides, fitted.slides, strict=True):
        np.testing.assert_array_equal(one, again)
        assert one.shape == (len(slide.checked.spots), 2)
    unmasked, _ = Placer(fitted, sparse.csr_matrix(other), config, 0)(np.zeros_like(mask))
    assert not np.allclose(unmasked, coords)


def test_cells_of_the_fit_are_checked_once_and_others_anew(small_model, small_result, small_tissue, counts):
    assert small_result.cell_check is small_model.fitted_.cell_check is small_model.checks_[0]
    some = small_tissue.cells[:120].copy()
    later = small_model.reconstruct(some).cell_check
    assert later.n_cells == 120 and small_result.cell_check.n_cells == 150
    first = counts[:120]
    first = first[row_order(first, small_model.panel_.genes)]
    again = check_cells(small_model.fitted_, first, small_model.config)
    assert again.to_dict() == later.to_dict()  # nothing depends on what ran before
    few = small_model.reconstruct(small_tissue.cells[:40].copy())
    assert few.cell_check.verdict == "not checked" and "40 cells are too few" in few.self_check[0]


def test_empty_cells_are_left_out(small_model, counts):
    some = counts.copy().tolil()
    some[7] = 0
    assert check_cells(small_model.fitted_, some.tocsr(), small_model.config).n_cells == 149


def test_the_check_is_stored_with_the_model_and_in_the_cells(
    small_model, small_result, small_tissue, tmp_path
):
    small_model.save(tmp_path / "model")
    loaded = GEARS.load(tmp_path / "model")
    assert loaded.checks_[0].to_dict() == small_model.checks_[0].to_dict()
    for one, again in zip(loaded.fitted_.slides, small_model.fitted_.slides, strict=True):
        np.testing.assert_array_equal(one.checked.values, again.checked.values)
    placed = small_result.to_adata(small_tissue.cells, copy=True)
    placed.write_h5ad(tmp_path / "placed.h5ad")
    stored = placed.uns["gears"]["cells_check"]
    assert set(stored) == set(cell_check.FIGURES) and stored["verdict"] == small_model.checks_[0].verdict
    few = small_model.reconstruct(small_tissue.cells[:40].copy()).to_adata(small_tissue.cells[:40].copy())
    few.write_h5ad(tmp_path / "few.h5ad")
    assert np.isnan(few.uns["gears"]["cells_check"]["r"])


def test_random_cells_do_not_pass(small_model, counts):
    dealt = np.random.default_rng(0).permuted(counts.toarray(), axis=0)
    found = check_cells(small_model.fitted_, sparse.csr_matrix(dealt), small_model.config)
    assert found.verdict == "none" and abs(found.r) < 0.1
