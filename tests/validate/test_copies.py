from __future__ import annotations

import anndata as ad
import numpy as np
import pytest

from spatialgears.errors import InputError
from spatialgears.validate import validate_inputs


def part(adata: ad.AnnData, share: float) -> ad.AnnData:
    """A random part, in another order."""
    rows = np.random.default_rng(0).permutation(adata.n_obs)[: int(share * adata.n_obs)]
    return adata[rows].copy()


@pytest.mark.parametrize("share", [1.0, 0.7])
def test_a_slide_given_twice_is_refused(small_tissue, share):
    first, second = small_tissue.slides
    again = part(first, share)
    again.obsm["spatial"] = again.obsm["spatial"] * 2 + 5  # other places do not make it another slide
    with pytest.raises(InputError, match=r"a and c hold the same values.*(\n.*)*Leave one of them out"):
        validate_inputs([first, second, again], small_tissue.cells, names=["a", "b", "c"])


def test_spots_given_as_cells_are_told(small_tissue):
    spots = part(small_tissue.slides[1], 0.7)
    (told,) = (one for one in validate_inputs(small_tissue.slides, spots).warnings if "own spots" in one)
    assert told.startswith("the cells: 100% of them have exactly the values of spots of slide 2")


def test_two_sections_and_cells_of_one_tissue_are_not_copies(small_tissue):
    found = validate_inputs(small_tissue.slides, small_tissue.cells)
    assert not any("exactly the values" in one for one in found.warnings)


def test_profiles_too_poor_to_tell_are_not_copies(small_tissue):
    """Four genes in every spot: that two slides show the same four is an accident."""
    slides = [one.copy() for one in small_tissue.slides]
    for slide in slides:
        values = np.zeros(slide.shape, dtype=np.float32)
        values[np.arange(slide.n_obs)[:, None], 4 * (np.arange(slide.n_obs)[:, None] % 15) + np.arange(4)] = 1
        slide.X = values
    assert len(validate_inputs(slides, small_tissue.cells).slides) == 2
