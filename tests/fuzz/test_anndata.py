"""Malformed AnnData ends in success with finite results, or in an InputError that says what to do; nothing else."""

from __future__ import annotations

import os

import anndata as ad
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spatialgears.errors import InputError
from spatialgears.io import read, write_h5ad
from spatialgears.model import GEARS
from spatialgears.validate import validate_cells, validate_inputs

SEEDS = st.integers(0, 2**32 - 1)
FAST, SLOW = 150, int(os.environ.get("GEARS_FUZZ_CASES", "2500"))
CALM = {
    "deadline": None,
    "database": None,
    "derandomize": True,
    "suppress_health_check": list(HealthCheck),
}


@st.composite
def malformed(draw, names):
    """Which inputs are spoilt, and how."""
    how = st.lists(st.sampled_from(names), max_size=3)
    return (
        draw(how),
        draw(how),
        draw(SEEDS),
        draw(st.booleans()),
        draw(st.sampled_from([None, "counts", "raw"])),
    )


def judge(case, spoils, make_tiny, told) -> str:
    """Validate one case; how it ended."""
    _, apply = spoils
    how_slide, how_cells, seed, normalised, layer = case
    rng = np.random.default_rng(seed)
    slide = apply(how_slide, make_tiny(40, 1, places=True), rng)
    cells = apply(how_cells, make_tiny(50, 2, places=False), rng)
    if slide is None or cells is None:
        return "not made"
    try:
        valid = validate_inputs([slide], cells, layer=layer, normalised=normalised)
    except InputError as error:
        told(error)
        return "refused"
    assert valid.cells is not None
    for matrix in (*valid.slides, valid.cells):
        assert np.isfinite(matrix.data).all() and matrix.shape[1] == len(valid.genes) >= 20
        assert matrix.has_canonical_format and matrix.dtype == np.float32
    assert all(np.isfinite(xy).all() and xy.shape[1] == 2 for xy in valid.coords)
    return "accepted"


def search(spoils, make_tiny, told, cases: int, seed_of: int = 0) -> dict[str, int]:
    ends: dict[str, int] = {}

    @settings(max_examples=cases, **CALM)
    @given(case=malformed(sorted(spoils[0])))
    def examine(case):
        end = judge(case, spoils, make_tiny, told)
        ends[end] = ends.get(end, 0) + 1

    examine()
    return ends


def test_malformed_inputs_are_used_or_refused(spoils, make_tiny, told, record_property):
    ends = search(spoils, make_tiny, told, FAST)
    record_property("input cases tried", ends["accepted"] + ends["refused"])
    assert ends["accepted"] > 10 and ends["refused"] > 10


@pytest.mark.slow
def test_malformed_inputs_are_used_or_refused_many_times(spoils, make_tiny, told, record_property):
    ends = search(spoils, make_tiny, told, SLOW)
    record_property("input cases tried", ends["accepted"] + ends["refused"])
    assert ends["accepted"] + ends["refused"] >= 0.8 * SLOW


def fit_and_place(slides, cells, config, told, **options) -> str:
    """A whole run in memory; how it ended."""
    try:
        model = GEARS(config).fit(slides, cells, **options)
        placed = model.reconstruct(cells, layer=options.get("layer"))
        adata = placed.to_adata(cells, copy=True)
    except InputError as error:
        told(error)
        return "refused"
    assert np.isfinite(placed.coords).all() and placed.coords.shape == (cells.n_obs, 2)
    assert np.isfinite(placed.samples).all() and np.isfinite(adata.obsm["X_gears"]).all()
    return "accepted"


@pytest.mark.parametrize("where", ["slide", "cells"])
def test_every_category_through_a_whole_fit(
    category, where, spoils, make_tiny, told, least_config, record_property
):
    """Each kind of malformed input goes all the way, as the slide and as the cells."""
    slide, cells = make_tiny(40, 1, places=True), make_tiny(50, 2, places=False)
    spoilt = spoils[1]([category], slide if where == "slide" else cells, np.random.default_rng(len(category)))
    if spoilt is None:
        pytest.skip("anndata does not make such an object")
    slide, cells = (spoilt, cells) if where == "slide" else (slide, spoilt)
    fit_and_place([slide], cells, least_config, told, normalised=category in ("logs", "scaled"))
    record_property("input cases tried", 1)


@pytest.mark.slow
def test_random_categories_through_a_whole_fit(spoils, make_tiny, told, least_config, record_property):
    ends: dict[str, int] = {}

    @settings(max_examples=int(os.environ.get("GEARS_FUZZ_FITS", "200")), **CALM)
    @given(case=malformed(sorted(spoils[0])))
    def examine(case):
        how_slide, how_cells, seed, normalised, layer = case
        rng = np.random.default_rng(seed)
        slide = spoils[1](how_slide, make_tiny(40, 1, places=True), rng)
        cells = spoils[1](how_cells, make_tiny(50, 2, places=False), rng)
        if slide is not None and cells is not None:
            end = fit_and_place([slide], cells, least_config, told, normalised=normalised, layer=layer)
            ends[end] = ends.get(end, 0) + 1

    examine()
    record_property("input cases tried", sum(ends.values()))
    assert ends["accepted"] > 5


@pytest.mark.parametrize("backed", [False, True])
def test_every_category_through_a_file(category, backed, spoils, make_tiny, told, tmp_path, record_property):
    """Written, read (whole or left on disk) and validated."""
    cells = spoils[1]([category], make_tiny(50, 2, places=True), np.random.default_rng(7))
    path = tmp_path / "cells.h5ad"
    try:
        assert cells is not None
        cells.write_h5ad(path)
    except Exception as error:  # what cannot be written cannot be read
        pytest.skip(f"anndata does not write such an object: {type(error).__name__}")
    try:
        found = read(path, backed=backed)
        validate_inputs([make_tiny(40, 1, places=True)], found)
        write_h5ad(found, tmp_path / "again.h5ad")
    except InputError as error:
        told(error)
    record_property("input cases tried", 1)


def test_every_category_as_new_cells_of_a_model(category, spoils, make_tiny, told, record_property):
    genes, weights = np.array([f"GENE{i}" for i in range(25)]), np.ones(25, np.float32)
    for seed in range(4):
        cells = spoils[1]([category], make_tiny(50, 2, places=False), np.random.default_rng(seed))
        if cells is None:
            continue
        try:
            counts, missing, _ = validate_cells(cells, genes, weights)
            assert np.isfinite(counts.data).all() and counts.shape == (cells.n_obs, 25)
            assert not counts[:, missing].nnz
        except InputError as error:
            told(error)
        record_property("input cases tried", 1)


@pytest.mark.slow
def test_a_million_genes(make_tiny):
    from scipy import sparse

    slide, cells = make_tiny(40, 1, places=True), make_tiny(50, 2, places=False)
    wide = []
    for adata in (slide, cells):
        x = sparse.hstack(
            [adata.X, sparse.csr_matrix((adata.n_obs, 10**6 - 30), dtype=np.float32)], format="csr"
        )
        made = ad.AnnData(x, obsm=dict(adata.obsm))
        made.var_names = np.char.add("G", np.arange(10**6).astype(str))
        wide.append(made)
    valid = validate_inputs(wide[:1], wide[1])
    assert len(valid.genes) == 10**6 and valid.cells is not None and valid.cells.shape == (50, 10**6)
