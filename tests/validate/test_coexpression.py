from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from spatialgears.validate.coexpression import agreement, agreement_by_gene, best_detected, standardised


def programmes(n: int, *, seed: int, loadings: np.ndarray, noise: float = 1.0) -> np.ndarray:
    """Standardised profiles (n, g) of genes driven by a few programmes (k, g), and noise."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, len(loadings))) @ loadings + noise * rng.standard_normal(
        (n, loadings.shape[1])
    )
    return (x - x.mean(0)) / x.std(0)


@pytest.fixture
def loadings() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((4, 40))


def test_profiles_of_one_kind_agree_whatever_their_noise(loadings):
    for noise, n in ((1.0, 2000), (4.0, 300)):
        a, b = (programmes(n, seed=seed, loadings=loadings, noise=noise) for seed in (1, 2))
        assert agreement(a, b) == pytest.approx(1, abs=0.08)


def test_other_programmes_do_not_agree(loadings):
    a = programmes(2000, seed=1, loadings=loadings)
    b = programmes(2000, seed=2, loadings=loadings[:, ::-1])
    assert abs(agreement(a, b)) < 0.15


def test_noise_and_next_to_nothing_have_no_agreement(loadings):
    a = programmes(500, seed=1, loadings=loadings)
    assert agreement(a, programmes(500, seed=2, loadings=0 * loadings)) is None
    assert agreement(a[:, :9], a[:, :9]) is None and agreement(a[:3], a) is None
    assert agreement(0 * a, a) is None and agreement(a[:, :1], a[:, :1]) is None


def test_genes_that_go_another_way_are_found(loadings):
    other = loadings.copy()
    other[:, :10] = np.random.default_rng(5).standard_normal((4, 10))
    a, b = (programmes(2000, seed=seed, loadings=one) for seed, one in ((1, loadings), (2, other)))
    by_gene = agreement_by_gene(a, b)
    assert by_gene.shape == (40,) and np.median(by_gene[:10]) < 0.4 < 0.6 < np.median(by_gene[10:])


def test_profiles_are_scaled_to_one_depth_and_standardised():
    rates = np.random.default_rng(0).gamma(2.0, size=(200, 12))
    depth = np.repeat([1.0, 20.0], 100)[:, None]
    counts = sparse.csr_matrix(np.round(50 * rates * depth))
    genes = np.arange(12)
    plain, scaled = (standardised(counts, genes, scale=scale, log=True) for scale in (False, True))
    np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(scaled.std(0), 1)
    assert np.abs(plain[:100].mean(0)).min() > 0.7 and np.abs(scaled[:100].mean(0)).max() < 0.3


def test_an_empty_profile_and_a_silent_gene_are_harmless():
    counts = sparse.csr_matrix(np.array([[0, 0, 0], [3, 1, 0], [1, 5, 0]]))
    assert np.isfinite(standardised(counts, np.arange(3), scale=True, log=True)).all()


def test_the_best_detected_genes_are_seen_in_both():
    slides = [sparse.csr_matrix(np.array([[1, 1, 0, 2], [1, 1, 0, 0], [1, 1, 0, 1]]))]
    cells = sparse.csr_matrix(np.array([[1, 0, 3, 1], [1, 0, 3, 1], [1, 1, 3, 0]]))
    assert best_detected(slides, cells).tolist() == [0, 3]  # seen at least twice in both
    assert best_detected(slides, cells, most=1).tolist() == [0]
