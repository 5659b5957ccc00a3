from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from spatialgears.expression.normalise import STD_FLOOR, Standardiser, dense, log_normalise


def test_log_normalise_is_the_same_for_every_container_and_leaves_input_alone():
    counts = np.array([[1, 3, 0], [0, 0, 0], [5, 5, 10]], dtype=np.int64)
    sparse = sp.csr_matrix(counts)
    expected = np.log1p(counts / np.maximum(counts.sum(1, keepdims=True), 1) * 1e4)
    for given in (counts, sparse, sp.csr_array(counts)):
        np.testing.assert_allclose(dense(log_normalise(given)), expected, rtol=1e-6)
    assert sparse.dtype == np.int64 and (sparse.toarray() == counts).all()
    assert sp.issparse(log_normalise(sparse))


@pytest.mark.parametrize("kind", ["dense", "sparse", "views"])
def test_standardiser_gives_zero_mean_and_unit_variance(kind):
    rng = np.random.default_rng(1)
    x = rng.poisson(2.0, (400, 5)).astype(np.float32) * np.arange(1, 6, dtype=np.float32)
    given = {"dense": x, "sparse": sp.csr_matrix(x), "views": torch.from_numpy(x).view(4, 100, 5)}[kind]
    z = Standardiser.fit(given)(torch.from_numpy(x))
    torch.testing.assert_close(z.mean(0), torch.zeros(5), atol=1e-5, rtol=0)
    torch.testing.assert_close(z.std(0, correction=0), torch.ones(5), atol=0.01, rtol=0)


def test_silent_gene_is_not_blown_up():
    x = torch.zeros(50, 2)
    x[:, 1] = 3.0
    standardiser = Standardiser.fit(x)
    assert torch.equal(standardiser.std, torch.full((2,), STD_FLOOR))
    assert torch.equal(standardiser(x), torch.zeros(50, 2))


def test_values_of_any_unit_are_standardised():
    """Shares of a library are a ten-thousandth of counts in ten thousand."""
    x = torch.rand(300, 6, generator=torch.Generator().manual_seed(0))
    for unit in (1e-4, 1.0, 1e4):
        z = Standardiser.fit(unit * x, raw=False)(unit * x)
        assert (z.std(0) > 0.85).all(), unit
    assert (Standardiser.fit(1e-4 * x)(1e-4 * x).std(0) < 0.01).all()  # of counts this is a silent gene


def test_identity_changes_nothing():
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Standardiser.identity(4)(x), x)
