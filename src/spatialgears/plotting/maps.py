"""Maps: the reconstruction, the truth next to it, the embedding before and after alignment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from spatialgears import metrics
from spatialgears.errors import InputError
from spatialgears.plotting import canvas, palette
from spatialgears.plotting.values import (
    SLIDE_UNIT,
    UNIT,
    are_names,
    color_values,
    coordinates,
    pair,
    turned_onto,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ABOVE_NAMES = 22  # points between two panels and their title, which leave room for the panels' names


@canvas.for_paper
def reconstruction(
    data: Any,
    *,
    color: Any = None,
    basis: str = "X_gears",
    layer: str | None = None,
    size: float | None = None,
    cmap: str = palette.CONTINUOUS,
    legend: bool = True,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes | list[Axes]:
    """Draw every cell at its predicted position.

    Parameters
    ----------
    data
        AnnData with ``obsm[basis]``, a Reconstruction, or an (n, 2) array.
    color
        An obs column (such as a cell type), a gene, "uncertainty", "domain", or one value per cell. A list of such names
        gives one panel each.
    basis
        Key of the coordinates in ``obsm``.
    layer
        Where a gene's values are read; default ``X``. They are drawn as they are.
    size
        Marker area in square points; default: adapted to the number of cells.
    cmap
        Colour map for numbers. They are drawn in order, so that high values are not hidden.
    legend
        Whether to list the labels beside the map.
    title
        Title of the axes.
    ax
        Axes to draw on; default: a new figure.

    Returns
    -------
    Axes or list of Axes
        With equal aspect and both axes in units of the RMS radius of the slide, or of the slide for coordinates on it; one
        for each name of a list. A new figure is one or two columns of a journal wide.

    Examples
    --------
    >>> import spatialgears as sg
    >>> tissue = sg.datasets.simulate_tissue(n_cells=200, n_genes=60, spots=100)
    >>> cells = tissue.cells
    >>> cells.obsm["X_gears"] = sg.metrics.canonical(tissue.truth.obsm["spatial"])  # or rec.to_adata(cells)
    >>> ax = sg.pl.reconstruction(cells, color="cell_type")
    >>> ax.get_xlabel()
    'x (RMS radius of the slide)'
    >>> ax.figure.savefig("map.png")  # doctest: +SKIP
    """
    options: dict[str, Any] = {"basis": basis, "layer": layer, "size": size, "cmap": cmap, "legend": legend}
    if are_names(data, color):
        titles = [title] * len(color) if title else list(color)
        return draw_maps(data, color, titles=titles, ax=ax, **options)
    return draw_map(data, color=color, title=title, ax=ax, **options)


def draw_map(
    data: Any,
    *,
    color: Any,
    basis: str = "X_gears",
    layer: str | None = None,
    legend: bool = True,
    title: str | None = None,
    ax: Axes | None = None,
    **style: Any,
) -> Axes:
    """One map, as :func:`reconstruction` draws it."""
    coords = coordinates(data, basis)
    values, label = color_values(data, color, layer=layer)
    ax = canvas.axes_or_new(ax, **figure_size(coords, values, legend=legend))
    canvas.points(ax, coords, values, label=label, legend=legend, **style)
    own = not hasattr(data, "obsm") or (basis.startswith("X_gears") and basis != "X_gears_slide")
    canvas.map_axes(ax, title=title, unit=UNIT if own else SLIDE_UNIT)
    return ax


def draw_maps(
    data: Any, colors: Sequence[Any], *, titles: Sequence[str | None], ax: Axes | None, **options: Any
) -> list[Axes]:
    """One panel for each colour, in a figure of its own, two or three beside each other."""
    if ax is not None:
        raise InputError(
            f"One Axes was given for {len(colors)} colours.",
            "Give one colour, or leave ax out for a new figure.",
        )
    import matplotlib.pyplot as plt

    columns = min(len(colors), 3 if len(colors) != 4 else 2)
    rows = -(-len(colors) // columns)
    width = canvas.PAGE if columns > 1 else canvas.COLUMN
    spans = np.ptp(coordinates(data, options["basis"]), axis=0)
    each = float(np.clip((width / columns - 0.9) * spans[1] / (spans[0] or 1.0) + 0.8, 1.6, 5.0))
    figure, axes = plt.subplots(
        rows, columns, figsize=(width, rows * each), layout="constrained", dpi=canvas.DPI, squeeze=False
    )
    drawn = list(axes.flat)
    for one, color, title in zip(drawn, colors, titles, strict=False):
        draw_map(data, color=color, title=title, ax=one, **options)
    for empty in drawn[len(colors) :]:
        figure.delaxes(empty)
    return drawn[: len(colors)]


@canvas.for_paper
def truth_vs_prediction(
    coords: Any,
    truth: Any,
    *,
    color: Any = None,
    size: float | None = None,
    cmap: str = palette.CONTINUOUS,
    legend: bool = True,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the true places and the predicted ones side by side, in the same colours and at the same scale.

    Places are intrinsic, so the prediction is first turned, mirrored, shifted and scaled onto the truth.

    Parameters
    ----------
    coords
        (n, 2) predicted places, a Reconstruction, or an AnnData with ``obsm["X_gears"]``.
    truth
        (n, 2) true places, or an AnnData with ``obsm["spatial"]``.
    color
        As in :func:`reconstruction`; default: the true place along the tissue's longest axis, so that a
        prediction in which colours run as in the truth is a good one.
    size, cmap, legend, title, ax
        As in :func:`reconstruction`.

    Returns
    -------
    Axes
        Both layouts on one pair of axes, with a bar for scale.

    Examples
    --------
    >>> import spatialgears as sg
    >>> tissue = sg.datasets.simulate_tissue(n_cells=200, n_genes=60, spots=100)
    >>> cells = tissue.cells
    >>> cells.obsm["X_gears"] = sg.metrics.canonical(tissue.truth.obsm["spatial"])  # or rec.to_adata(cells)
    >>> ax = sg.pl.truth_vs_prediction(cells, tissue.truth, color="cell_type")
    >>> [text.get_text() for text in ax.texts[:2]]
    ['truth', 'prediction']
    """
    predicted, true = pair(coords, truth)
    true = metrics.canonical(true)
    predicted = turned_onto(predicted, true, scale=True)
    if color is None:
        axis = np.linalg.svd(true, full_matrices=False)[2][0]
        values, label = pd.Series(true @ axis), "true place, longest axis (RMS radius)"
    else:
        values, label = color_values(coords, color)
    ax = canvas.axes_or_new(ax, **figure_size(true, values, legend=legend, panels=2))
    _side_by_side(
        ax, true, predicted, values, ("truth", "prediction"), label=label, size=size, cmap=cmap, legend=legend
    )
    _scale_bar(ax)
    canvas.set_title(ax, title, pad=ABOVE_NAMES)
    return ax


@canvas.for_paper
def embedding_before_after(
    before: np.ndarray,
    after: np.ndarray,
    labels: Any,
    *,
    label: str = "domain",
    names: tuple[str, str] = ("before", "after"),
    size: float | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw an embedding before and after domains were aligned, coloured by origin (figure 7).

    Parameters
    ----------
    before, after
        (n, f) embeddings of the same profiles; drawn by their first two principal components.
    labels
        (n,) the domain, slide or batch of each profile.
    label
        Title of the legend.
    names
        What to call the two embeddings.
    size, title, ax
        As in :func:`reconstruction`.

    Returns
    -------
    Axes
        Both panels on one pair of axes, each scaled to unit spread.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> rng = np.random.default_rng(0)
    >>> labels = np.repeat(["spots", "cells"], 100)
    >>> after = rng.normal(size=(200, 5))
    >>> before = after + 9 * (labels == "spots")[:, None]
    >>> ax = sg.pl.embedding_before_after(before, after, labels)
    >>> ax.get_legend().get_title().get_text()
    'domain'
    """
    left, right = _two_columns(before), _two_columns(after)
    values = pd.Series(np.asarray(labels).astype(str))
    if not len(left) == len(right) == len(values):
        raise InputError(
            f"There are {len(left)} profiles before, {len(right)} after and {len(values)} labels.",
            "Give one of each.",
        )
    ax = canvas.axes_or_new(ax, **figure_size(left, values, legend=True, panels=2))
    _side_by_side(ax, left, right, values, names, label=label, size=size)
    words = "first two components of each, scaled to unit spread"
    ax.text(0.5, -0.02, words, transform=ax.transAxes, ha="center", va="top")
    canvas.set_title(ax, title, pad=ABOVE_NAMES)
    return ax


def _side_by_side(
    ax: Axes,
    left: np.ndarray,
    right: np.ndarray,
    values: pd.Series | None,
    names: tuple[str, str],
    *,
    size: float | None,
    **key: Any,
) -> None:
    """Two layouts at one scale, the right one moved clear of the left."""
    ends = [(np.nanmin(part, axis=0), np.nanmax(part, axis=0)) for part in (left, right)]
    width = max(high[0] - low[0] for low, high in ends) or 1.0
    shift = ends[0][1][0] - ends[1][0][0] + 0.15 * width
    both = np.concatenate([left, right + np.array([shift, 0.0])])
    twice = None if values is None else pd.concat([values, values], ignore_index=True)
    size = canvas.point_size(ax, len(both)) if size is None else size
    canvas.points(ax, both, twice, size=size, **key)
    top = max(high[1] for _, high in ends) + 0.06 * width
    for name, (low, high), offset in zip(names, ends, (0.0, shift), strict=True):
        ax.text((low[0] + high[0]) / 2 + offset, top, name, ha="center", va="bottom", fontsize="large")
    canvas.equal_aspect(ax)
    ax.set_axis_off()
    ax.margins(0.06)


def _scale_bar(ax: Axes, length: float = 1.0) -> None:
    (low, _), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    y = bottom - 0.03 * (top - bottom)
    ax.plot([low, low + length], [y, y], color="black", linewidth=2, solid_capstyle="butt")
    ax.text(low, y - 0.03 * (top - bottom), "RMS radius of the truth", ha="left", va="top", fontsize="small")


def _two_columns(embedding: Any) -> np.ndarray:
    """(n, 2) centred first principal components, scaled to unit RMS radius."""
    x = np.asarray(embedding, dtype=np.float64)
    if x.ndim != 2 or x.shape[1] < 2:
        raise InputError(f"Expected an embedding of shape (n, f) with f at least 2; found {x.shape}.")
    x = x - x.mean(axis=0)
    if x.shape[1] > 2:
        _, axes = np.linalg.eigh(x.T @ x)
        x = x @ axes[:, [-1, -2]]
    return x / (np.sqrt(np.square(x).sum(axis=1).mean()) or 1.0)


def figure_size(
    coords: np.ndarray, values: pd.Series | None, *, legend: bool, panels: int = 1
) -> dict[str, float]:
    """Inches for a new figure: layouts in their proportion, the colour bar or legend beside them, at most a page wide."""
    beside, least = 0.0, 0.0
    if values is not None and legend and palette.is_categorical(values):
        names = palette.encode(values).names
        letters = max((len(canvas.shorten(name)) for name in names), default=0)
        columns = -(-len(names) // canvas.LEGEND_ROWS)
        beside = columns * (0.3 + 0.047 * letters)
        least = 0.135 * -(-len(names) // max(columns, 1)) + 0.5
    elif values is not None:
        beside = 0.6
    width = min(canvas.COLUMN if panels == 1 else 5.8, canvas.PAGE - beside)
    if beside <= 0.6:  # a colour bar stays within the column
        width -= beside
    spans = np.ptp(coords[np.isfinite(coords).all(axis=1)], axis=0) if len(coords) else np.ones(2)
    height = float(np.clip((width / panels - 0.6) * spans[1] / (spans[0] or 1.0) + 0.8, 2.2, 6.0))
    return {"width": width + beside, "height": max(height, least)}
