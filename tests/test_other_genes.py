"""Genes that only the cells have, from the input to the places: they are used, and nothing goes wrong without them."""

from __future__ import annotations

import numpy as np
import pytest

from spatialgears import metrics
from spatialgears.datasets import simulate_tissue
from spatialgears.model import GEARS
from spatialgears.validate import read_other_genes

PANEL = 40


@pytest.fixture(scope="module")
def tissue():
    """A slide of 40 genes, and cells with 260 more."""
    return simulate_tissue(n_cells=300, n_genes=300, n_sections=1, spots=120, cell_depth=400, seed=1)


@pytest.fixture(scope="module")
def slides(tissue):
    return [slide[:, slide.var_names[:PANEL]].copy() for slide in tissue.slides]


@pytest.fixture(scope="module")
def model(tissue, slides, small_config):
    return GEARS(small_config).fit(slides, tissue.cells)


def others(model, cells):
    return model.fitted_.others_of(*read_other_genes(cells, model.fitted_.other_genes))


def test_a_fit_uses_them_and_a_panel_without_them_is_placed_otherwise(model, tissue, slides, small_config):
    used = model.fitted_.view.other_genes
    assert used is not None and not set(used.genes) & set(slides[0].var_names)
    assert set(used.genes) <= set(tissue.cells.var_names)
    off = GEARS(small_config.with_values(["expression.other_genes=0"])).fit(slides, tissue.cells)
    assert off.fitted_.view.other_genes is None
    panel_only = tissue.cells[:, list(slides[0].var_names)].copy()
    bare = GEARS(small_config).fit(slides, panel_only)
    assert bare.fitted_.view.other_genes is None
    np.testing.assert_array_equal(off.reconstruct(tissue.cells).coords, bare.reconstruct(panel_only).coords)
    with_them, without = model.reconstruct(tissue.cells).coords, off.reconstruct(tissue.cells).coords
    truth = tissue.truth.obsm["spatial"]
    assert metrics.spearman(with_them, truth) > metrics.spearman(without, truth) + 0.02


def test_cells_that_lack_most_of_them_are_placed_by_the_panel(model, tissue, slides):
    panel_only = tissue.cells[:, list(slides[0].var_names)].copy()
    assert others(model, panel_only) is None
    assert np.isfinite(model.reconstruct(panel_only).coords).all()
    some = model.fitted_.view.other_genes.genes[:20]
    fewer = tissue.cells[:, ~tissue.cells.var_names.isin(some)].copy()
    assert model.reconstruct(tissue.cells).cell_check is model.fitted_.cell_check
    for one in (panel_only, fewer):  # placed by less than the cells of the fit were, so checked again
        assert model.reconstruct(one).cell_check is not model.fitted_.cell_check
    found = others(model, fewer)
    np.testing.assert_array_equal(found.missing, np.isin(found.genes, some))
    near = metrics.spearman(model.reconstruct(fewer).coords, model.reconstruct(tissue.cells).coords)
    assert near > 0.9


def test_the_order_of_cells_and_genes_does_not_matter(model, tissue, slides, small_config):
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(tissue.cells.n_obs), rng.permutation(tissue.cells.n_vars)
    again = GEARS(small_config).fit(slides, tissue.cells[rows][:, columns].copy())
    np.testing.assert_array_equal(
        again.reconstruct(tissue.cells).coords, model.reconstruct(tissue.cells).coords
    )


def test_values_that_are_no_counts_are_left_out(tissue, slides, small_config, model):
    cells = tissue.cells.copy()
    bad = model.fitted_.view.other_genes.genes[:3]
    x = cells.X.toarray().astype(float)
    x[:, cells.var_names.get_indexer(bad)] = [[np.nan, -1, 0.5]]
    cells.X = x
    found = GEARS(small_config).fit(slides, cells)
    assert not set(bad) & set(found.fitted_.view.other_genes.genes)
    assert others(model, cells).missing.sum() == 3
    assert np.isfinite(model.reconstruct(cells).coords).all()


def test_a_saved_model_places_the_same(model, tissue, tmp_path):
    model.save(tmp_path / "model")
    again = GEARS.load(tmp_path / "model")
    np.testing.assert_array_equal(
        again.reconstruct(tissue.cells).coords, model.reconstruct(tissue.cells).coords
    )
