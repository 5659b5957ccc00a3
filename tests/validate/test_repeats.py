from __future__ import annotations

import anndata as ad
import numpy as np
import pytest
from scipy import sparse

from spatialgears.config import Config
from spatialgears.errors import InputError
from spatialgears.pipeline.prepare import prepare
from spatialgears.validate import repeats, validate_inputs

GENES = np.array([f"g{i}" for i in range(300)])


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def slide(rng):
    """Smooth rates over a grid, and independent counts."""
    coords = np.stack(np.meshgrid(np.arange(15.0), np.arange(14.0)), -1).reshape(-1, 2)
    rates = np.exp(0.2 * coords @ rng.normal(size=(2, 80)) * 0.3 + rng.normal(size=80) * 0.5)
    return rng.poisson(rates).astype(np.float32), coords


def kept(counts, coords, **how):
    return repeats.independent(sparse.csr_matrix(counts), coords, GENES[: counts.shape[1]], **how)


def test_independent_spots_all_stay(slide):
    assert kept(*slide).all()


@pytest.mark.parametrize("share", [1.0, 0.8, 0.5])
@pytest.mark.parametrize("far", [0.3, 5.0])
def test_of_copies_one_stays(slide, rng, share, far):
    counts, coords = slide
    copies = [rng.binomial(counts.astype(int), share).astype(np.float32) for _ in range(2)]
    places = [coords + far * rng.normal(size=coords.shape) for _ in copies]
    found = kept(np.concatenate([counts, *copies]), np.concatenate([coords, *places]))
    n = len(counts)
    assert found.sum() < (1.0 if share == 1 else 1.1) * n + 1
    assert share == 1 or found[:n].sum() > 0.95 * n  # the deepest


def test_overlapping_bins_are_thinned_out_not_dropped(rng):
    strips = rng.poisson(3.0, (121, 300))
    counts = (strips[:-1] + strips[1:]).astype(np.float32)  # each shares half of its counts with the next
    coords = np.stack([np.arange(120.0), rng.random(120)], 1)
    found = kept(counts, coords)
    assert 40 <= found.sum() <= 70 and (found[1:] & found[:-1]).sum() <= 3


def test_values_that_are_not_counts_must_be_equal(slide):
    counts, coords = slide
    values = np.log1p(counts)
    twice = np.concatenate([values, values[:50]])
    places = np.concatenate([coords, coords[:50] + 0.3])
    assert kept(twice, places, counted=False).sum() == len(values)


def test_no_pair_is_kept_whole(rng):
    pairs = np.unique(np.sort(rng.integers(200, size=(300, 2)), axis=1), axis=0)
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    rank = rng.permutation(200)
    found = repeats._unrelated(pairs, rank)
    assert not found[pairs].all(1).any()
    lost = np.flatnonzero(~found)  # each for the sake of a better one that stays
    for one in lost:
        others = np.concatenate([pairs[pairs[:, 0] == one, 1], pairs[pairs[:, 1] == one, 0]])
        assert (found[others] & (rank[others] < rank[one])).any()


def twice(slide, rng):
    again = slide.copy()
    again.obsm["spatial"] = slide.obsm["spatial"] + rng.normal(size=(slide.n_obs, 2))
    again.obs_names = [f"{name}-again" for name in slide.obs_names]
    return ad.concat([slide, again])


def test_a_run_uses_one_of_each_and_says_so(small_tissue, rng):
    first, second = small_tissue.slides
    inputs = validate_inputs([first, twice(second, rng)], small_tissue.cells)
    prepared = prepare(inputs, Config.preset("quick"))
    assert [len(prepared.slides[i]) for i in prepared.order] == [first.n_obs, second.n_obs]
    (told,) = [text for text in prepared.warnings if "repeat others" in text]
    assert told.startswith(f"slide 2: {second.n_obs} of {2 * second.n_obs} spots repeat others")


def test_too_few_that_are_no_copies_are_refused(small_tissue, rng):
    few = twice(small_tissue.slides[0][:25].copy(), rng)
    inputs = validate_inputs([few], small_tissue.cells)
    with pytest.raises(InputError, match="measured independently, found 25"):
        prepare(inputs, Config.preset("quick"))


def test_a_thinned_copy_of_a_slide_is_refused(small_tissue, rng):
    first, second = small_tissue.slides
    copy = first.copy()
    copy.X = sparse.csr_matrix(rng.binomial(first.X.toarray(), 0.8).astype(np.float32))
    prepare(validate_inputs([first, second], small_tissue.cells), Config.preset("quick"))
    inputs = validate_inputs([second, first, copy], small_tissue.cells)
    with pytest.raises(InputError, match="slide 2 and slide 3 share the counts of their spots"):
        prepare(inputs, Config.preset("quick"))
