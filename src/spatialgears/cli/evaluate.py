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


def evaluate(
    pred: Annotated[str, typer.Option("--pred", metavar="PATH", help="Cells with predicted coordinates.")],
    truth: Annotated[
        str, typer.Option("--truth", metavar="PATH", help="The same cells with true coordinates.")
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
    from spatialgears.io import read
    from spatialgears.metrics import evaluate as score

    predicted, true = read(pred, backed=True), read(truth, backed=True)
    rows = _match(predicted, true, pred, truth)
    row = score(_points(predicted, key, pred), _points(true, truth_key, truth)[rows], k=neighbours, seed=seed)
    if as_json:
        output.emit_json(row)
    else:
        output.table(
            f"{predicted.n_obs:,} cells", ["metric", "value"], [[name, float(row[name])] for name in row]
        )


def _points(adata: AnnData, key: str, name: str) -> np.ndarray:
    import numpy as np

    if key not in adata.obsm:
        raise InputError(
            f"{name}: expected coordinates in .obsm[{key!r}]; "
            f".obsm has {', '.join(map(repr, adata.obsm)) or 'nothing'}.",
            "Name one of these with --key (for the prediction) or --truth-key (for the truth).",
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
