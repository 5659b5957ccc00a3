from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import sparse

from spatialgears.errors import ConfigError, InputError
from spatialgears.expression.panel import Panel
from spatialgears.geometry.features import Features
from spatialgears.model import GEARS
from spatialgears.pipeline.fit import _keep_slides, fit_model
from spatialgears.pipeline.prepare import prepare
from spatialgears.validate import validate_inputs


def test_more_processes_than_sets_are_refused_before_any_training(small_config, small_tissue, monkeypatch):
    monkeypatch.setattr("spatialgears.pipeline.fit.train_encoder", None)
    config = small_config.with_values({"devices": 9, "geometry": {"batch_size": 8, "slide_batch": 4}})
    with pytest.raises(ConfigError, match="9 processes cannot share the 4 sets"):
        fit_model(prepare(validate_inputs(small_tissue.slides[0], small_tissue.cells), config), config)


def test_empty_spots_and_cells_do_not_take_part(small_config, small_tissue):
    config = small_config.with_values(
        {"geometry": {"steps": 1, "refiner_steps": 1, "slide_steps": 0, "crossfit": 1}}
    )
    slide, cells = small_tissue.slides[0].copy(), small_tissue.cells.copy()
    for adata, row in ((slide, 3), (cells, 5)):
        keep = np.ones(adata.n_obs)
        keep[row] = 0
        adata.X = sparse.csr_matrix(sparse.diags(keep) @ adata.X)
    inputs = validate_inputs(slide, cells)
    assert inputs.empty_spots[0].sum() == 1 and inputs.empty_cells.sum() == 1
    fitted = fit_model(prepare(inputs, config), config)
    assert len(fitted.slides[0].coords) == slide.n_obs - 1
    assert all(
        torch.isfinite(value).all() for value in fitted.tensors().values() if value.is_floating_point()
    )


def test_values_that_are_not_counts(small_config, small_tissue):
    config = small_config.with_values(
        {"geometry": {"steps": 1, "refiner_steps": 1, "slide_steps": 0, "crossfit": 1}}
    )
    slide, cells = (one.copy() for one in (small_tissue.slides[0], small_tissue.cells))
    slide.X, cells.X = slide.X.log1p(), cells.X.log1p()
    model = GEARS(config).fit(slide, cells, normalised=True)
    assert np.isfinite(model.reconstruct(cells).coords).all()  # what was said to fit holds here too
    with pytest.raises(InputError, match="fitted on normalised values, and normalised=False"):
        model.reconstruct(small_tissue.cells, normalised=False)


def test_of_a_large_slide_as_many_spots_as_are_kept_fill_the_tissue(small_config, monkeypatch):
    """A quarter of the spots lie twice as far apart, whatever the distance of the nearest two."""
    grid = np.stack(np.meshgrid(np.arange(20.0), np.arange(20.0)), -1).reshape(-1, 2)
    monkeypatch.setattr("spatialgears.pipeline.fit.FOOTPRINT", 100)
    spots = SimpleNamespace(draw=lambda index, generator: Features(torch.zeros(len(index), 2)))
    counts = sparse.csr_matrix(np.random.default_rng(0).poisson(2.0, (400, 3)))
    panel = Panel(np.array(["a", "b", "c"]), np.ones(3, np.float32), np.full(3, 0.5), 6.0)
    prepared = SimpleNamespace(
        spots=[counts],
        slides=[grid],
        frames=[None],
        panel=panel,
        raw=True,
        matched=False,
        rows=[np.arange(len(grid))],
    )
    [kept] = _keep_slides(prepared, spots, seed=0)
    assert len(kept.coords) == 100 and kept.pitch == pytest.approx(2.0)
    assert kept.checked.values.shape == (100, 3)  # of the spots that are kept, by their position among these
    np.testing.assert_array_equal(kept.checked.spots, np.arange(100))
