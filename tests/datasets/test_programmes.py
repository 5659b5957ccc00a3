from __future__ import annotations

import numpy as np
import pytest

from spatialgears.datasets.anatomy import CELL_TYPES, DOMAINS, FIELDS
from spatialgears.datasets.programmes import PROGRAMMES, STATES, Genes, count, draw_states


@pytest.fixture(scope="module")
def genes() -> Genes:
    return Genes.draw(np.random.default_rng(0), 200, dispersion=0.3)


def test_every_programme_has_its_share_of_genes(genes):
    for name, share in PROGRAMMES.items():
        assert (genes.programme == name).sum() == pytest.approx(200 * share, abs=1)
    assert genes.by_field[:, genes.programme == "housekeeping"].any() is np.False_
    assert (genes.by_field[:5] != 0).any(1).all()  # each axis has genes


def test_a_gradient_gene_follows_its_field(genes):
    n, field = 50, np.linspace(-2, 2, 50)
    fields = np.zeros((n, len(FIELDS)))
    fields[:, 0] = field
    loading = genes.by_field[0]
    gene = int(np.argmax(np.where(genes.programme == "gradient", loading, -1)))
    flat = int(np.flatnonzero(genes.programme == "housekeeping")[0])
    mean = genes.means(np.full(n, 1), np.zeros((n, len(DOMAINS))), fields, np.zeros((n, len(STATES))))
    slope = np.polyfit(field, np.log(mean[:, gene] / mean[:, flat]), 1)[0]
    assert slope == pytest.approx(loading[gene], rel=1e-3)
    np.testing.assert_allclose(mean.sum(1), 1, rtol=1e-5)  # one unit of RNA in a cell of this type


def test_wandering_cells_hardly_follow_gradients(genes):
    ends = np.zeros((2, len(FIELDS)))
    ends[:, 0] = [-1, 1]
    none, states = np.zeros((2, len(DOMAINS))), np.zeros((2, len(STATES)))

    def change(cell_type):
        mean = genes.means(np.full(2, list(CELL_TYPES).index(cell_type)), none, ends, states)
        share = np.log(mean / mean.sum(1, keepdims=True))
        return np.abs(share[1] - share[0]).mean()

    assert change("T cell") < 0.3 * change("parenchyma A")


def test_counts_are_negative_binomial():
    counts = count(np.random.default_rng(1), np.full((40_000, 1), 5.0), dispersion=0.4).toarray()
    assert counts.mean() == pytest.approx(5, rel=0.03)
    assert counts.var() == pytest.approx(5 + 0.4 * 25, rel=0.06)


def test_without_dispersion_counts_are_poisson():
    counts = count(np.random.default_rng(2), np.full((40_000, 1), 3.0), dispersion=0.0).toarray()
    assert counts.var() == pytest.approx(3, rel=0.05)


def test_dropout_spares_what_is_strongly_expressed():
    mean = np.tile([0.5, 60.0], (20_000, 1))
    lost, kept = (
        count(np.random.default_rng(3), mean, dispersion=0.1, dropout=share).toarray().mean(0)
        for share in (0.5, 0.0)
    )
    np.testing.assert_allclose(lost / kept, [1 - 0.5 * np.exp(-0.125), 1], rtol=0.08)


def test_a_shift_of_zero_changes_nothing_and_a_larger_one_more(genes):
    same = genes.shifted(np.random.default_rng(4), 0.0)
    np.testing.assert_array_equal(same.base, genes.base)
    np.testing.assert_array_equal(same.by_field, genes.by_field)
    one, two = (genes.shifted(np.random.default_rng(4), shift) for shift in (1.0, 2.0))
    np.testing.assert_allclose(two.base - genes.base, 2 * (one.base - genes.base))


def test_states_have_the_stress_asked_for():
    states = draw_states(np.random.default_rng(5), 5000, stress=0.8)
    assert states.shape == (5000, len(STATES)) and states[:, 2].mean() == pytest.approx(0.8, abs=0.03)
    assert (states[:, 0] * states[:, 1] == 0).all()  # a cell is in one phase
