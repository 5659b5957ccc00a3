"""A fit on slides of several donors leaves out donors, one on slides of one donor leaves out slides."""

from __future__ import annotations

import numpy as np
import pytest

from spatialgears.datasets import simulate_tissue
from spatialgears.model import GEARS
from spatialgears.pipeline.radii import HELD_OUT
from spatialgears.pipeline.self_check import MISSED_SLIDE


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
    other, own = (model.reconstruct(tissue.cells, cells_from=one) for one in (None, "same-donor"))
    assert not any("one donor" in text for text in other.warnings)
    np.testing.assert_array_equal(other.coords, own.coords)
    confidence = model.fitted_.confidence
    own50 = own.radius50 / HELD_OUT  # those of cells of another donor are not shortened
    for level, wide, narrow in ((0.5, other.radius50, own50), (0.9, other.radius90, own.radius90)):
        ratio = confidence.quantile(level) / confidence.quantile(level, own=True)
        by_check = other.diagnostics["widened"] / own.diagnostics["widened"]
        np.testing.assert_allclose(wide / narrow, ratio * by_check, rtol=1e-4)
    model.save(tmp_path / "model")
    again = GEARS.load(tmp_path / "model")
    assert again.fitted_.donors == model.fitted_.donors
    np.testing.assert_array_equal(
        again.reconstruct(tissue.cells, cells_from="same-donor").radius90, own.radius90
    )


def test_with_one_donor_slides_are_left_out_and_radii_of_others_are_widened(tissue, small_config):
    model = fitted(tissue, small_config, ["a", "a", "a"])
    assert model.fitted_.folds.left_out == 3
    missed = [one for one in model.fitted_.checks if one.title.startswith(MISSED_SLIDE)]
    assert missed and all("another section of this donor" in one.words for one in missed)
    cells = tissue.cells.copy()
    found = {one: model.reconstruct(cells, cells_from=one) for one in ("same-donor", "other-donor", None)}
    said = {
        one: [text for text in rec.warnings if "are of one donor, and" in text] for one, rec in found.items()
    }
    assert not said["same-donor"]
    assert "are of another" in said["other-donor"][0] and "may be of another" in said[None][0]
    own = found["same-donor"]
    assert (
        model.fitted_.average > 0 or own.diagnostics["widened"] == 1
    )  # held-out spots decide, if cells are like them
    for one in ("other-donor", None):  # the check on cells decides
        factor = found[one].diagnostics["widened"] / own.diagnostics["widened"]
        assert factor >= 1
        np.testing.assert_allclose(found[one].radius50, factor * own.radius50 / HELD_OUT, rtol=1e-6)
        np.testing.assert_array_equal(found[one].coords, own.coords)
    cells.uns["donor"] = "a"
    np.testing.assert_array_equal(model.reconstruct(cells).radius90, own.radius90)
    assert any("All slides are of one donor (a)" in text for text in found[None].warnings)
