"""Several sections in one file are seen, and taken apart."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from spatialgears.errors import InputError
from spatialgears.validate import sections
from spatialgears.validate.sections import (
    apart,
    beside,
    found_sections,
    overlaid,
    repeated_barcodes,
    split_slides,
)


def lattice(n=16, *, hexagonal=True, jitter=0.0, seed=0):
    """A lattice of n x n spots, one apart, without some spots."""
    rng = np.random.default_rng(seed)
    x, y = (part.ravel().astype(float) for part in np.meshgrid(np.arange(n), np.arange(n)))
    coords = np.column_stack([x + 0.5 * (y % 2), y * 3**0.5 / 2] if hexagonal else [x, y])
    coords = coords[rng.permutation(len(coords))[: int(0.9 * len(coords))]]
    return coords + jitter * rng.normal(size=coords.shape)


def turned(coords, angle):
    return coords @ np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])


SINGLE = {
    "hexagonal": lattice(),
    "square": lattice(hexagonal=False),
    "uneven": lattice(hexagonal=False, jitter=0.06),
    "cells": 16 * np.random.default_rng(0).random((300, 2)),
}


@pytest.mark.parametrize("coords", SINGLE.values(), ids=SINGLE)
def test_one_section_is_one(coords):
    assert apart(coords) is None and beside(coords) is None and not overlaid(coords)


@pytest.mark.parametrize("hexagonal", [True, False])
@pytest.mark.parametrize("angle", [0.0, 0.3])
def test_lattices_over_each_other_are_seen(hexagonal, angle):
    one, other = (lattice(hexagonal=hexagonal, seed=seed) for seed in (0, 1))
    assert overlaid(np.vstack([one, turned(other, angle) + np.array([0.37, 0.21])]))


def test_sections_side_by_side_are_told_apart_by_the_gap():
    one, other = lattice(seed=0), lattice(seed=1) + np.array([23, 0])
    order = np.random.default_rng(2).permutation(len(one) + len(other))
    labels, truth = apart(np.vstack([one, other])[order]), np.repeat([0, 1], [len(one), len(other)])[order]
    assert len(pd.crosstab(labels, truth).to_numpy().nonzero()[0]) == 2
    assert apart(np.vstack([one, other - [5, 0]])) is None  # a fold or a tear
    assert apart(np.vstack([one, other[:20]])) is None  # a loose piece


@pytest.mark.parametrize("hexagonal", [True, False])
@pytest.mark.parametrize("axis", [0, 1])
def test_sections_two_pitches_apart_are_told_apart_by_the_strip(hexagonal, axis):
    one, other = (lattice(hexagonal=hexagonal, seed=seed) for seed in (0, 1))
    other[:, axis] += np.ptp(one[:, axis]) + 2
    labels = beside(np.vstack([one, other, [[-4, -4]]]))  # and a loose spot
    np.testing.assert_array_equal(labels, np.repeat([0, 1, 0], [len(one), len(other), 1]))
    other[:, axis] -= 0.9
    assert beside(np.vstack([one, other])) is None  # a missing row


def test_barcodes_of_two_slides_repeat():
    codes = [f"{'ACGT'[i % 4]}CAAGTAACGTACCA{'ACGT'[i // 4 % 4]}{'ACGT'[i // 16 % 4]}-1" for i in range(64)]
    both = pd.Index([f"{code}-{part}" for part in "ab" for code in codes])
    np.testing.assert_array_equal(repeated_barcodes(both), np.repeat([0, 1], 64))
    assert repeated_barcodes(pd.Index(codes)) is None
    assert repeated_barcodes(pd.Index([f"cell {i}" for i in range(99)])) is None


@pytest.fixture
def merged():
    coords = np.vstack([lattice(seed=0), lattice(seed=1) + np.array([30, 0])])
    made = ad.AnnData(np.ones((len(coords), 3), np.float32), obsm={"spatial": coords})
    made.obs["where"] = np.repeat(["left", "right"], len(coords) // 2)
    return made


def test_sections_become_slides(merged):
    half = merged.n_obs // 2
    for by, names in (("auto", ["both 1", "both 2"]), ("where", ["both left", "both right"])):
        slides, called, donors = split_slides([merged], ["data/both.h5ad"], by, donors=["P1"])
        assert called == names and donors == ["P1", "P1"] and [one.n_obs for one in slides] == [half, half]
    slides, called, _ = split_slides([merged], ["both"], None)
    assert slides == [merged] and called == ["both"]
    merged.obs["library_id"] = merged.obs["where"]
    labels, how = found_sections(merged, merged.obsm["spatial"])
    assert "library_id" in how and set(labels) == {"left", "right"}


def test_a_column_that_cannot_split_is_refused(merged):
    with pytest.raises(InputError, match=r"found 'wher'; .obs has where[^?]*Did you mean 'where'"):
        split_slides([merged], ["both"], "wher")
    merged.obs["same"] = "a"
    with pytest.raises(InputError, match="nothing to split"):
        split_slides([merged], ["both"], "same")
    merged.obs.loc[merged.obs_names[:3], "where"] = None
    with pytest.raises(InputError, match=r"3 of .* have no value"):
        split_slides([merged], ["both"], "where")


def test_columns_that_name_sections_are_known(merged):
    assert sections.section_column(merged) is None
    merged.obs["Sample_ID"] = merged.obs["where"]
    assert sections.section_column(merged) == "Sample_ID"
