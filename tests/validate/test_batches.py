from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from spatialgears.validate import validate_inputs
from spatialgears.validate.batches import EXCESS, goes_with_place, warn_batches


@pytest.fixture
def coords():
    return np.random.default_rng(0).random((400, 2))


def test_batches_that_are_mixed_do_not_go_with_place(coords):
    rng = np.random.default_rng(1)
    for levels in (2, 5):
        assert abs(goes_with_place(rng.integers(levels, size=400).astype(str), coords)) < 0.05
    assert goes_with_place(np.full(400, "one"), coords) == 0
    assert goes_with_place(np.arange(400).astype(str), coords) == 0  # names of points, not batches


def test_batches_of_two_halves_do(coords):
    halves = np.where(coords[:, 0] < 0.5, "a", "b")
    assert goes_with_place(halves, coords) > 0.8
    mixed = np.where(np.random.default_rng(2).random(400) < 0.5, halves, "a")
    assert 0.05 < goes_with_place(mixed, coords) < goes_with_place(halves, coords)


def test_only_columns_that_name_batches_count(coords):
    halves = np.where(coords[:, 0] < 0.5, "a", "b")
    assert warn_batches(pd.DataFrame({"cell_type": halves}), coords, "the cells", placed=True) == []
    (words,) = warn_batches(pd.DataFrame({"Lane": halves}), coords, "the cells", placed=True)
    assert (
        words.startswith("the cells: .obs['Lane'] is confounded with the predicted position (")
        and EXCESS < 0.8
    )


def test_a_slide_says_that_its_batches_go_with_place(small_tissue):
    first, second = (one.copy() for one in small_tissue.slides)
    left = first.obsm["spatial"][:, 0] < np.median(first.obsm["spatial"][:, 0])
    first.obs["chip"] = np.where(left, "1", "2")
    second.obs["chip"] = np.random.default_rng(0).choice(["1", "2"], second.n_obs)
    told = [text for text in validate_inputs([first, second]).warnings if "'chip'" in text]
    assert len(told) == 1 and told[0].startswith("slide 1: .obs['chip'] is confounded with position (")


def test_placed_cells_say_that_their_batches_do(small_model, small_tissue, small_result):
    cells = small_tissue.cells.copy()
    cells.obs["batch"] = np.where(small_result.coords[:, 0] < 0, "a", "b")
    assert any(
        "is confounded with the predicted position" in text
        for text in small_model.reconstruct(cells).warnings
    )
    cells.obs["batch"] = np.random.default_rng(0).choice(["a", "b"], cells.n_obs)
    assert not any("confounded" in text for text in small_model.reconstruct(cells).warnings)
