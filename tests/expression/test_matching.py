from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from spatialgears.expression.matching import DEPTH, matched_counts, rate_moments


@pytest.fixture
def cells(rng):
    """Gamma rates, Poisson counts; the last gene is silent."""
    shape = np.array([0.5, 2.0, 8.0, 1.0])
    rates = rng.gamma(shape, np.array([0.2, 0.3, 0.25, 0.25]) / shape, size=(20_000, 4))
    depth = rng.lognormal(5, 0.5, size=(20_000, 1))
    counts = rng.poisson(depth * rates / 1.0)
    return sparse.csr_matrix(np.column_stack([counts, np.zeros(20_000)]).astype(np.float32))


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_moments_are_those_of_the_rates(rng):
    depth = rng.lognormal(6, 0.5, size=(50_000, 1))
    spread, mean = np.array([1.0, 0.5, 0.4]), np.array([0.01, 0.02, 0.03])
    rates = rng.gamma(1 / spread**2, mean * spread**2, size=(50_000, 3))
    counts = rng.poisson(depth * rates)
    other = np.maximum(depth - counts.sum(1, keepdims=True), 0).round()  # the rest of each cell
    found, variance = rate_moments(sparse.csr_matrix(np.column_stack([counts, other])))
    np.testing.assert_allclose(found[:3], mean, rtol=0.03)
    np.testing.assert_allclose(np.sqrt(variance[:3]) / mean, spread, rtol=0.06)


def test_order_is_kept_and_ties_stay_ties(cells, rng):
    values = rng.normal(size=(300, 5))
    values[:50, 1] = values[:, 1].min() - 1
    counts = matched_counts(values, cells).toarray()
    for gene in range(4):
        ordered = counts[np.argsort(values[:, gene]), gene]
        assert (np.diff(ordered) >= 0).all() and ordered[-1] > ordered[0]
    assert len(np.unique(counts[:50, 1])) == 1
    assert not counts[:, 4].any()


def test_rates_are_distributed_as_those_of_the_cells(cells, rng):
    counts = matched_counts(rng.normal(size=(2000, 5)), cells).toarray()
    depth = DEPTH * np.median(np.asarray(cells.sum(1)))
    mean, variance = rate_moments(cells)
    np.testing.assert_allclose((counts / depth).mean(0)[:4], mean[:4], rtol=0.03)
    np.testing.assert_allclose((counts / depth).std(0)[:4], np.sqrt(variance[:4]), rtol=0.08)
    assert (counts == np.rint(counts)).all() and counts.dtype == np.float32


def test_any_monotone_change_of_the_values_gives_the_same_counts(cells, rng):
    values = rng.normal(size=(100, 5))
    first, second = matched_counts(values, cells), matched_counts(np.exp(values), cells)
    assert (first != second).nnz == 0
    assert (matched_counts(sparse.csr_matrix(values), cells) != first).nnz == 0


def test_cells_without_counts_give_none():
    empty = sparse.csr_matrix((5, 3), dtype=np.float32)
    mean, variance = rate_moments(empty)
    assert not mean.any() and not variance.any()
