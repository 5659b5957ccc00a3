"""How good a layout is, against the truth: the paper's heat map and geometry diagnostics, and coverage.

Above ``max_cells`` the cells averaged over (and the pairs) are a sample drawn with a fixed seed; neighbours
are still sought among all cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.spatial.distance import pdist

from spatialgears import metrics
from spatialgears.errors import InputError
from spatialgears.plotting import canvas, palette
from spatialgears.plotting.values import coordinates, pair, turned_onto

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE_COLORS = [palette.CATEGORICAL[i] for i in (0, 5, 2, 3, 1, 4, 7, 8)]


@canvas.for_paper
def distortion(
    coords: Any,
    truth: Any,
    *,
    blocks: int = 128,
    max_cells: int = 5_000,
    vmax: float | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw where distances are distorted: ``|log(D̂/D)|``, cells in Morton order of the truth, block means.

    Parameters
    ----------
    coords
        (n, 2) predicted places, a Reconstruction, or an AnnData with ``obsm["X_gears"]``.
    truth
        (n, 2) true places, or an AnnData with ``obsm["spatial"]``.
    blocks
        Rows and columns of the picture.
    max_cells
        Cells used at most.
    vmax
        Upper end of the colour scale, to compare several pictures; default: the 99th percentile.
    title, ax
        As in :func:`reconstruction`.

    Returns
    -------
    Axes
        Brighter is more distorted; 0.69 is off by a factor of two.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> rng = np.random.default_rng(0)
    >>> truth, noise = rng.normal(size=(2, 300, 2))
    >>> ax = sg.pl.distortion(truth + 0.1 * noise, truth, blocks=64)
    >>> ax.get_xlabel()
    'cell (Morton order of the truth)'
    """
    from matplotlib.ticker import MaxNLocator

    predicted, true = pair(coords, truth)
    rows = _sample(len(true), max_cells)
    matrix = metrics.distortion_matrix(predicted[rows], true[rows], blocks=blocks)
    ax = canvas.axes_or_new(ax)
    top = float(np.percentile(matrix, 99)) or 1.0 if vmax is None else vmax
    ends = (0, len(true), len(true), 0)  # the axes count cells, not blocks
    drawn = ax.imshow(matrix, cmap=palette.CONTINUOUS, vmin=0, vmax=top, extent=ends, interpolation="nearest")
    canvas.colorbar(ax, drawn, "distortion of distances |log(predicted / true)|", matrix.ravel(), (0.0, top))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(4, integer=True))
        axis.set_major_formatter("{x:,.0f}")
        axis.set_label_text("cell (Morton order of the truth)")
    canvas.set_title(ax, title)
    return ax


@canvas.for_paper
def calibration_error(
    predictions: Any,
    truth: Any,
    *,
    ks: Sequence[int] = (5, 10, 20, 50, 100),
    max_cells: int = 5_000,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the calibration error of neighbourhood radii against the size of the neighbourhood (CalErr).

    Parameters
    ----------
    predictions
        Predicted places as in :func:`distortion`, or several of them by name.
    truth
        (n, 2) true places, or an AnnData with ``obsm["spatial"]``.
    ks
        Sizes of the neighbourhood; those too large for the number of cells are left out.
    max_cells, title, ax
        As in :func:`distortion`.

    Returns
    -------
    Axes
        Lower is better.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> rng = np.random.default_rng(0)
    >>> truth, noise = rng.normal(size=(2, 300, 2))
    >>> ax = sg.pl.calibration_error({"good": truth + 0.1 * noise, "poor": truth + 0.5 * noise}, truth)
    >>> good, poor = (line.get_ydata() for line in ax.get_lines())
    >>> bool((good < poor).all())
    True
    """
    words = "calibration error, mean |r̂/r − 1|"
    return _by_size(
        metrics.cal_error, words, predictions, truth, ks=ks, max_cells=max_cells, title=title, ax=ax
    )


@canvas.for_paper
def local_rmse(
    predictions: Any,
    truth: Any,
    *,
    ks: Sequence[int] = (10, 20, 50, 100),
    max_cells: int = 5_000,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the multiscale local RMSE of distances against the size of the neighbourhood (LRMSE).

    Parameters
    ----------
    predictions, truth, ks, max_cells, title, ax
        As in :func:`calibration_error`.

    Returns
    -------
    Axes
        Lower is better.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> rng = np.random.default_rng(0)
    >>> truth, noise = rng.normal(size=(2, 300, 2))
    >>> ax = sg.pl.local_rmse({"good": truth + 0.1 * noise, "poor": truth + 0.5 * noise}, truth)
    >>> good, poor = (line.get_ydata() for line in ax.get_lines())
    >>> bool((good < poor).all())
    True
    """
    words = "local RMSE of distances (median radius $R_k$)"
    return _by_size(metrics.lrmse, words, predictions, truth, ks=ks, max_cells=max_cells, title=title, ax=ax)


@canvas.for_paper
def edge_roc(
    predictions: Any,
    truth: Any,
    *,
    k: int = 20,
    max_cells: int = 5_000,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the ROC curve of telling near pairs from far ones by predicted distance.

    Parameters
    ----------
    predictions, truth, max_cells, title, ax
        As in :func:`calibration_error`.
    k
        Near means within the median distance to the k-th true neighbour.

    Returns
    -------
    Axes
        With the area under each curve in the legend.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> rng = np.random.default_rng(0)
    >>> truth, noise = rng.normal(size=(2, 300, 2))
    >>> ax = sg.pl.edge_roc({"mirrored": truth[:, ::-1], "random": noise}, truth)
    >>> ax.get_legend().get_texts()[0].get_text()
    'mirrored 1.000'
    """
    named, true = _named(predictions, truth)
    k = min(k, len(true) - 2)
    rows = _sample(len(true), max_cells)
    radius = metrics.neighbourhood_radius(true, k=k, rows=rows)
    ax = canvas.axes_or_new(ax)
    legend = []
    for color, (name, predicted) in zip(_colors(len(named)), named.items(), strict=True):
        distances = pdist(predicted[rows]), pdist(true[rows])
        rates = metrics.edge_roc(*distances, radius=radius)
        area = metrics.edge_auc(*distances, radius=radius)
        ax.plot(*rates, color=color, linewidth=1.6)
        legend.append(f"{canvas.shorten(name)} {area:.3f}" if name else f"{area:.3f}")
    canvas.legend_inside(ax, ax.get_lines(), legend, title="AUC")
    ax.plot([0, 1], [0, 1], color=palette.OTHERS, linewidth=0.8, linestyle=":")
    ax.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
    ax.set_xlabel("far pairs called near (false positive rate)")
    ax.set_ylabel(f"near pairs found, k = {k} (true positive rate)")
    canvas.plain(ax)
    canvas.set_title(ax, title)
    return ax


@canvas.for_paper
def coverage(
    data: Any,
    truth: Any,
    *,
    radii: Mapping[float, Any] | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw how often the true place lies within the stated radius, against how often it should.

    The truth is brought to unit RMS radius and the prediction turned (not scaled) onto it, so that radii keep
    their unit.

    Parameters
    ----------
    data
        Predicted places as in :func:`distortion`.
    truth
        (n, 2) true places, or an AnnData with ``obsm["spatial"]``.
    radii
        Nominal share to the (n,) radii that should hold it, such as ``{0.5: r50, 0.9: r90}``; default: the
        50% and 90% radii of a Reconstruction, or ``obs["gears_radius50"]`` and ``obs["gears_uncertainty"]``.
    title, ax
        As in :func:`reconstruction`.

    Returns
    -------
    Axes
        Within the band, coverage is off by at most 5 points; bars are 95% intervals.

    Examples
    --------
    Errors of a Gaussian of standard deviation 0.1, and the radii that hold half and 90% of it:

    >>> import numpy as np, spatialgears as sg
    >>> rng = np.random.default_rng(0)
    >>> truth = sg.metrics.canonical(rng.normal(size=(1000, 2)))
    >>> radii = {0.5: np.full(1000, 0.118), 0.9: np.full(1000, 0.215)}
    >>> ax = sg.pl.coverage(truth + rng.normal(scale=0.1, size=(1000, 2)), truth, radii=radii)
    >>> [text.get_text() for text in ax.texts]
    ['50%', '90%']
    """
    predicted, true = pair(data, truth)
    true = metrics.canonical(true)
    error = np.linalg.norm(turned_onto(predicted, true, scale=False) - true, axis=1)
    radii = _radii(data) if radii is None else radii
    n, nominal = len(error), np.array(sorted(radii))
    if any(np.isnan(np.asarray(one, dtype=np.float64)).any() for one in radii.values()):
        raise InputError(
            "Some radii are missing.", "Leave out cells without, or give radii={0.5: ..., 0.9: ...}."
        )
    observed = np.array([np.mean(error <= np.asarray(radii[level], dtype=np.float64)) for level in nominal])
    ax = canvas.axes_or_new(ax)
    line = np.array([0.0, 1.0])
    ax.fill_between(100 * line, 100 * line - 5, 100 * line + 5, color="#EDEDED", linewidth=0)
    ax.plot(100 * line, 100 * line, color=palette.OTHERS, linewidth=0.8, linestyle=":")
    spread = np.abs(_wilson(observed, n) - observed)  # (2, levels)
    color = palette.CATEGORICAL[0]
    ax.errorbar(100 * nominal, 100 * observed, 100 * spread, fmt="o-", color=color, linewidth=1.4, capsize=3)
    for x, y in zip(nominal, observed, strict=True):
        ax.annotate(f"{y:.0%}", (100 * x, 100 * y), (7, -12), textcoords="offset points", fontsize="small")
    ax.set(xlim=(0, 100), ylim=(0, 103), aspect="equal")
    ax.set_xlabel("nominal coverage of the radius (%)")
    ax.set_ylabel(f"cells truly within it (%), n = {n:,}")
    canvas.plain(ax)
    canvas.set_title(ax, title)
    return ax


def _by_size(
    metric: Callable[..., float],
    words: str,
    predictions: Any,
    truth: Any,
    *,
    ks: Sequence[int],
    max_cells: int,
    title: str | None,
    ax: Axes | None,
) -> Axes:
    named, true = _named(predictions, truth)
    sizes = [k for k in ks if k <= len(true) - 2] or [len(true) - 2]
    rows = _sample(len(true), max_cells)
    ax = canvas.axes_or_new(ax, height=2.8)
    for color, predicted in zip(_colors(len(named)), named.values(), strict=True):
        scale = metrics.least_squares_scale(pdist(predicted[rows]), pdist(true[rows]))
        values = [metric(predicted, true, k=k, rows=rows, scale=scale) for k in sizes]
        ax.plot(sizes, values, "o-", color=color, linewidth=1.6, markersize=5)
    ax.set_xscale("log")
    ax.set_xticks(sizes, [f"{k:g}" for k in sizes])
    ax.minorticks_off()
    ax.set_ylim(bottom=0)
    ax.set_xlabel("neighbourhood size k (cells)")
    ax.set_ylabel(words)
    ax.grid(axis="y", color=canvas.LIGHTEST_LINE, linewidth=0.6)
    canvas.plain(ax)
    if list(named) != [""]:
        canvas.legend_inside(ax, ax.get_lines(), [canvas.shorten(name) for name in named])
    canvas.set_title(ax, title)
    return ax


def _named(predictions: Any, truth: Any) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Predicted places by name and the true ones, all in the canonical frame."""
    given = predictions if isinstance(predictions, Mapping) else {"": predictions}
    if not given:
        raise InputError("There is no prediction to draw.", "Give places, or several of them by name.")
    true = metrics.canonical(coordinates(truth, "spatial"))
    if len(true) < 3:
        raise InputError(f"At least 3 cells are needed; found {len(true)}.")
    return {str(name): metrics.canonical(pair(places, true)[0]) for name, places in given.items()}, true


def _colors(n: int) -> list[str]:
    return [LINE_COLORS[i % len(LINE_COLORS)] for i in range(n)]


def _sample(n: int, most: int) -> np.ndarray:
    return np.arange(n) if n <= most else np.random.default_rng(0).choice(n, most, replace=False)


def _radii(data: Any) -> dict[float, Any]:
    if hasattr(data, "obsm") and {"gears_radius50", "gears_uncertainty"} <= set(data.obs):
        return {0.5: data.obs["gears_radius50"], 0.9: data.obs["gears_uncertainty"]}
    if hasattr(data, "radius50") and hasattr(data, "radius90"):
        return {0.5: data.radius50, 0.9: data.radius90}
    raise InputError(
        "There are no radii of uncertainty to check.",
        "Give radii={0.5: ..., 0.9: ...}, a Reconstruction, or an AnnData from Reconstruction.to_adata.",
    )


def _wilson(share: np.ndarray, n: int, z: float = 1.96) -> np.ndarray:
    """(2, levels) 95% interval of a share among n."""
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return np.stack([np.minimum(middle - half, share), np.maximum(middle + half, share)])
