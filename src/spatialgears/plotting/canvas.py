"""Drawing shared by all figures: axes, points, colour bars and legends that stay readable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from textwrap import fill
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
import pandas as pd

from spatialgears.plotting import palette
from spatialgears.plotting.values import UNIT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection

P = ParamSpec("P")
T = TypeVar("T")

COLUMN, PAGE = 3.5, 7.2  # inches: the width of one column of a journal, and of two
DPI = 300
#: What a figure of these sizes is drawn with; a figure that is given keeps its own settings.
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
}
LEGEND_ROWS = 21  # 40 labels and the missing ones make two columns
LONGEST_NAME = 32
RASTER_FROM = 1000
LIGHTEST_LINE = "#D9D9D9"


def for_paper(draw: Callable[P, T]) -> Callable[P, T]:
    """Draw with text and lines for a figure of column width, unless axes are given."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> T:
        if kwargs.get("ax") is not None:
            return draw(*args, **kwargs)
        from matplotlib import rc_context

        with rc_context(STYLE):
            return draw(*args, **kwargs)

    return drawn


def axes_or_new(ax: Axes | None, *, width: float = COLUMN, height: float = 3.0) -> Axes:
    """The given axes, or those of a new figure of that size in inches, which makes room for legends."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(min(width, PAGE), height), layout="constrained", dpi=DPI)[1]


def map_axes(ax: Axes, *, title: str | None, unit: str = UNIT) -> None:
    """Axes of a map: equal aspect, no frame in the way, the unit on both."""
    equal_aspect(ax)
    ax.locator_params(nbins=4)  # so that long numbers do not meet
    ax.set_xlabel(f"x ({unit})")
    ax.set_ylabel(f"y ({unit})")
    plain(ax)
    set_title(ax, title)


def equal_aspect(ax: Axes) -> None:
    """One unit is as long on both axes; the box keeps its size, unless shared, so that keys beside it fit."""
    groups = (ax.get_shared_x_axes(), ax.get_shared_y_axes())
    shared = any(len(group.get_siblings(ax)) > 1 for group in groups)
    ax.set_aspect("equal", adjustable="box" if shared else "datalim")


def plain(ax: Axes) -> None:
    """Take the upper and right frame away."""
    ax.spines[["top", "right"]].set_visible(False)


def set_title(ax: Axes, title: str | None, *, pad: float | None = None) -> None:
    """A title from data is text, never mathematics; ``pad`` points above the axes."""
    if title:
        ax.set_title(title, pad=pad).set_parse_math(False)


def point_size(ax: Axes, n_points: int) -> float:
    """Marker area in square points that covers about half of the axes, whatever the number of points."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    width, height = ax.get_position().size * figure.get_size_inches() * 72
    return float(np.clip(0.35 * min(width, height) ** 2 / max(n_points, 1), 0.15, 60))


def points(
    ax: Axes,
    coords: np.ndarray,
    values: pd.Series | None,
    *,
    label: str = "",
    size: float | None = None,
    cmap: str = palette.CONTINUOUS,
    legend: bool = True,
) -> None:
    """Scatter cells coloured by numbers or labels: missing in grey underneath, with a key beside."""
    shown = np.isfinite(coords).all(axis=1)
    style: dict[str, Any] = {
        "s": point_size(ax, len(coords)) if size is None else size,
        "linewidths": 0,
        "rasterized": len(coords) >= RASTER_FROM,
    }
    if values is None:
        _scatter(ax, coords[shown], c=palette.CATEGORICAL[0], **style)
    elif palette.is_categorical(values):
        _labels(ax, coords, palette.encode(values), shown, label=label, legend=legend, style=style)
    else:
        numbers = values.to_numpy(np.float64, na_value=np.nan)
        _numbers(ax, coords, numbers, shown, label=label, cmap=cmap, style=style)


def _scatter(ax: Axes, coords: np.ndarray, **style: Any) -> PathCollection:
    return ax.scatter(coords[:, 0], coords[:, 1], **style)


def _labels(
    ax: Axes,
    coords: np.ndarray,
    categories: palette.Categories,
    shown: np.ndarray,
    *,
    label: str,
    legend: bool,
    style: dict,
) -> None:
    from matplotlib.colors import to_rgba_array

    missing = shown & (categories.codes < 0)
    _scatter(ax, coords[missing], c=palette.MISSING, **style)
    order = np.random.default_rng(0).permutation(np.flatnonzero(shown & ~missing))  # no label hides another
    _scatter(ax, coords[order], c=to_rgba_array(categories.colors)[categories.codes[order]], **style)
    if legend:
        names, colors = list(categories.names), list(categories.colors)
        if missing.any():
            names, colors = [*names, "missing"], [*colors, palette.MISSING]
        swatches(ax, names, colors, title=label)


def _numbers(
    ax: Axes, coords: np.ndarray, values: np.ndarray, shown: np.ndarray, *, label: str, cmap: str, style: dict
) -> None:
    finite = np.isfinite(values)
    _scatter(ax, coords[shown & ~finite], c=palette.MISSING, **style)
    order = np.flatnonzero(shown & finite)
    order = order[np.argsort(values[order], kind="stable")]  # the highest are not hidden
    if not len(order):
        swatches(ax, ["missing"], [palette.MISSING], title=label)
        return
    low, high = palette.limits(values)
    drawn = _scatter(ax, coords[order], c=values[order], cmap=cmap, vmin=low, vmax=high, **style)
    colorbar(ax, drawn, label, values[finite], (low, high))
    if not finite.all():
        swatches(ax, ["missing"], [palette.MISSING], title="", inside=True)


def colorbar(ax: Axes, drawn: Any, label: str, values: np.ndarray, ends: tuple[float, float]) -> None:
    """A colour bar with its label, and arrows where values lie beyond its ends."""
    beyond = bool(values.min() < ends[0]) + 2 * bool(values.max() > ends[1])
    extend = ("neither", "min", "max", "both")[beyond]
    figure = ax.get_figure()
    assert figure is not None
    bar = figure.colorbar(drawn, ax=ax, extend=extend, shrink=0.8, aspect=30, pad=0.03)
    bar.outline.set_visible(False)
    bar.ax.set_ylabel(fill(label, 34)).set_parse_math(False)


def swatches(
    ax: Axes, names: Sequence[str], colors: Sequence[str], *, title: str, inside: bool = False
) -> None:
    """A legend of coloured dots, beside the axes in as many columns as it takes, or inside."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], marker="o", linestyle="", color=color) for color in colors]
    (legend_inside if inside else legend_beside)(ax, handles, names, title=title)


def legend_inside(ax: Axes, handles: Sequence, names: Sequence[str], *, title: str = "") -> None:
    """A legend where there is room in the axes."""
    _legend(ax, handles, names, title, loc="best", fontsize="small")


def legend_beside(ax: Axes, handles: Sequence, names: Sequence[str], *, title: str = "") -> None:
    """A legend to the right of the axes, in columns of at most 21 names."""
    columns = max(1, -(-len(names) // LEGEND_ROWS))
    size = "small" if columns == 1 else "x-small"
    _legend(
        ax, handles, names, title, loc="center left", bbox_to_anchor=(1.0, 0.5), ncols=columns, fontsize=size
    )


def _legend(ax: Axes, handles: Sequence, names: Sequence[str], title: str, **place: Any) -> None:
    """Text is set once the legend is made: names from data may begin with an underscore or hold dollars."""
    made = ax.legend(
        handles,
        [" "] * len(names),
        title=" " if title else None,
        frameon=False,
        handletextpad=0.4,
        columnspacing=0.8,
        labelspacing=0.35,
        alignment="left",
        **place,
    )
    for text, name in zip([*made.get_texts(), made.get_title()], [*names, title], strict=True):
        text.set_parse_math(False)
        text.set_text(shorten(name))


def shorten(name: str) -> str:
    """The name, cut with an ellipsis where it would push everything else away."""
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"
