from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

import spatialgears as sg
from spatialgears.errors import InputError
from spatialgears.plotting import palette


def legend_names(ax) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_agreement_of_morans_i(adata):
    table = pd.DataFrame(
        {"reconstruction": [0.1, 0.4, 0.2, 0.395], "slide": [0.2, 0.8, 0.3, 0.79]}, index=list("abcd")
    )
    adata.uns["gears_moran"] = {"table": table, "agreement": 1.0}
    ax = sg.pl.moran_agreement(adata)
    np.testing.assert_allclose(ax.collections[0].get_offsets(), table[["slide", "reconstruction"]])
    assert [text.get_text() for text in ax.texts] == ["b", "c", "a", "Spearman 1.00"]  # d would lie on b
    del table["slide"]
    with pytest.raises(InputError, match="no slide to compare"):
        sg.pl.moran_agreement(adata)


def test_neighbours_as_a_matrix_with_the_significant_marked(adata):
    types = {"type": ["a", "a", "b", "b"], "neighbours": ["a", "b", "a", "b"]}
    found = {"log2_ratio": [1.0, -2.0, -3.0, 1.0], "pvalue_adj": [0.01, 1, 1, 1]}
    adata.uns["gears_neighbors"] = {"table": pd.DataFrame(types | found)}
    ax = sg.pl.neighbors_by_type(adata)
    np.testing.assert_allclose(ax.images[0].get_array(), [[1.0, -2.0], [-3.0, 1.0]])
    np.testing.assert_allclose(ax.collections[0].get_offsets(), [[0, 0]])


def test_mixing_before_and_after():
    scores = {"neighbour_entropy_balanced": [0.1, 0.9], "ilisi_balanced": [0.0, 0.8], "probe": [1.0, 0.5]}
    index = pd.MultiIndex.from_tuples([("before", "slide"), ("after", "slide")], names=["basis", "by"])
    ax = sg.pl.mixing(pd.DataFrame(scores, index))
    np.testing.assert_allclose(ax.collections[0].get_offsets(), [[0.1, 0], [0.9, 0]])
    assert legend_names(ax) == ["before", "after"]
    drawn = {to_hex(color) for color in ax.collections[0].get_facecolors()}
    assert not drawn & {color.lower() for color in palette.CATEGORICAL[:2]}  # those mean spots and cells


def test_what_was_not_run_is_said(adata):
    with pytest.raises(InputError, match=r"sg\.tl\.neighbors_by_type"):
        sg.pl.neighbors_by_type(adata)
