from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from spatialgears.pipeline.noise import FEWEST, WARNING, is_noise
from spatialgears.report.verdict import verdict

KINDS = ("shuffled", "uniform", "one profile")


def noise(cells, kind, *, seed=0):
    """The same number of cells of the same genes, without co-expression."""
    rng, counts = np.random.default_rng(seed), cells.X.toarray().astype(float)
    if kind == "shuffled":
        values = rng.permuted(counts, axis=0)
    elif kind == "uniform":
        values = rng.poisson(counts.mean(), counts.shape)
    else:  # of very different depths
        depth = np.exp(rng.normal(size=len(counts))) * counts.sum(1).mean()
        values = rng.poisson(np.outer(depth, counts.mean(0) / counts.sum(1).mean()))
    found = cells.copy()
    found.X = sparse.csr_matrix(values.astype(np.float32))
    return found


@pytest.mark.parametrize("n_cells", [30, 99])
@pytest.mark.parametrize("kind", [*KINDS, "cells"])
def test_noise_is_told_from_few_cells(small_model, small_tissue, kind, n_cells):
    cells = small_tissue.cells[:n_cells].copy()
    result = small_model.reconstruct(cells if kind == "cells" else noise(cells, kind))
    level, _ = verdict(result.cell_check, small_model.fitted_.checks, result.outside)
    assert any("The cells were not checked: " in text for text in result.warnings)
    if kind == "cells":
        assert result.outside.mean() < 0.5 and WARNING not in result.warnings and level == "fair"
    else:
        assert result.outside.all() and WARNING in result.warnings and level == "none"
        assert not any("Strong domain shift" in text for text in result.warnings)


def test_a_model_fitted_with_noise_says_so(small_config, small_tissue):
    from spatialgears.model import GEARS

    cells = noise(small_tissue.cells[:30].copy(), "uniform")
    config = small_config.with_values(["geometry.slide_steps=0", "assembly.samples=0"])
    result = GEARS(config).fit(small_tissue.slides, cells).reconstruct(cells)
    assert result.outside.all() and WARNING in result.warnings


def test_too_few_are_not_judged(small_model, small_tissue):
    counts = sparse.csr_matrix(small_tissue.cells[:, list(small_model.panel_.genes)].X).astype(np.float32)
    missing = np.zeros(counts.shape[1], dtype=bool)
    assert not is_noise(small_model.fitted_, counts[: FEWEST - 1], small_model.config, missing=missing)
