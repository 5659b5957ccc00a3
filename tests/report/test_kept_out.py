from __future__ import annotations

from dataclasses import replace

import numpy as np

from spatialgears.pipeline.cell_check import not_checked
from spatialgears.report.kept_out import TITLE, kept_out


def test_three_genes_are_shown_beside_the_slide(small_result):
    check = small_result.cell_check
    [section] = kept_out(check, ["st_1", "st_2"])
    assert section.title == TITLE and section.text.startswith(check.words)
    assert section.png.startswith(b"\x89PNG") and all(gene in section.alt for gene in check.patterns.genes)
    assert f" on st_{check.patterns.slide + 1}: " in section.text
    assert section.table[0]["cells shuffled"] == f"{check.shuffled:.2f}"


def test_dollars_in_names_are_no_formula_and_flat_genes_are_drawn(small_result):
    shown = small_result.cell_check.patterns
    flat = replace(shown, genes=["a$b$", "$", "\\x"], predicted=np.zeros_like(shown.predicted))
    [section] = kept_out(replace(small_result.cell_check, patterns=flat), ["slide"])
    assert section.png


def test_without_a_check_it_says_why():
    [section] = kept_out(not_checked("5 cells are too few.", n_cells=5), ["slide"])
    assert section.text == "Not checked: 5 cells are too few." and not section.png
    assert kept_out(None, []) == []
