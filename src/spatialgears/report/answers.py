"""Sections on optional analyses of a run: regions of cells, genes and cell types on the slide, two samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from spatialgears import plotting
from spatialgears.analysis import lookup
from spatialgears.analysis.answers import samples_of
from spatialgears.analysis.comparison import ALL
from spatialgears.analysis.transfer import NONE
from spatialgears.plotting import canvas, palette
from spatialgears.report.content import Section
from spatialgears.report.findings import drawn_section

if TYPE_CHECKING:
    from anndata import AnnData

    from spatialgears.analysis.answers import Answers
    from spatialgears.reconstruction import Reconstruction

PANELS = 6  # maps of genes or types in one picture
BELIEVED = 0.3  # score of a gene below which its map is not to be read


def sections(
    answers: Answers,
    placed: Reconstruction,
    cells: AnnData,
    slides: Sequence[AnnData],
    *,
    titles: Sequence[str],
    spatial_key: str,
) -> list[Section]:
    """A section for each question, the picture first."""
    slide, title = slides[answers.slide], titles[answers.slide]
    made = []
    column = answers.questions.regions
    if column is not None and column in slide.obs and lookup.slot(column) in placed.obs:
        made.append(_regions(placed, slide, column, title=title, spatial_key=spatial_key))
    if answers.imputed is not None:
        made.append(_genes(answers.imputed, slide, title=title))
    if answers.abundance is not None:
        made.append(_types(answers.abundance, slide, title=title))
    column, kinds = answers.questions.compare, answers.questions.types
    if answers.comparison is not None and column and kinds:
        coords = placed.on_slides()["X_gears_slide"].pose(placed.coords)
        at = pd.DataFrame({"x": coords[:, 0], "y": coords[:, 1], "type": lookup.labels(cells, kinds)})
        at["sample"] = samples_of(cells, column)
        spots = slide.obsm[spatial_key]
        made.append(_compared(answers.comparison, at[~placed.outside], spots, title=title, tissue=slide))
    return made


def _regions(placed: Reconstruction, slide: AnnData, column: str, *, title: str, spatial_key: str) -> Section:
    """Regions measured on the slide, beside those of the cells."""
    from anndata import AnnData

    found = pd.Series(placed.obs[lookup.slot(column)])
    coords = placed.on_slides()["X_gears_slide"].pose(placed.coords)
    cells = AnnData(
        obs=pd.DataFrame({column: found.to_numpy()}, placed.obs_names), obsm={spatial_key: coords}
    )
    labels = not pd.api.types.is_numeric_dtype(found)
    spots = AnnData(obs=slide.obs[[column]].copy(), obsm={spatial_key: slide.obsm[spatial_key]})
    rows, words = [], [f"Each cell's {column}, transferred from {title} by position and expression."]
    if labels:
        kinds = sorted({*map(str, spots.obs[column].dropna()), *map(str, found.dropna())} - {NONE})
        for one in (cells, spots):  # one colour for a region in both panels
            one.obs[column] = pd.Categorical(
                one.obs[column].astype(object).map(str, na_action="ignore"), kinds
            )
        probability = np.asarray(placed.obs[f"{lookup.slot(column)}_probability"], dtype=float)
        known = cells.obs[column].notna().to_numpy()
        words[0] += (
            f" {known.mean():.0%} of the cells have a region; for the others (grey) no region has a probability of one half. "
            f"The median probability is {np.median(probability[known]) if known.any() else 0:.2f}."
        )
        measured, given = (one.obs[column].value_counts(normalize=True) for one in (spots, cells))
        rows = [
            {
                column: kind,
                "Cells": int((cells.obs[column] == kind).sum()),
                "Share of cells": f"{given.get(kind, 0):.0%}",
                "Share of spots": f"{measured.get(kind, 0):.0%}",
            }
            for kind in kinds
        ]
    with rc_context(canvas.STYLE):
        figure = Figure(figsize=(canvas.PAGE, 3.0), layout="constrained", dpi=canvas.DPI)
        left, right = figure.subplots(1, 2)
        for ax, one, name in ((left, spots, f"{title}, measured"), (right, cells, "cells, predicted")):
            plotting.spots(one, column, slide=slide, spatial_key=spatial_key, title=name, ax=ax)
    if labels and left.get_legend() is not None:
        left.get_legend().remove()
    for text in right.get_legend().get_texts() if right.get_legend() is not None else ():
        text.set_text(text.get_text().replace("missing", NONE))
    return drawn_section("Regions", words, right, alt=f"{column} of spots and of cells", table=rows)


def _genes(found: AnnData, slide: AnnData, *, title: str) -> Section:
    """Maps of the genes, the best scored first."""
    order = found.var["score"].sort_values(ascending=False).index
    doubted = [str(gene) for gene in order if not found.var.loc[gene, "score"] >= BELIEVED]
    words = [
        f"Genes of the cells, predicted at the spots of {title}. The score is the correlation with the slide over spots: "
        "measured for genes on the slide, each predicted without using its own values there, and expected for other genes from "
        "equally well detected ones.",
    ]
    if doubted:
        words.append(f"Do not read the maps of {', '.join(doubted[:12])}: their score is below {BELIEVED}.")
    shown = list(order[:PANELS])
    names = [f"{gene} ({found.var.loc[gene, 'score']:.2f})" for gene in shown]
    rows = [
        {"Gene": gene, "Score": f"{row['score']:.2f}", "Score is": "measured" if row["measured"] else "expected",
         "Cells that show it": f"{row['detected']:.0%}"}
        for gene, row in found.var.loc[order].iterrows()
    ]  # fmt: skip
    ax = _panels(found, shown, names, slide)
    return drawn_section(
        "Genes on the slide", words, ax, alt="Predicted expression over the slide", table=rows
    )


def _types(found: AnnData, slide: AnnData, *, title: str) -> Section:
    """Maps of the commonest types."""
    share = pd.Series(found.layers["proportion"].mean(0), found.var_names).sort_values(ascending=False)
    width = found.layers["high"] - found.layers["low"]
    words = [
        f"Cells of each type at the spots of {title}: the types of the placed cells, summed where these lie. The interval "
        f"({found.uns['gears_abundance']['level']:.0%}) says how far the number at a spot may be off."
        + (f" Drawn are the {PANELS} commonest." if len(share) > PANELS else ""),
    ]
    rows = [
        {"Type": kind, "Mean share of a spot": f"{value:.1%}", "Cells per spot": f"{found[:, kind].X.mean():.2f}",
         "Mean width of the interval": f"{width[:, found.var_names.get_loc(kind)].mean():.2f}"}
        for kind, value in share.items()
    ]  # fmt: skip
    ax = _panels(found, list(share.index[:PANELS]), list(map(str, share.index[:PANELS])), slide)
    return drawn_section("Cell types on the slide", words, ax, alt="Cells per spot of each type", table=rows)


def _compared(
    table: pd.DataFrame, cells: pd.DataFrame, spots: np.ndarray, *, title: str, tissue: AnnData
) -> Section:
    """Where each type lies in two samples, those that differ first."""
    first, second = cells["sample"].cat.categories
    known = (
        table.drop(index=ALL)
        .dropna(subset="pvalue")
        .sort_values(["pvalue_adj", "distance"], ascending=[True, False])
    )
    differ = list(known.index[known["pvalue_adj"] < 0.05])
    words = [
        f"Do the cell types of {second} lie elsewhere on {title} than those of {first}? "
        + (f"Yes: {', '.join(differ)}." if differ else "No type does, beyond chance."),
        "P is that of a permutation test, adjusted for the number of types (Benjamini-Hochberg). It takes cells for "
        "independent, and says whether these two samples differ, not whether their conditions do. Lengths are in spot "
        "spacings, with 90% intervals.",
    ]
    if left := sorted(set(table.index) - {ALL} - set(known.index)):
        words.append(f"Too few cells in one of the samples to compare: {', '.join(left)}.")
    rows = [
        {"Type": kind, f"Cells, {first}": f"{row['n_first']:,.0f}", f"Cells, {second}": f"{row['n_second']:,.0f}",
         "Centre moved by": f"{row['moved']:.1f} ({row['low']:.1f} to {row['high']:.1f})",
         "Distance of the layouts": f"{row['distance']:.1f}", "Adjusted P": f"{row['pvalue_adj']:.3f}"}
        for kind, row in known.iterrows()
    ]  # fmt: skip
    if not rows:
        return Section("Two samples compared", "\n\n".join(words))
    shown = list(known.index[:3])
    with rc_context(canvas.STYLE):
        figure = Figure(figsize=(canvas.PAGE, 2.6), layout="constrained", dpi=canvas.DPI)
        axes = np.ravel(figure.subplots(1, len(shown), squeeze=False))
        for ax, kind in zip(axes, shown, strict=True):
            ax.scatter(*spots[:, :2].T, s=canvas.point_size(ax, len(spots)) / 4, c="#E4E4E4", linewidths=0)
            some = cells[cells["type"] == kind].sample(frac=1, random_state=0)  # neither sample lies on top
            colours = np.where(some["sample"] == first, *palette.CATEGORICAL[:2])
            ax.scatter(some["x"], some["y"], s=4, c=colours, linewidths=0)
            canvas.equal_aspect(ax)
            canvas.set_title(ax, f"{kind} (P {known.loc[kind, 'pvalue_adj']:.3f})")
            ax.set_axis_off()
            if "spatial" in tissue.uns:  # as in the image
                ax.invert_yaxis()
        for name, colour in zip((first, second), palette.CATEGORICAL, strict=False):
            axes[0].scatter([], [], s=8, color=colour, label=name)
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return drawn_section(
        "Two samples compared", words, axes[0], alt="Cells of each type in both samples", table=rows
    )


def _panels(found: AnnData, names: Sequence[Any], titles: Sequence[str], slide: AnnData) -> Any:
    """A map of each column, three beside each other."""
    columns = min(3, len(names))
    rows = -(-len(names) // columns)
    with rc_context(canvas.STYLE):
        figure = Figure(
            figsize=(canvas.PAGE if columns > 1 else canvas.COLUMN, 2.3 * rows),
            layout="constrained",
            dpi=canvas.DPI,
        )
        axes = np.ravel(figure.subplots(rows, columns, squeeze=False))
        for ax, name, title in zip(axes, names, titles, strict=False):
            plotting.spots(
                found, pd.Series(found[:, name].X.ravel(), found.obs_names), slide=slide, title=title, ax=ax
            )
            ax.set_axis_off()
        for ax in axes[len(names) :]:
            figure.delaxes(ax)
    return axes[0]
