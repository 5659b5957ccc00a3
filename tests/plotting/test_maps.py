from __future__ import annotations

import inspect
from io import BytesIO

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba

import spatialgears as sg
from spatialgears.errors import InputError
from spatialgears.plotting import palette


def all_points(ax: Axes) -> np.ndarray:
    return np.concatenate([np.asarray(part.get_offsets()) for part in ax.collections])


def legend_names(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


@pytest.mark.parametrize(
    ("n", "color"),
    [
        *((n, color) for n in (3, 300) for color in (None, "cell_type", "Sox2", "uncertainty", "domain")),
        (300_000, "cell_type"),
        (300_000, "Sox2"),
    ],
)
def test_every_cell_is_drawn_at_its_place_whatever_their_number(make_adata, n, color):
    adata = make_adata(n)
    ax = sg.pl.reconstruction(adata, color=color)
    drawn = all_points(ax)
    assert len(drawn) == n
    np.testing.assert_allclose(np.sort(drawn[:, 0]), np.sort(adata.obsm["X_gears"][:, 0]))
    assert ax.get_aspect() == 1
    assert "RMS radius of the slide" in ax.get_xlabel() and "RMS radius of the slide" in ax.get_ylabel()
    assert all(part.get_rasterized() for part in ax.collections) == (n >= 1000)


def test_places_of_a_slide_are_in_its_own_units(make_adata):
    adata = make_adata(30)
    for basis in ("spatial", "X_gears_slide"):
        adata.obsm[basis] = 100 * adata.obsm["X_gears"]
        assert sg.pl.reconstruction(adata, basis=basis).get_xlabel() == "x (units of the slide)"


def test_a_list_of_colours_gives_a_panel_each(make_adata):
    adata = make_adata(30)
    axes = sg.pl.reconstruction(adata, color=["cell_type", "Sox2", "uncertainty"])
    assert [ax.get_title() for ax in axes] == ["cell_type", "Sox2", "uncertainty"]
    assert all(len(all_points(ax)) == 30 for ax in axes) and len({ax.figure for ax in axes}) == 1
    with pytest.raises(InputError, match="One Axes was given for 2 colours"):
        sg.pl.reconstruction(adata, color=["cell_type", "Sox2"], ax=axes[0])
    labels = ["a", "b", "c"] * 10
    assert legend_names(sg.pl.reconstruction(adata, color=labels)) == ["a", "b", "c"]  # one label per cell
    with pytest.raises(InputError, match="is called 'Sux2'"):
        sg.pl.reconstruction(adata, color=["cell_type", "Sux2"])


@pytest.mark.parametrize("color", [None, "cell_type", "Sox2", "long"])
def test_new_figures_fit_the_columns_of_a_journal(make_adata, color):
    adata = make_adata(300)
    adata.obs["long"] = [f"a cell type with a long name {i % 30}" for i in range(300)]
    figure = sg.pl.reconstruction(adata, color=color).figure
    width, height = figure.get_size_inches()
    assert width == pytest.approx(3.5) if color in (None, "Sox2") else 3.49 < width <= 7.2
    assert 2 < height < 7 and figure.dpi == 300
    figure.canvas.draw()
    sizes = [text.get_fontsize() for ax in figure.axes for text in ax.get_xticklabels()]
    assert min(sizes) >= 6 and max(sizes) <= 8
    assert plt.rcParams["font.size"] == 10  # other figures are as they were
    _, ax = plt.subplots()
    sg.pl.reconstruction(adata, color=color, ax=ax)
    assert ax.get_xticklabels()[0].get_fontsize() == 10


def test_points_shrink_as_cells_grow(make_adata):
    sizes = [sg.pl.reconstruction(make_adata(n)).collections[0].get_sizes()[0] for n in (3, 300, 30_000)]
    assert sizes[0] > sizes[1] > 10 * sizes[2]


def test_given_axes_are_used_and_data_left_alone(adata):
    before = adata.copy()
    figure, ax = plt.subplots()
    assert sg.pl.reconstruction(adata, color="cell_type", ax=ax) is ax
    assert plt.get_fignums() == [figure.number]
    assert not adata.uns
    assert adata.obs.equals(before.obs) and (adata.X != before.X).nnz == 0


def test_vector_files_stay_small(make_adata):
    out = BytesIO()
    sg.pl.reconstruction(make_adata(20_000), color="depth").figure.savefig(out, format="pdf", dpi=80)
    assert len(out.getvalue()) < 300_000


def test_high_values_lie_on_top_and_gaps_are_grey_below(adata):
    adata.obs.loc[adata.obs_names[:10], "depth"] = np.nan
    below, above = sg.pl.reconstruction(adata, color="depth").collections[:2]
    assert len(below.get_offsets()) == 10
    np.testing.assert_allclose(below.get_facecolor(), [to_rgba(palette.MISSING)])
    assert (np.diff(above.get_array()) >= 0).all() and len(above.get_array()) == 290


def test_all_missing_and_constant_values_draw(adata):
    adata.obs["gap"], adata.obs["one"] = np.nan, 1.0
    assert legend_names(sg.pl.reconstruction(adata, color="gap")) == ["missing"]
    assert len(all_points(sg.pl.reconstruction(adata, color="one"))) == 300


def test_colour_bar_says_what_and_in_which_unit(adata):
    ax = sg.pl.reconstruction(adata, color="uncertainty")
    label = ax.figure.axes[-1].get_ylabel().replace("\n", " ")
    assert "90% radius" in label and "RMS radius of the slide" in label


@pytest.mark.parametrize("flat", [1, 0.1])
def test_legend_of_forty_types_fits_in_the_figure(adata, flat):
    adata.obs["subtype"] = [f"a long name of subtype number {i % 40:02d}" for i in range(300)]
    adata.obs.loc[adata.obs_names[0], "subtype"] = None
    adata.obsm["X_gears"][:, 1] *= flat
    ax = sg.pl.reconstruction(adata, color="subtype")
    ax.figure.canvas.draw()
    assert len(legend_names(ax)) == 41 and legend_names(ax)[-1] == "missing"
    legend, page = ax.get_legend().get_window_extent(), ax.figure.bbox
    assert legend.x1 <= page.x1 and legend.y0 >= page.y0 and legend.y1 <= page.y1
    assert ax.get_window_extent().x1 <= legend.x0


def test_one_unit_is_as_long_on_both_axes_even_where_axes_are_shared(adata):
    _, axes = plt.subplots(1, 2, sharex=True, sharey=True, figsize=(7, 3))
    for ax in [*(sg.pl.reconstruction(adata, ax=ax) for ax in axes), sg.pl.reconstruction(adata)]:
        ax.figure.canvas.draw()
        origin, x, y = ax.transData.transform([[0, 0], [1, 0], [0, 1]])
        assert x[0] - origin[0] == pytest.approx(y[1] - origin[1])


def test_names_from_data_are_text_and_long_ones_are_cut(adata):
    names = ["$\\frac{1$", "_hidden", "x" * 80]
    adata.obs["odd"] = [names[i % 3] for i in range(300)]
    ax = sg.pl.reconstruction(adata, color="odd", title="$\\frac{1$")
    ax.figure.canvas.draw()
    assert set(legend_names(ax)) == {"$\\frac{1$", "_hidden", "x" * 31 + "…"}


def test_no_label_hides_another(adata):
    adata = adata[np.argsort(adata.obs["cell_type"])].copy()
    colors = sg.pl.reconstruction(adata, color="cell_type").collections[1].get_facecolor()
    changes = (np.diff(colors, axis=0) != 0).any(axis=1).sum()
    assert changes > 100  # in the order of the file there would be two


def test_truth_beside_a_turned_prediction_is_the_same_picture_moved():
    truth = np.random.default_rng(0).normal(size=(50, 2)) * [3, 1] + 100
    ax = sg.pl.truth_vs_prediction(0.01 * truth @ np.array([[0, 1], [1, 0]]), truth)
    drawn, values = np.asarray(ax.collections[1].get_offsets()), ax.collections[1].get_array()
    left, right = (
        drawn[0::2],
        drawn[1::2],
    )  # equal values, so a stable order puts each cell's two places together
    np.testing.assert_allclose(values[0::2], values[1::2])
    shift = right - left
    np.testing.assert_allclose(shift, np.broadcast_to(shift[0], shift.shape), atol=1e-9)
    assert shift[0, 0] > np.ptp(left[:, 0]) and abs(shift[0, 1]) < 1e-9
    assert [text.get_text() for text in ax.texts] == ["truth", "prediction", "RMS radius of the truth"]


def test_truth_vs_prediction_takes_the_colours_of_the_cells(adata):
    ax = sg.pl.truth_vs_prediction(adata, adata.obsm["X_gears"], color="cell_type")
    assert legend_names(ax) == ["glia", "neuron", "vessel"]
    assert len(all_points(ax)) == 600


def test_embedding_before_and_after():
    rng = np.random.default_rng(0)
    labels = np.repeat(["cells", "slide A"], 40)
    before = rng.normal(size=(80, 6)) + 5 * (labels == "cells")[:, None]
    ax = sg.pl.embedding_before_after(before, rng.normal(size=(80, 3)), labels)
    assert len(all_points(ax)) == 160
    assert legend_names(ax) == ["cells", "slide A"]
    with pytest.raises(InputError, match="80 profiles before, 79 after"):
        sg.pl.embedding_before_after(before, before[:79], labels)
    with pytest.raises(InputError, match=r"\(80,\)"):
        sg.pl.embedding_before_after(before[:, 0], before, labels)


@pytest.mark.parametrize("name", sg.pl.__all__)
def test_figures_take_axes_and_options_by_keyword(name):
    parameters = inspect.signature(getattr(sg.pl, name)).parameters.values()
    positional = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    assert len(positional) <= 3
    assert next(p for p in parameters if p.name == "ax").kind is inspect.Parameter.KEYWORD_ONLY
