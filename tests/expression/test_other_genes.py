"""Genes that only the cells have: they bring a noisy panel nearer to its truth, and nothing else decides what they say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse

from spatialgears.expression.other_genes import FEWEST, MOST, OtherGenes


def drawn(n_cells=400, n_genes=700, told=200, seed=0):
    """True panel expression, a noisy measurement, and counts of other genes; ``told`` of them follow the same programmes."""
    rng = np.random.default_rng(seed)
    programmes = rng.normal(size=(n_cells, 4))
    truth = programmes @ rng.normal(size=(4, 30))
    rates = rng.normal(size=(4, n_genes)) * (np.arange(n_genes) < told)
    counts = rng.poisson(2 * np.exp(0.5 * programmes @ rates))
    names = np.array([f"g{i:04d}" for i in range(n_genes)])
    noisy = truth + 2 * rng.normal(size=truth.shape)
    return torch.from_numpy(truth).float(), torch.from_numpy(noisy).float(), sparse.csr_matrix(counts), names


def error(x, truth):
    return float((x - truth).square().mean())


def test_a_noisy_panel_comes_nearer_to_its_truth():
    truth, noisy, counts, names = drawn()
    model = OtherGenes.fit(counts, names, noisy, 0.5)
    chosen = np.searchsorted(names, model.genes)
    none = np.zeros(len(chosen), dtype=bool)
    moved = model(noisy, counts[:, chosen], none)
    assert error(moved, truth) < 0.5 * error(noisy, truth)
    assert (
        len(model.genes) == MOST and (chosen < 200).sum() == 200
    )  # those that follow the panel are among them
    shuffled = np.random.default_rng(1).permutation(counts.shape[0])
    assert error(model(noisy, counts[shuffled][:, chosen], none), truth) > 2 * error(moved, truth)
    torch.testing.assert_close(model(noisy[5:9], counts[5:9, chosen], none), moved[5:9])


def test_new_cells_of_the_same_kind_gain_as_much():
    truth, noisy, counts, names = drawn(n_cells=800)
    model = OtherGenes.fit(counts[:400], names, noisy[:400], 0.5)
    chosen = np.searchsorted(names, model.genes)
    none = np.zeros(len(chosen), dtype=bool)
    seen, new = (
        error(model(noisy[one], counts[one][:, chosen], none), truth[one])
        for one in (slice(400), slice(400, 800))
    )
    assert new == pytest.approx(seen, rel=0.3) and new < 0.6 * error(noisy[400:], truth[400:])


def test_without_a_share_nothing_moves_and_missing_genes_are_average():
    truth, noisy, counts, names = drawn()
    model = OtherGenes.fit(counts, names, noisy, 0.0)
    chosen = np.searchsorted(names, model.genes)
    assert torch.equal(model(noisy, counts[:, chosen], np.zeros(len(chosen), dtype=bool)), noisy)
    half = OtherGenes.fit(counts, names, noisy, 0.5)
    some = np.arange(len(chosen)) < 250
    lacking = counts[:, chosen].tolil()
    lacking[:, some] = 0
    without = half(noisy, lacking.tocsr(), some)
    assert error(without, truth) < 0.7 * error(noisy, truth)  # the other half of the genes still helps
    assert 0.2 < half.present(some) < 0.8 and half.present(~some) + half.present(some) == pytest.approx(1)
    empty = sparse.csr_matrix((len(noisy), len(chosen)), dtype=np.float32)
    assert torch.equal(half(noisy, empty, ~some), noisy)  # nothing is known of such cells


def test_too_few_other_genes_are_not_used():
    _, noisy, counts, names = drawn()
    assert OtherGenes.fit(counts[:, : FEWEST - 1], names[: FEWEST - 1], noisy, 0.5) is None
    assert OtherGenes.fit(counts[:20], names, noisy[:20], 0.5) is None


def test_they_come_back_from_their_tensors():
    _, noisy, counts, names = drawn()
    model = OtherGenes.fit(counts, names, noisy, 0.5)
    again = OtherGenes.from_tensors(model.tensors(), model.genes.tolist(), model.target, model.share)
    chosen, none = np.searchsorted(names, model.genes), np.zeros(len(model.genes), dtype=bool)
    assert torch.equal(again(noisy, counts[:, chosen], none), model(noisy, counts[:, chosen], none))
