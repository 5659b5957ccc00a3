"""The same data in another order: the same answer, bit for bit."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from scipy import sparse

from spatialgears.model import GEARS
from spatialgears.validate import order
from spatialgears.validate.sampling import sample_cells

FIELDS = ("coords", "radius50", "radius90", "outside", "samples")


def moved(adata, rng, *, genes=True):
    """A copy with rows and columns in random order, and the rows."""
    rows = rng.permutation(adata.n_obs)
    columns = rng.permutation(adata.n_vars) if genes else np.arange(adata.n_vars)
    return adata[rows][:, columns].copy(), rows


@pytest.fixture(scope="module")
def another(small_config, small_tissue):
    """A model and its places, of the same tissue with slides, spots, cells and genes in another order."""
    rng = np.random.default_rng(1)
    cells, rows = moved(small_tissue.cells, rng)
    slides = [moved(one, rng) for one in small_tissue.slides]
    model = GEARS(small_config).fit(
        [one for one, _ in slides[::-1]], cells, names=["slide 2", "slide 1", "c"]
    )
    return model, model.reconstruct(cells), rows, [places for _, places in slides]


def test_a_fit_on_another_order_places_the_cells_alike(another, small_result):
    _, result, rows, spots = another
    for key in FIELDS:
        mine, given = getattr(result, key), getattr(small_result, key)
        np.testing.assert_array_equal(mine, given[:, rows] if key == "samples" else given[rows], err_msg=key)
    for mine, given, places in zip(result.slides[::-1], small_result.slides, spots, strict=True):
        np.testing.assert_array_equal(mine, given[places])


def test_what_is_said_follows_the_given_order_of_slides(another, small_model):
    model, *_ = another
    titles = [check.title for check in model.checks_]
    assert titles[1:] == [
        "Held-out spots of slide 2",
        "Held-out spots of slide 1",
        "Held-out slide 2",
        "Held-out slide 1",
    ]
    for one in small_model.checks_[1:]:
        mine = model.checks_[titles.index(one.title)]
        np.testing.assert_equal((mine.model, mine.reference), (one.model, one.reference))
    given = small_model.fitted_
    assert model.fitted_.order == given.order[::-1]
    mine, theirs = model.fitted_.cell_check, given.cell_check
    assert mine.r == theirs.r and mine.patterns.slide == 1 - theirs.patterns.slide


def test_kept_slides_lie_on_the_slides_as_given(small_model, small_tissue):
    for kept, slide in zip(small_model.fitted_.given_slides, small_tissue.slides, strict=True):
        spots = kept.frame.to_slide(kept.coords[kept.given])
        np.testing.assert_allclose(spots, slide.obsm["spatial"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("n_cells", [150, 40])
def test_later_cells_in_another_order(small_model, small_tissue, n_cells):
    cells = small_tissue.cells[:n_cells].copy()
    cells.X = cells.X * 2  # not the cells of the fit
    other, rows = moved(cells, np.random.default_rng(2))
    one, two = small_model.reconstruct(cells), small_model.reconstruct(other)
    for key in FIELDS:
        mine, given = getattr(two, key), getattr(one, key)
        np.testing.assert_array_equal(mine, given[:, rows] if key == "samples" else given[rows], err_msg=key)
    np.testing.assert_equal(two.cell_check.figures(), one.cell_check.figures())
    assert one.warnings == two.warnings


def test_rows_have_the_same_key_whatever_the_order_of_genes(monkeypatch):
    rng = np.random.default_rng(0)
    counts, genes = rng.poisson(0.7, (300, 20)).astype(np.float32), np.array([f"g{i}" for i in range(20)])
    counts[7] = counts[3]
    keys, columns = order.row_keys(sparse.csr_matrix(counts), genes), rng.permutation(20)
    np.testing.assert_array_equal(order.row_keys(sparse.csr_matrix(counts[:, columns]), genes[columns]), keys)
    assert keys[3] == keys[7] and len(np.unique(keys)) == len(np.unique(counts, axis=0))
    assert not np.isin(order.row_keys(sparse.csr_matrix(counts), genes[columns]), keys).any()
    monkeypatch.setattr(order, "CHUNK", 50)
    np.testing.assert_array_equal(order.row_keys(sparse.csr_matrix(counts), genes), keys)


def test_places_of_spots_count():
    counts, genes = sparse.csr_matrix(np.ones((2, 3), np.float32)), np.array(["a", "b", "c"])
    keys = order.spot_keys(counts, np.array([[0.0, 1.0], [1.0, 0.0]]), genes)
    assert keys[0] != keys[1]
    np.testing.assert_array_equal(keys, order.spot_keys(counts, np.array([[-0.0, 1.0], [1.0, -0.0]]), genes))


def test_of_very_many_cells_the_same_are_taken(monkeypatch, small_tissue):
    monkeypatch.setattr("spatialgears.validate.sampling.FIT_CELLS", 50)
    other, _ = moved(small_tissue.cells, np.random.default_rng(3))
    first, second = (one.obs_names[sample_cells(one, seed=0)] for one in (small_tissue.cells, other))
    assert set(first) == set(second) and len(first) == 50


def test_threads_are_recorded(small_model, small_result, small_tissue, tmp_path):
    small_model.save(tmp_path / "model")
    assert GEARS.load(tmp_path / "model").fitted_.threads == 1
    assert small_result.to_adata(small_tissue.cells, copy=True).uns["gears"]["threads"] == 1


def test_threads_do_not_change_the_result(small_config, small_tissue, small_model):
    other = GEARS(small_config.with_values(["threads=3"])).fit(small_tissue.slides, small_tissue.cells)
    for name, value in small_model.fitted_.network.state_dict().items():
        assert torch.equal(other.fitted_.network.state_dict()[name], value), name
    assert other.history_ == small_model.history_


def test_resuming_wide_networks_with_other_threads_is_said(
    small_config, small_tissue, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr("spatialgears.config.settings.GeometryConfig.wide", True)

    class Stopped(Exception):
        pass

    def stop(stage, done, total, values):
        if "held out" in stage or done == total:
            raise Stopped

    with pytest.raises(Stopped):
        GEARS(small_config).fit(small_tissue.slides, small_tissue.cells, checkpoint=tmp_path, progress=stop)
    with caplog.at_level(logging.WARNING, logger="spatialgears"), pytest.raises(Stopped):
        GEARS(small_config.with_values(["threads=2"])).fit(
            small_tissue.slides, small_tissue.cells, checkpoint=tmp_path, progress=stop
        )
    assert "begun with 1 threads, resumed with 2" in caplog.text
