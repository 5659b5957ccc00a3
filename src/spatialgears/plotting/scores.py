"""Scores that :mod:`spatialgears.analysis` finds: agreement of Moran's I, neighbouring types, mixing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from spatialgears.analysis.neighbors import matrix
from spatialgears.errors import InputError
from spatialgears.plotting import canvas, palette
from spatialgears.plotting.values import slot

if TYPE_CHECKING:
    from anndata import AnnData
    from matplotlib.axes import Axes

LEVEL = 0.05
SPACES = palette.CATEGORICAL[2:]  # of embeddings; the first two are those of spots and cells


@canvas.for_paper
def moran_agreement(adata: AnnData, *, title: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw Moran's I of every gene in the reconstruction against that on the slide.

    Parameters
    ----------
    adata
        Cells on which ``sg.tl.spatial_expression`` was run with a slide.
    title, ax
        As in :func:`reconstruction`.

    Returns
    -------
    Axes
        One point per gene, a few of those highest on the slide named; the Spearman correlation stands in the corner.

    Examples
    --------
    >>> import spatialgears as sg
    >>> tissue = sg.datasets.simulate_tissue(n_cells=200, n_genes=60, spots=100)
    >>> cells = tissue.cells
    >>> cells.obsm["X_gears"] = sg.metrics.canonical(tissue.truth.obsm["spatial"])  # or rec.to_adata(cells)
    >>> sg.tl.spatial_expression(cells, slide=tissue.slides[0])
    >>> ax = sg.pl.moran_agreement(cells)
    >>> ax.get_xlabel(), ax.get_ylabel()
    ("Moran's I on the slide", "Moran's I in the reconstruction")
    """
    found = slot(adata, "gears_moran", "sg.tl.spatial_expression(adata, slide=slide)")
    if "slide" not in found["table"]:
        raise InputError(
            "There is no slide to compare with.", "Run sg.tl.spatial_expression(adata, slide=slide)."
        )
    table = found["table"]
    ax = canvas.axes_or_new(ax, height=3.3)
    x, y = table["slide"].to_numpy(), table["reconstruction"].to_numpy()
    ax.scatter(x, y, s=14, color=palette.CATEGORICAL[0], linewidths=0, alpha=0.7)
    for i in _apart(x, y):
        ax.annotate(
            str(table.index[i]),
            (x[i], y[i]),
            (3, 3),
            textcoords="offset points",
            fontsize="x-small",
        ).set_parse_math(False)
    ax.axhline(0, color=canvas.LIGHTEST_LINE, linewidth=1, zorder=0)
    ax.axvline(0, color=canvas.LIGHTEST_LINE, linewidth=1, zorder=0)
    ax.set_xlabel("Moran's I on the slide")
    ax.set_ylabel("Moran's I in the reconstruction")
    ax.text(0.03, 0.97, f"Spearman {found['agreement']:.2f}", transform=ax.transAxes, va="top")
    canvas.plain(ax)
    canvas.set_title(ax, title)
    return ax


def _apart(x: np.ndarray, y: np.ndarray) -> list[int]:
    """At most three of the twenty points furthest to the right, so far from each other that their names do not meet."""
    chosen: list[int] = []
    for i in np.argsort(-x, kind="stable")[:20]:
        if len(chosen) < 3 and (abs(y[i] - y[chosen]) >= 0.07 * np.ptp(y)).all():
            chosen.append(int(i))
    return chosen


@canvas.for_paper
def neighbors_by_type(adata: AnnData, *, title: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw which types are neighbours more (red) or less (blue) often than by chance; dots mark the significant.

    Parameters
    ----------
    adata
        Cells on which ``sg.tl.neighbors_by_type`` was run.
    title, ax
        As in :func:`reconstruction`.

    Returns
    -------
    Axes
        One row per type, one column per type of its neighbours.

    Examples
    --------
    >>> import spatialgears as sg
    >>> tissue = sg.datasets.simulate_tissue(n_cells=200, n_genes=60, spots=100)
    >>> cells = tissue.cells
    >>> cells.obsm["X_gears"] = sg.metrics.canonical(tissue.truth.obsm["spatial"])  # or rec.to_adata(cells)
    >>> sg.tl.neighbors_by_type(cells, "cell_type", radius=None, n_permutations=100)
    >>> ax = sg.pl.neighbors_by_type(cells)
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('type of the neighbours', 'type of the cell')
    """
    table = slot(adata, "gears_neighbors", "sg.tl.neighbors_by_type(adata, labels)")["table"]
    ratio = matrix(table, "log2_ratio")
    n = len(ratio)
    side = min(1.6 + 0.19 * n, canvas.PAGE - 0.8)
    ax = canvas.axes_or_new(ax, width=side + 0.8, height=side)
    ends = max(float(np.percentile(np.abs(ratio.to_numpy()), 98)), 0.1)
    drawn = ax.imshow(ratio, cmap="RdBu_r", vmin=-ends, vmax=ends)
    row, column = np.nonzero(matrix(table, "pvalue_adj").to_numpy() < LEVEL)
    ax.scatter(column, row, s=10, color="black", linewidths=0)
    names = [canvas.shorten(str(name)) for name in ratio.index]
    ax.set_xticks(range(n), names, rotation=90, fontsize="small")
    ax.set_yticks(range(n), names, fontsize="small")
    for text in [*ax.get_xticklabels(), *ax.get_yticklabels()]:
        text.set_parse_math(False)
    ax.set_xlabel("type of the neighbours")
    ax.set_ylabel("type of the cell")
    ax.spines[:].set_visible(False)
    canvas.colorbar(
        ax,
        drawn,
        f"log2 of neighbours over chance (dot: adjusted P < {LEVEL})",
        ratio.to_numpy(),
        (-ends, ends),
    )
    canvas.set_title(ax, title)
    return ax


@canvas.for_paper
def mixing(table: pd.DataFrame, *, title: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw the mixing scores of one or several embeddings, one line per score, before to after.

    Parameters
    ----------
    table
        What ``sg.tl.mixing`` returned.
    title, ax
        As in :func:`reconstruction`.

    Returns
    -------
    Axes
        One line per column of ``obs`` and score, on it one dot per embedding.

    Examples
    --------
    >>> import anndata as ad, numpy as np, spatialgears as sg
    >>> adata = ad.AnnData(obs={"cohort": ["a", "b"] * 100})
    >>> adata.obsm["after"] = np.random.default_rng(0).normal(size=(200, 5))
    >>> adata.obsm["before"] = adata.obsm["after"] + 9 * (adata.obs["cohort"] == "a").to_numpy()[:, None]
    >>> ax = sg.pl.mixing(sg.tl.mixing(adata, "cohort", basis=["before", "after"]))
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['before', 'after']
    """
    scores = {
        "neighbour_entropy_balanced": "neighbour entropy (1: mixed)",
        "ilisi_balanced": "iLISI (1: mixed)",
        "probe": "kNN probe (0.5: mixed)",
    }
    rows = [(by, score) for by in table.index.unique("by") for score in scores]
    bases = list(table.index.unique("basis"))
    ax = canvas.axes_or_new(ax, width=5.2, height=0.9 + 0.24 * len(rows))
    for y, (by, score) in enumerate(rows):
        values = [float(table.loc[(basis, by), score]) for basis in bases]
        ax.plot([min(values), max(values)], [y, y], color=canvas.LIGHTEST_LINE, linewidth=2, zorder=1)
        ax.scatter(values, [y] * len(bases), c=list(SPACES[: len(bases)]), s=40, zorder=2)
    ax.set_yticks(range(len(rows)), [f"{canvas.shorten(str(by))}: {scores[score]}" for by, score in rows])
    for text in ax.get_yticklabels():
        text.set_parse_math(False)
    ax.set(xlim=(-0.03, 1.03), ylim=(len(rows) - 0.5, -0.5), xlabel="score (groups weigh the same)")
    canvas.swatches(ax, [str(basis) for basis in bases], SPACES[: len(bases)], title="embedding")
    canvas.plain(ax)
    canvas.set_title(ax, title)
    return ax
