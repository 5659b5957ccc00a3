"""A fit on slides of several donors leaves out donors, one on slides of one donor leaves out slides."""

from __future__ import annotations

import numpy as np
import pytest

from spatialgears.datasets import simulate_tissue
from spatialgears.model import GEARS
from spatialgears.pipeline.self_check import MISSED_SLIDE, ONE_DONOR


@pytest.fixture(scope="module")
def tissue():
    return simulate_tissue(n_cells=120, n_genes=50, spots=60, n_sections=3)


def fitted(tissue, config, donors):
    return GEARS(config.with_values(["geometry.refiner=none"])).fit(
        tissue.slides, tissue.cells, donors=donors
    )


def test_a_donor_is_left_out_with_all_its_slides(tissue, small_config, tmp_path):
    model = fitted(tissue, small_config, ["a", "b", "a"])
    folds, sizes = model.fitted_.folds, [slide.n_obs for slide in tissue.slides]
    assert folds.left_out == 2
    assert np.bincount(folds.whole).tolist() == [sizes[0] + sizes[2], sizes[1]]
    rehearsed = {name.split("/")[0] for name in model.history_ if name.startswith("slide-")}
    assert rehearsed == {"slide-0", "slide-1"}
    missed = [one for one in model.fitted_.checks if one.title.startswith(MISSED_SLIDE)]
    assert len(missed) == 3
    assert all("was seen: this is how well another donor is placed" in one.words for one in missed)
    found = model.reconstruct(tissue.cells)
    assert not any(ONE_DONOR in text for text in found.warnings)
    model.save(tmp_path / "model")
    assert GEARS.load(tmp_path / "model").fitted_.donors == model.fitted_.donors


def test_with_one_donor_slides_are_left_out_and_radii_are_its_own(tissue, small_config):
    model = fitted(tissue, small_config, ["a", "a", "a"])
    assert model.fitted_.folds.left_out == 3
    missed = [one for one in model.fitted_.checks if one.title.startswith(MISSED_SLIDE)]
    assert missed and all("another section of this donor" in one.words for one in missed)
    assert any(ONE_DONOR in text and "(a)" in text for text in model.reconstruct(tissue.cells).warnings)
