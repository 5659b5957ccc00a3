"""The first section of the report: the check on cells by kept-out genes."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure

from spatialgears.pipeline.cell_check import CellCheck, Patterns
from spatialgears.plotting import canvas, palette
from spatialgears.report.content import Section

TITLE = "Do the cells show genes that the placing did not see?"
ABOUT = (
    "A seventh of the genes was masked at a time, all cells were placed by the other genes, and each spot's value of the "
    "masked genes was predicted from the cells placed nearest to it. This is a check on the cells themselves. Held-out "
    "spots check the model on spots, which differ from cells."
)


def kept_out(check: CellCheck | None, slides: list[str]) -> list[Section]:
    """The section, with three genes on a slide as measured and as predicted; none if there was no check."""
    if check is None:
        return []
    if not check.checked or check.patterns is None:
        return [Section(TITLE, check.words)]
    shown = check.patterns
    on = f" on {slides[shown.slide]}" if len(slides) > 1 else ""
    named = ", ".join(f"{gene} (r = {r:.2f})" for gene, r in zip(shown.genes, shown.r, strict=True))
    picture = f"The picture shows a well, a typically and a poorly predicted gene{on}: {named}."
    figures = {
        "kept-out genes": f"{check.n_genes:,}",
        "r, read from placed cells": f"{check.r:.2f} ± {check.se:.2f}",
        "direct mapping, no places": f"{check.reference:.2f}",
        "cells shuffled": f"{check.shuffled:.2f}",
        "allowed by noise": f"{check.ceiling:.2f}",
    }
    words = f"{check.words}\n\n{ABOUT}\n\n{picture}"
    alt = f"Measured and predicted patterns of {', '.join(shown.genes)}"
    return [Section(TITLE, words, _png(shown), alt, [figures])]


def _png(shown: Patterns) -> bytes:
    """Genes in columns; the slide above, the prediction below."""
    figure, stream = Figure(figsize=(9.0, 5.6), layout="constrained"), BytesIO()
    axes = figure.subplots(2, len(shown.genes), squeeze=False)
    for row, (name, values) in enumerate((("measured", shown.measured), ("predicted", shown.predicted))):
        for column, gene in enumerate(shown.genes):
            ax, one = axes[row, column], values[:, column].astype(float)
            low, high = palette.limits(one)
            size = canvas.point_size(ax, len(one))
            ax.scatter(
                *shown.coords.T, c=one, s=size, cmap=palette.CONTINUOUS, vmin=low, vmax=high, linewidths=0
            )
            canvas.equal_aspect(ax)
            ax.set_axis_off()
            ax.set_title(f"{gene}, {name}", fontsize="medium").set_parse_math(False)
    figure.savefig(stream, format="png", dpi=100)
    return stream.getvalue()
