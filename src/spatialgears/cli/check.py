"""``gears check``: errors in the inputs, warnings about them, and what a run will cost."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from spatialgears.cli import options, output
from spatialgears.text import duration, plain, size

if TYPE_CHECKING:
    from spatialgears.check import CheckReport


def check(
    st: options.St,
    sc: options.Sc = None,
    donor: options.Donor = None,
    cells_from: options.From = None,
    layer: options.Layer = None,
    sc_layer: options.ScLayer = None,
    st_genes: options.StGenes = None,
    sc_genes: options.ScGenes = None,
    coordinates: options.Coordinates = None,
    split: options.Split = None,
    spatial_key: options.SpatialKey = "spatial",
    transpose: options.Transpose = False,
    normalised: options.Normalised = False,
    preset: options.Preset = None,
    config: options.ConfigFile = None,
    assignments: options.Set = None,
    as_json: options.Json = False,
) -> None:
    """Report on slides and cells: counts, genes, depth, overlap, warnings, time and memory of a run."""
    settings, whose = options.load_config(preset, config, assignments), options.cells_from(cells_from)
    how = options.Reading(
        layer, sc_layer, st_genes, sc_genes, coordinates, transpose, split, spatial_key, donor
    )
    inputs = options.read_inputs(st, sc, how, backed=True)
    from spatialgears.check import check_inputs  # after reading: a wrong path is refused at once

    report = check_inputs(
        inputs.slides,
        inputs.cells,
        config=settings,
        names=inputs.names,
        spatial_key=spatial_key,
        normalised=normalised,
        donors=inputs.donors,
        cells_from=whose,
    )
    if as_json:
        output.emit_json(report.to_dict())
    else:
        _show(report)


def _show(report: CheckReport) -> None:
    everything = [*report.slides, *([report.cells] if report.cells else [])]
    values = "counts" if report.kind == "counts" else "values"
    output.table(
        f"Inputs (medians of {values} and genes are of the genes in every input)",
        ["input", "what", "n", "genes", f"{values} each", "genes each", "empty", "spacing"],
        [
            [one.name, "cells" if one is report.cells else "spots", *list(asdict(one).values())[1:]]
            for one in everything
        ],
    )
    ratio = report.depth_ratio
    figures = {
        "depth_ratio": None if ratio is None else f"{ratio:.1f} to 1",
        "agreement": report.agreement,
        "coexpression": report.coexpression,
    }
    shown = {name: f"- ({report.unknown[name]})" if one is None else one for name, one in figures.items()}
    output.lines(
        "Together",
        {
            "donors": report.donors.words,
            "values": report.kind,
            "genes in every input": report.shared_genes,
            "genes used at most": report.panel_genes,
            "genes that vary in space": report.spatial_genes,
            "genes of the cells alone that help": report.other_genes,
            "depth, spot to cell": shown["depth_ratio"],
            "agreement of mean expression": shown["agreement"],
            "agreement of co-expression": shown["coexpression"],
        },
    )
    output.lines(
        "A run will take about",
        {"time": duration(report.cost.seconds), "memory": size(report.cost.peak_bytes)},
    )
    typer.echo(
        plain("\n".join(["Warnings", *(f"  - {text}" for text in report.warnings)]))
        if report.warnings
        else "No warnings."
    )
