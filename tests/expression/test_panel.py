from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.neighbors import kneighbors_graph

from spatialgears.config import ExpressionConfig
from spatialgears.errors import InputError
from spatialgears.expression.normalise import log_normalise
from spatialgears.expression.panel import agreement_weights, build_panel, dispersion, morans_i


def _build(tiny, **values):
    return build_panel(
        tiny.slides, tiny.coords, tiny.cells, genes=tiny.genes, config=ExpressionConfig(**values)
    )


def test_morans_i_is_its_formula(tiny):
    counts, coords = tiny.slides[0], tiny.coords[0]
    z = log_normalise(counts).toarray().astype(float)
    z -= z.mean(0)
    weights = kneighbors_graph(coords, 6).toarray() / 6
    expected = (z * (weights @ z)).sum(0) / (z**2).sum(0)
    np.testing.assert_allclose(morans_i(counts, coords), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(morans_i(counts.toarray(), coords), expected, rtol=1e-4, atol=1e-5)
    given = log_normalise(counts)
    np.testing.assert_allclose(morans_i(given, coords, raw=False), expected, rtol=1e-4, atol=1e-5)


def test_morans_i_of_a_constant_gene_is_zero():
    coords = np.random.default_rng(0).uniform(size=(30, 2))
    assert morans_i(np.full((30, 2), 4.0), coords, raw=False).tolist() == [0.0, 0.0]


def test_morans_i_does_not_depend_on_the_unit_of_values(tiny):
    x = log_normalise(tiny.slides[0])
    plain, small = (morans_i(unit * x, tiny.coords[0], raw=False) for unit in (1.0, 1e-6))
    np.testing.assert_allclose(small, plain, atol=1e-6)
    assert (plain != 0).any()


def test_panel_ranks_genes_by_place_and_weights_have_mean_square_one(tiny):
    panel, columns = _build(tiny, n_genes=20)
    assert len(panel) == 20 and repr(panel).startswith(f"Panel of 20 genes: {panel.genes[0]}, ")
    assert (tiny.genes[columns] == panel.genes).all()
    assert (np.diff(panel.morans_i) <= 0).all()
    assert not {f"g{i}" for i in range(30, 40)} & set(panel.genes)
    np.testing.assert_allclose(np.mean(panel.weights**2), 1, rtol=1e-5)
    np.testing.assert_allclose(
        panel.weights[0] / panel.weights[9], np.sqrt(panel.morans_i[0] / panel.morans_i[9]), 1e-5
    )


def test_paper_panel_keeps_every_gene_at_equal_weight(tiny):
    panel, columns = _build(tiny, gene_weights="none", min_detection=0.0)
    assert sorted(columns) == list(range(40))
    assert (panel.weights == 1).all()


def test_rare_genes_leave_a_whole_transcriptome_only(tiny):
    rare = sp.csr_matrix(
        np.where(np.arange(90)[:, None] == 3, 5.0, np.zeros((90, 1100)))
    )  # in one spot alone
    slide = sp.hstack([tiny.slides[0], rare]).tocsr()
    cells = sp.hstack([tiny.cells, sp.csr_matrix((150, 1100))]).tocsr()
    genes = np.array([f"g{i}" for i in range(1140)])
    config = ExpressionConfig(gene_weights="none", n_genes=2000)
    panel, _ = build_panel([slide], tiny.coords[:1], cells, genes=genes, config=config)
    assert set(panel.genes) == {f"g{i}" for i in range(40)}


def test_no_gene_with_place_is_an_error_that_teaches(tiny):
    constant = sp.csr_matrix(np.ones((90, 5)))
    with pytest.raises(InputError, match="only 0 are detected often enough and vary in space"):
        build_panel(
            [constant], tiny.coords[:1], constant, genes=np.arange(5).astype(str), config=ExpressionConfig()
        )


def test_a_silent_variable_gene_does_not_let_an_unusable_one_in(tiny):
    cells = sp.lil_matrix(tiny.cells)
    spatial, _ = _build(tiny)
    cells[:, list(tiny.genes).index(spatial.genes[0])] = 0  # varies in space, and no cell shows it
    config = ExpressionConfig(gene_selection="variable")
    panel, _ = build_panel(tiny.slides, tiny.coords, cells.tocsr(), genes=tiny.genes, config=config)
    assert spatial.genes[0] in panel.genes and (panel.morans_i > 0).all() and np.isfinite(panel.weights).all()


def test_variable_genes_are_those_that_vary_more_than_their_mean_lets_expect(tiny, monkeypatch):
    monkeypatch.setattr("spatialgears.expression.panel.BINS", 5)
    rng = np.random.default_rng(0)
    rate = np.linspace(0.5, 5, 60)
    counts = rng.poisson(rate, (400, 60)).astype(np.float32)
    varied = np.array([7, 30, 52])
    counts[:200, varied] = 0
    counts[200:, varied] *= 2  # the same mean, but all in half of the profiles
    for x in (log_normalise(counts, 150.0), sp.csr_matrix(log_normalise(counts, 150.0))):
        assert set(np.argsort(-dispersion(x))[: len(varied)]) == set(varied)
    config = ExpressionConfig(gene_selection="variable", n_genes=10)
    panel, columns = build_panel(tiny.slides, tiny.coords, tiny.cells, genes=tiny.genes, config=config)
    assert len(columns) == 10 and (np.diff(panel.morans_i) > 0).any()


def _counts(n: int, *, seed: int, loadings: np.ndarray) -> sp.csr_matrix:
    """Profiles of genes driven by programmes (k, g)."""
    rng = np.random.default_rng(seed)
    rates = np.exp(0.7 * rng.standard_normal((n, len(loadings))) @ loadings)
    return sp.csr_matrix(rng.poisson(2000 * rates / rates.sum(1, keepdims=True)).astype(np.float32))


def test_genes_count_alike_where_slides_and_cells_are_alike():
    loadings = np.random.default_rng(0).standard_normal((3, 40))
    slides, cells = (
        [_counts(300, seed=s, loadings=loadings) for s in (1, 2)],
        _counts(400, seed=3, loadings=loadings),
    )
    assert (agreement_weights(slides, cells) == 1).all()
    assert (agreement_weights([x.toarray() for x in slides], cells.toarray()) == 1).all()


def test_genes_that_go_another_way_in_unlike_cells_count_less():
    loadings = np.random.default_rng(0).standard_normal((3, 40))
    other = loadings.copy()
    other[:, :25] = np.random.default_rng(1).standard_normal((3, 25))
    slides, cells = (
        [_counts(300, seed=s, loadings=loadings) for s in (1, 2)],
        _counts(400, seed=3, loadings=other),
    )
    weights = agreement_weights(slides, cells)
    assert weights.shape == (40,) and weights.min() > 0 and weights.max() <= 1
    assert np.median(weights[:25]) < 0.6 * np.median(weights[25:])


def test_genes_are_trusted_by_how_unlike_slides_and_cells_are(monkeypatch):
    """Halfway from alike to unlike, genes count by the root of how alike they go together."""
    loadings = np.random.default_rng(0).standard_normal((3, 40))
    other = np.concatenate([np.random.default_rng(1).standard_normal((3, 25)), loadings[:, 25:]], axis=1)
    slides, cells = [_counts(300, seed=1, loadings=loadings)], _counts(400, seed=3, loadings=other)
    found = {}
    for name, (alike, unlike) in {"whole": (3.0, 2.9), "half": (2.0, -1.0)}.items():
        monkeypatch.setattr("spatialgears.expression.panel.ALIKE", alike)
        monkeypatch.setattr("spatialgears.expression.panel.UNLIKE", unlike)
        found[name] = agreement_weights(slides, cells)
    exponent = np.log(found["half"]) / np.log(found["whole"])
    assert 0.3 < exponent[0] < 0.7 and np.allclose(exponent, exponent[0])


def test_agreement_weighs_the_panel_if_asked(tiny):
    strange = tiny.cells[:, np.random.default_rng(0).permutation(tiny.cells.shape[1])]
    given = {"genes": tiny.genes, "slides": tiny.slides, "coords": tiny.coords, "cells": strange}
    (on, columns), (off, same) = (
        build_panel(**given, config=ExpressionConfig(gene_agreement=asked)) for asked in (True, False)
    )
    assert (columns == same).all() and not np.allclose(on.weights, off.weights)
    assert np.mean(on.weights**2) == pytest.approx(1, rel=1e-5)
