"""``gears evaluate``: score predicted places against true ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from spatialgears.cli import output
from spatialgears.cli.options import Json
from spatialgears.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from anndata import AnnData

#: What to give instead of a file without any coordinates.
_WITH_PLACES = {
    "--key": "Give --pred the .h5ad that gears run (cells.h5ad) or gears reconstruct wrote.",
    "--truth-key": "Give --truth the cells with their true coordinates in .obsm.",
}


def evaluate(
    pred: Annotated[
        str,
        typer.Option(
            "--pred", metavar="PATH", help="Cells with predicted coordinates: cells.h5ad or places.csv."
        ),
    ],
    truth: Annotated[
        str,
        typer.Option(
            "--truth",
            metavar="PATH",
            help="The same cells with true coordinates: .h5ad, or a table of name, x, y.",
        ),
    ],
    key: Annotated[
        str, typer.Option("--key", metavar="KEY", help="Key of .obsm with the prediction.")
    ] = "X_gears",
    truth_key: Annotated[
        str, typer.Option("--truth-key", metavar="KEY", help="Key of .obsm with the truth.")
    ] = "spatial",
    neighbours: Annotated[
        int, typer.Option("--k", metavar="N", min=1, help="Neighbourhood size of local metrics.")
    ] = 20,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed, where points are sampled.")] = 0,
    as_json: Json = False,
) -> None:
    """Score predicted coordinates against the truth with every metric; cells are matched by name."""
    from spatialgears.metrics import evaluate as score

    predicted, true = _cells(pred, key), _cells(truth, truth_key)
    rows = _match(predicted, true, pred, truth)
    places = _points(predicted, key, pred, option="--key")
    known = _points(true, truth_key, truth, option="--truth-key")[rows]
    row = score(places, known, k=neighbours, seed=seed)
    if as_json:
        output.emit_json(row)
    else:
        _show(row)


def _cells(path: str, key: str) -> AnnData:
    """Cells with coordinates in ``obsm[key]``; a table has a name, x and y in each row, as places.csv does."""
    from pathlib import Path

    from anndata import AnnData

    from spatialgears.io import read
    from spatialgears.io.tables import is_table, read_coordinates
    from spatialgears.io.vetting import room_for

    file = Path(path).expanduser()
    if not is_table(file):
        return read(path, backed=True)
    frame = read_coordinates(file, room_for(file))
    frame.index = frame.index.str.replace(r"^'(?=[=+@-])", "", regex=True)  # as places.csv guards formulas
    return AnnData(obs=frame[[]], obsm={key: frame.to_numpy()})


def _show(row: dict[str, float]) -> None:
    from spatialgears.metrics.wording import MAIN, MORE

    counted = "a random part of them (--seed) was scored" if row["sampled"] else "all of them were scored"
    typer.echo(f"{row['n']:,.0f} cells; {counted}. ↑ higher is better, ↓ lower is better.")
    for title, metrics in (("The paper's table", MAIN), ("More", MORE)):
        rows = [
            [name, float(row[name]), "↑" if higher else "↓", asks]
            for name, (_, higher, asks) in metrics.items()
        ]
        output.table(title, ["metric", "value", "better", "what it measures"], rows)


def _points(adata: AnnData, key: str, name: str, *, option: str) -> np.ndarray:
    import numpy as np

    if key not in adata.obsm:
        there = ", ".join(map(repr, adata.obsm))
        raise InputError(
            f"{name}: expected coordinates in .obsm[{key!r}]; .obsm has {there or 'nothing'}.",
            f"Name one of these with {option}." if there else _WITH_PLACES[option],
        )
    try:
        return np.asarray(adata.obsm[key], dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: .obsm[{key!r}] must hold numbers: {error}.", "Name another key.") from None


def _match(predicted: AnnData, true: AnnData, pred: str, truth: str) -> np.ndarray:
    """For each predicted cell, its row in the truth (n,)."""
    for adata, name in ((predicted, pred), (true, truth)):
        if adata.obs_names.has_duplicates:
            again = adata.obs_names[adata.obs_names.duplicated()][0]
            raise InputError(
                f"{name}: names of cells repeat, e.g. {again}.", "Make them unique, the same in both."
            )
    rows = true.obs_names.get_indexer(predicted.obs_names)
    if (rows < 0).any():
        missing = predicted.obs_names[rows < 0]
        raise InputError(
            f"{truth}: {len(missing):,} of {predicted.n_obs:,} predicted cells are missing, "
            f"e.g. {missing[0]}; it has {true.obs_names[0]}, ...",
            "Use the same names of cells in both files.",
        )
    return rows
