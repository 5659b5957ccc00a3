from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from spatialgears.report import ReportContent, ReportSlide, Section, expression, write_page
from spatialgears.report.expression import Expression, pack, squeeze


@pytest.mark.parametrize("share", [0.0, 0.001, 0.05, 0.3, 0.7, 1.0])
def test_codes_survive_whether_few_or_many_are_not_zero(share, unpacked):
    rng = np.random.default_rng(0)
    codes = np.where(rng.random(5000) < share, rng.integers(1, 256, 5000), 0).astype(np.uint8)
    text = squeeze(codes)
    np.testing.assert_array_equal(unpacked(text, 5000), codes)
    assert len(text) < 1.4 * (500 + 1.3 * 5000 * share + 8)


@pytest.mark.parametrize("gap", [0, 1, 254, 255, 256, 510, 1000])
def test_gaps_of_any_length_survive(gap, unpacked):
    codes = np.zeros(4000, np.uint8)
    codes[[gap, gap + 1, 2 * gap + 2]] = 7
    np.testing.assert_array_equal(unpacked(squeeze(codes), 4000), codes)


def test_columns_are_dense_when_asked_for_and_rows_left_out_have_no_value():
    values = sparse.csr_matrix([[0.0, 2.0], [3.0, 0.0]])
    whole = Expression(["a", "b"], values)
    assert list(whole) == ["a", "b"] and whole["b"].tolist() == [2, 0] and "c" not in whole
    part = Expression(["a", "b"], values, rows=np.array([1, 3]), n=4)
    np.testing.assert_array_equal(part["a"], [np.nan, 0, np.nan, 3])


def genes(n_cells: int, n_genes: int, density: float) -> Expression:
    values = sparse.random(n_cells, n_genes, density, format="csc", random_state=0)
    values.data = np.log1p(np.random.default_rng(0).gamma(2.0, size=values.nnz))
    return Expression([f"gene {i}" for i in range(n_genes)], values)


def test_two_thousand_genes_of_ten_thousand_cells_are_under_fifteen_megabytes(tmp_path):
    """The whole file, with pictures and spots."""
    rng = np.random.default_rng(0)
    slide = ReportSlide("st", rng.normal(size=(600, 2)), genes(600, 2000, 0.7))
    content = ReportContent(
        "t",
        rng.normal(size=(10_000, 2)),
        names=[f"cell_{i}" for i in range(10_000)],
        genes=genes(10_000, 2000, 0.3),
        slides=[slide],
        sections=[Section("pictures", png=bytes(2_500_000))],
    )
    text = write_page(tmp_path / "r.html", content).read_text()
    assert len(text) < 15_000_000 and "gene 1999" in text


def test_above_the_budget_values_get_coarser_and_then_the_last_genes_go(unpacked):
    table, order = genes(500, 100, 0.5), np.arange(500)
    full = pack(table, order).size
    coarser = pack(table, order, budget=int(0.9 * full))
    assert coarser.bits < 8 and len(coarser.names) == 100
    fewer = pack(table, order, budget=int(0.2 * full))
    assert fewer.bits == min(expression.BITS) and fewer.size <= 0.2 * full
    assert fewer.names == list(table)[: len(fewer.names)] and 10 < len(fewer.names) < 60
    low, step, *_ = fewer.ends[0]
    np.testing.assert_allclose(low + step * unpacked(fewer.cells[0], 500), table["gene 0"], atol=0.51 * step)
