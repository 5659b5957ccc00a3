"""One small tissue and one model fitted on it, shared by all tests of the product."""

from __future__ import annotations

import pytest

SMALL = {
    "threads": 1,
    "expression": {"max_steps": 10},
    "supervision": {"n_min": 16, "n_max": 32},
    "geometry": {
        "steps": 15,
        "crossfit": 4,
        "slide_steps": 5,
        "refiner_steps": 4,
        "width": 16,
        "inducing": 4,
        "hidden": 16,
        "context_blocks": 1,
        "generator_blocks": 1,
        "denoiser_blocks": 1,
        "reference": 32,
        "eval_every": 5,
    },
    "assembly": {"steps": 2, "samples": 2, "spacing_cells": 100},
}


@pytest.fixture(scope="session")
def small_config():
    from spatialgears.config import Config

    return Config.from_dict(SMALL)


@pytest.fixture(scope="session")
def small_tissue():
    """Two sections of about 80 spots and 150 cells; tests must leave it as it is."""
    from spatialgears.datasets import simulate_tissue

    return simulate_tissue(n_cells=150, n_genes=60, spots=80)


@pytest.fixture(scope="session")
def small_model(small_config, small_tissue):
    from spatialgears.model import GEARS

    return GEARS(small_config).fit(small_tissue.slides, small_tissue.cells)


@pytest.fixture(scope="session")
def small_result(small_model, small_tissue):
    return small_model.reconstruct(small_tissue.cells)


@pytest.fixture(scope="session")
def small_files(small_tissue, tmp_path_factory):
    """The tissue as files: st_1.h5ad, st_2.h5ad, sc.h5ad."""
    folder = tmp_path_factory.mktemp("tissue")
    for name, adata in zip(("st_1", "st_2", "sc"), [*small_tissue.slides, small_tissue.cells], strict=True):
        adata.write_h5ad(folder / f"{name}.h5ad")
    return folder
