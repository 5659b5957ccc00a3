"""Training curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spatialgears.errors import InputError
from spatialgears.plotting import canvas, palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from spatialgears.model import GEARS

History = Mapping[str, Sequence[float]]
AXES = ("step", "epoch")
HIDDEN = ("lr",)
MOST_POINTS = 400
COLORS, DASHES = palette.CATEGORICAL[:8], ("-", "--", ":", "-.")


class Curve(NamedTuple):
    """A loss or measure: its values and the steps at which they were taken, both (m,)."""

    name: str
    steps: np.ndarray
    values: np.ndarray


@canvas.for_paper
def training_curves(
    history: History | GEARS,
    *,
    keys: Sequence[str] | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the curves of a training history.

    Parameters
    ----------
    history
        A fitted model, or its history: one list per loss or measure. "step" or "epoch" gives the horizontal axis,
        "<name>_step" that of the curves whose names begin with <name>. Names of the form "<phase>/<name>" are drawn
        phase after phase.
    keys
        Which curves, without the phase; default: all but the learning rate.
    title, ax
        As in :func:`reconstruction`.

    Returns
    -------
    Axes
        Logarithmic where all values are positive; long curves averaged over blocks of steps.

    Examples
    --------
    >>> import spatialgears as sg
    >>> history = {"step": [10, 20, 30], "loss": [4.0, 2.0, 1.0], "lr": [1e-3, 1e-3, 1e-4]}
    >>> ax = sg.pl.training_curves(history)  # or a fitted model
    >>> ax.get_yscale(), len(ax.get_lines())
    ('log', 1)
    """
    history = history if isinstance(history, Mapping) else history.history_
    keys = [keys] if isinstance(keys, str) else keys
    parts = phases(history, keys)
    found = dict.fromkeys(curve.name for curves in parts.values() for curve in curves)
    if not found or set(keys or ()) - found.keys():
        raise InputError(
            f"The history has no {', '.join(sorted(set(keys or ()) - found.keys())) or 'curves'}.",
            f"It has {', '.join(sorted(history)) or 'nothing'}.",
        )
    ax = canvas.axes_or_new(ax, width=5.0)
    styles = {name: (COLORS[i % 8], DASHES[i // 8 % 4]) for i, name in enumerate(found)}
    if _draw(ax, parts, styles) > 0:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter("{x:g}" if len(ax.get_yticks()) < 4 else "")
    ax.set_xlabel(axis_name(history))
    ax.set_ylabel("value")
    ax.grid(axis="y", color=canvas.LIGHTEST_LINE, linewidth=0.6)
    canvas.plain(ax)
    _legend(ax, styles)
    canvas.set_title(ax, title)
    return ax


def _draw(ax: Axes, parts: Mapping[str, Sequence[Curve]], styles: Mapping[str, tuple[str, Any]]) -> float:
    """Draw one phase after the other; the smallest value."""
    start, smallest = 0.0, np.inf
    for phase, curves in parts.items():
        for name, steps, values in curves:
            color, dash = styles[name]
            marker = "o" if len(values) == 1 else None
            ax.plot(start + steps, values, dash, color=color, linewidth=1.2, marker=marker)
            smallest = min(smallest, np.nanmin(values, initial=np.inf))
        if len(parts) > 1:
            place = ax.get_xaxis_transform()
            ax.text(start, 1.01, f" {phase}", transform=place, fontsize="small").set_parse_math(False)
            ax.axvline(start, color=canvas.LIGHTEST_LINE, linewidth=0.8, zorder=0)
        start += max(curve.steps[-1] for curve in curves)
    return smallest


def axis_name(history: History) -> str:
    """What the horizontal axis counts."""
    return "epoch" if any(key.rpartition("/")[2] == "epoch" for key in history) else "step"


def phases(history: History, keys: Sequence[str] | None = None) -> dict[str, list[Curve]]:
    """Curves of each phase ("" where names have none), each at most 400 points long, none empty."""
    grouped: dict[str, dict[str, np.ndarray]] = {}
    for key, values in history.items():
        phase, slash, name = key.partition("/")
        array = np.asarray(values, dtype=np.float64).ravel()
        if len(array):
            grouped.setdefault(phase if slash else "", {})[name if slash else key] = array
    parts = {phase: _curves(group, keys) for phase, group in grouped.items()}
    return {phase: curves for phase, curves in parts.items() if curves}


def _curves(group: Mapping[str, np.ndarray], keys: Sequence[str] | None) -> list[Curve]:
    axes = {name: steps for name, steps in group.items() if name.rpartition("_")[2] in AXES}
    last = max((steps[-1] for steps in axes.values()), default=max(map(len, group.values())))
    return [
        Curve(name, *_thin(_steps(name, len(values), axes, last), values))
        for name, values in group.items()
        if name not in axes and (name in keys if keys is not None else name not in HIDDEN)
    ]


def _steps(name: str, length: int, axes: Mapping[str, np.ndarray], last: float) -> np.ndarray:
    """Steps of a curve: those of its own axis, else of the common one, else spread evenly."""
    own = [axis for axis in axes if name.startswith(axis.rpartition("_")[0])]  # "" begins every name
    for axis in sorted(own, key=len, reverse=True):
        if len(axes[axis]) == length:
            return axes[axis]
    return np.arange(1, length + 1) * (last / length)


def _thin(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    starts = np.arange(0, len(values), -(-len(values) // MOST_POINTS))
    sizes = np.diff([*starts, len(values)])
    return np.add.reduceat(steps, starts) / sizes, np.add.reduceat(values, starts) / sizes


def _legend(ax: Axes, styles: Mapping[str, tuple[str, Any]]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=color, linestyle=dash) for color, dash in styles.values()]
    canvas.legend_beside(ax, handles, list(styles))
