"""Slides whose values are not counts, and cells with counts."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from spatialgears.check import check_inputs
from spatialgears.model import GEARS
from spatialgears.pipeline.prepare import prepare
from spatialgears.validate import validate_inputs


@pytest.fixture(scope="module")
def slides(small_tissue):
    """In situ intensities: continuous, on a scale of their own for each gene, some below zero."""
    found = []
    for slide in small_tissue.slides:
        one, values = slide.copy(), slide.X.toarray().astype(float)
        rates = values / values.sum(1, keepdims=True)
        one.X = sparse.csr_matrix(
            (np.sqrt(rates) * np.linspace(0.5, 3, values.shape[1]) + 0.01).astype(np.float32)
        )
        found.append(one)
    return found


def test_counts_are_matched_and_the_order_over_spots_is_kept(slides, small_tissue, small_config):
    inputs = validate_inputs(slides, small_tissue.cells, normalised=True)
    found = prepare(inputs, small_config)
    assert inputs.kind == "mixed" and found.matched and found.raw and found.inputs.kind == "counts"
    assert "not counts" in found.warnings[-1] or any("not counts" in text for text in found.warnings)
    for i, slide in zip(found.order, slides, strict=True):
        spots, values = found.spots[i], slide[found.rows[i], list(found.panel.genes)].X.toarray()
        order = np.argsort(values[:, 0], kind="stable")
        assert (np.diff(spots.toarray()[order, 0]) >= 0).all()
        assert (spots.data == np.rint(spots.data)).all()


def test_a_mixed_run_is_a_run_on_counts(slides, small_tissue, small_config, tmp_path):
    config = small_config.with_values(["assembly.samples=0", "geometry.slide_steps=0"])
    model = GEARS(config).fit(slides, small_tissue.cells, normalised=True)
    assert model.counts_ and model.fitted_.matched
    placed = model.reconstruct(small_tissue.cells, normalised=True)  # as was said to the fit
    np.testing.assert_array_equal(model.reconstruct(small_tissue.cells).coords, placed.coords)
    assert placed.cell_check.n_cells == 150 and any("not counts" in text for text in placed.warnings)
    model.save(tmp_path / "model")
    assert GEARS.load(tmp_path / "model").fitted_.matched


def test_a_check_of_the_inputs_says_so(slides, small_tissue):
    found = check_inputs(slides, small_tissue.cells, normalised=True, config="quick")
    assert found.kind == "mixed" and any("not counts" in text for text in found.warnings)
    assert found.coexpression is not None
