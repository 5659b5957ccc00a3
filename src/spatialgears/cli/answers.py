"""``gears transfer``, ``impute``, ``abundance`` and ``export``: optional analyses of a finished run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spatialgears.cli import options, output
from spatialgears.errors import InputError

if TYPE_CHECKING:
    from anndata import AnnData

Placed = Annotated[
    str, typer.Option("--cells", metavar="FILE", help="Placed cells: the cells.h5ad that gears run wrote.")
]
Slide = Annotated[
    str, typer.Option("--st", metavar="PATH", help="The slide; also one that the model was not fitted on.")
]
Table = Annotated[
    Path,
    typer.Option(
        "--output", "--out", "-o", metavar="FILE", help="The file to write: .h5ad, or .csv for a table."
    ),
]


def transfer(
    cells: Placed,
    st: Slide,
    key: Annotated[str, typer.Option("--key", metavar="COLUMN", help="Column of the slide's .obs.")],
    out: Table,
    least: Annotated[
        float,
        typer.Option(
            "--least", min=0, max=1, metavar="P", help="Probability below which a cell gets no label."
        ),
    ] = 0.5,
    layer: options.Layer = None,
    coordinates: options.Coordinates = None,
    spatial_key: options.SpatialKey = "spatial",
    overwrite: options.Overwrite = False,
) -> None:
    """Give cells the regions or layers of a slide, with probabilities; numbers with their spread."""
    from spatialgears.analysis import lookup
    from spatialgears.analysis import transfer as transfer_labels

    placed, slide, basis = _read(cells, st, out, layer, coordinates, spatial_key, overwrite=overwrite)
    before = set(placed.obs)
    transfer_labels(placed, slide, key, least=least, basis=basis, spatial_key=spatial_key)
    added = placed.obs[
        [name for name in placed.obs if name not in before or name.startswith(lookup.slot(key))]
    ]
    _write(out, placed, lambda: added.rename_axis("cell"))
    found = added.iloc[:, 0]
    if hasattr(found, "cat"):
        counts = found.value_counts()
        output.table(f"Cells by {key}", [key, "cells"], [[str(name), int(n)] for name, n in counts.items()])
    typer.echo(f"The result is in {out}")


def impute(
    cells: Placed,
    st: Slide,
    out: Table,
    genes: Annotated[
        list[str] | None,
        typer.Option("--genes", metavar="GENE,...", help="Genes of the cells; repeatable. Default: all."),
    ] = None,
    layer: options.Layer = None,
    coordinates: options.Coordinates = None,
    spatial_key: options.SpatialKey = "spatial",
    overwrite: options.Overwrite = False,
) -> None:
    """Predict genes of the cells at the spots of a slide, each with a score that says how far to trust it."""
    from spatialgears.analysis import impute as impute_genes

    placed, slide, basis = _read(cells, st, out, layer, coordinates, spatial_key, overwrite=overwrite)
    found = impute_genes(
        placed, slide, options.gene_list(genes) or None, basis=basis, spatial_key=spatial_key
    )
    _write_spots(out, found)
    table = found.var.sort_values("score", ascending=False)[:20]
    rows = [
        [str(name), float(row["score"]), "measured" if row["measured"] else "expected"]
        for name, row in table.iterrows()
    ]
    output.table("Correlation with the slide over spots, the best first", ["gene", "score", "score is"], rows)
    typer.echo(f"The genes at the spots are in {out}")


def abundance(
    cells: Placed,
    st: Slide,
    out: Table,
    types: Annotated[
        str, typer.Option("--types", metavar="COLUMN", help="Column of the cells' .obs with types.")
    ] = "cell_type",
    cells_per_spot: Annotated[
        str | None,
        typer.Option(
            "--cells-per-spot",
            metavar="N|COLUMN",
            help="Known totals: a number, or a column of the slide's .obs.",
        ),
    ] = None,
    layer: options.Layer = None,
    coordinates: options.Coordinates = None,
    spatial_key: options.SpatialKey = "spatial",
    overwrite: options.Overwrite = False,
) -> None:
    """Count the cells of each type at the spots of a slide, with intervals."""
    from spatialgears.analysis import abundance as count_types

    placed, slide, basis = _read(cells, st, out, layer, coordinates, spatial_key, overwrite=overwrite)
    found = count_types(
        placed, slide, types, cells_per_spot=_totals(cells_per_spot), basis=basis, spatial_key=spatial_key
    )
    _write_spots(out, found)
    mean = found.layers["proportion"].mean(0)
    rows = [
        [str(name), float(share)]
        for name, share in sorted(zip(found.var_names, mean, strict=True), key=lambda x: -x[1])
    ]
    output.table("Mean share of a spot", [types, "share"], rows)
    typer.echo(f"The types at the spots are in {out}")


def export(
    cells: Placed,
    column: Annotated[
        str,
        typer.Option(
            "--column", metavar="COLUMN", help="Column of the cells' .obs: gears_domain, gears_layer, ..."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--output", "--out", "-o", metavar="FILE", help="The .csv file to write.")
    ],
    to: Annotated[str, typer.Option("--to", metavar="loupe|xenium", help="Who reads it.")] = "loupe",
    overwrite: options.Overwrite = False,
) -> None:
    """Write a column of labels for Loupe Browser or Xenium Explorer."""
    options.check_paths([cells])
    options.require_output(out, [".csv"], [cells], overwrite=overwrite)
    from spatialgears.io import read, write_groups

    write_groups(read(cells, backed=True), out, column, style=to)
    typer.echo(f"The groups are in {out}")


def _read(
    cells: str,
    st: str,
    out: Path,
    layer: str | None,
    coordinates: list[str] | None,
    spatial_key: str,
    *,
    overwrite: bool,
) -> tuple[AnnData, AnnData, str | None]:
    """Placed cells, the slide, and the key of the cells' places on it, where a run has laid them there."""
    options.check_paths([cells, st])
    options.require_output(out, [".h5ad", ".csv"], [cells, st], overwrite=overwrite)
    from spatialgears.analysis.lookup import slide_key
    from spatialgears.io import read

    placed = read(cells)
    if "X_gears" not in placed.obsm:
        raise InputError(
            f"{cells}: expected placed cells with obsm['X_gears']; obsm has {', '.join(map(repr, placed.obsm)) or 'nothing'}.",
            "Give the cells.h5ad that gears run or gears reconstruct wrote.",
        )
    slide = options.read_inputs([st], None, options.Reading(layer=layer, coordinates=coordinates)).slides[0]
    try:
        key = slide_key(placed, slide, spatial_key=spatial_key)
        basis = key if key in placed.obsm else None
    except InputError:  # another slide: the cells are registered
        basis = None
    return placed, slide, basis


def _totals(text: str | None) -> Any:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def _write(out: Path, adata: AnnData, table: Callable[[], Any]) -> None:
    """The AnnData, or for a .csv file the table, which is made only then."""
    from spatialgears.io import write_h5ad
    from spatialgears.runtime.files import write_atomic
    from spatialgears.text import not_a_formula

    if out.suffix == ".csv":
        frame = table()
        frame.index = frame.index.map(lambda name: not_a_formula(str(name)))
        write_atomic(out, frame.to_csv())
    else:
        write_h5ad(adata, out)


def _write_spots(out: Path, found: AnnData) -> None:
    """Spots with values: an AnnData, or a table of spot, x, y and a column each."""
    found.uns.setdefault("gears", {"of": "spots"})

    def table() -> Any:
        frame = found.to_df()
        for i, name in enumerate("xy"):
            frame.insert(i, name, found.obsm["spatial"][:, i])
        return frame.rename_axis("spot")

    _write(out, found, table)
