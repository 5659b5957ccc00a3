"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from pandas.api.types import infer_dtype

from spatialgears.errors import InputError
from spatialgears.io import stored
from spatialgears.io.reading import renamed
from spatialgears.io.vetting import room_for
from spatialgears.io.vetting.hdf5 import vet_hdf5

if TYPE_CHECKING:
    from anndata import AnnData


def write_h5ad(adata: AnnData, path: str | Path) -> None:
    """Write a whole ``.h5ad`` or nothing: a temporary file in the same folder, then renamed over ``path``.

    ``adata`` is left as it is: strings are not made categorical in place, a backed object keeps its own file.

    Parameters
    ----------
    adata
        What to write; not modified.
    path
        The file; its folder is made if it is not there.

    Returns
    -------
    None
        The file is there, whole.

    Examples
    --------
    >>> import spatialgears as sg
    >>> sg.io.write_h5ad(cells, "cells.h5ad")  # doctest: +SKIP
    """
    from anndata import AnnData

    from spatialgears.runtime.files import atomic_path

    with stored.names_may_repeat():
        whole = adata.to_memory() if stored.on_disk(adata) else adata
    with atomic_path(path) as temporary, _writing(path):
        obs, var = plain_text(whole.obs), plain_text(whole.var)
        if obs is not whole.obs or var is not whole.var:
            raw = whole.raw and {
                "X": whole.raw.X,
                "var": plain_text(whole.raw.var),
                "varm": dict(whole.raw.varm),
            }
            rooms = ("obsm", "varm", "obsp", "varp", "layers", "uns")
            parts: dict[str, Any] = {room: dict(getattr(whole, room)) for room in rooms}
            with stored.names_may_repeat():
                whole = AnnData(whole.X, obs, var, raw=raw, **parts)
        stored.write_parts(whole, temporary)


def plain_text(frame: pd.DataFrame) -> pd.DataFrame:
    """The table, or a copy in which text with gaps, or of a type that ``.h5ad`` does not hold, is categories."""
    found = frame
    for name, column in frame.items():
        gaps = column.dtype == object and column.isna().any()
        if isinstance(column.dtype, pd.StringDtype) or (
            gaps and infer_dtype(column, skipna=True) == "string"
        ):
            found = found.copy() if found is frame else found
            found[name] = column.astype(object).astype("category")
    return found


@contextmanager
def _writing(path: str | Path) -> Iterator[None]:
    """Turn a writer's failure into an error of the disk, or one that names the file."""
    try:
        yield
    except (OSError, InputError):
        raise
    except Exception as error:
        told = str(error)
        if number := re.search(r"errno ?= ?(\d+)", told):  # HDF5 tells of the disk in words
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
        reason = told.splitlines()[0] if told else type(error).__name__
        where = "".join(f" ({note})" for note in getattr(error, "__notes__", ())[:1])
        raise InputError(
            f"{path} could not be written as an .h5ad file: {reason}{where}",
            "Remove or convert the part of the AnnData that is named here.",
        ) from error


#: Headers of the tables of labels that other programs import.
GROUPS = {"loupe": ("Barcode", None), "xenium": ("cell_id", "group")}


def write_groups(adata: AnnData, path: str | Path, column: str, *, style: str = "loupe") -> None:
    """Write labels of the cells as a table that Loupe Browser or Xenium Explorer imports.

    Parameters
    ----------
    adata
        Cells, named as in the program's own file.
    path
        The ``.csv`` file to write.
    column
        Column of ``obs`` with labels, such as ``"gears_domain"``. Cells without a label are left out.
    style
        "loupe": columns Barcode and the name of the column; "xenium": cell_id and group.

    Returns
    -------
    None
        The file is there, whole.

    Examples
    --------
    >>> sg.io.write_groups(cells, "regions.csv", "gears_layer")  # doctest: +SKIP
    """
    from spatialgears.runtime.files import write_atomic
    from spatialgears.text import listed, not_a_formula, similar_names

    if style not in GROUPS:
        raise InputError(f"There is no style {style!r}.", f"Choose one of {', '.join(GROUPS)}.")
    if column not in adata.obs:
        near = similar_names(column, adata.obs.columns)
        raise InputError(
            f"The cells have no column {column!r}; there are {listed(adata.obs.columns, 12)}.",
            f"Did you mean {near[0]!r}?" if near else "Name one of these.",
        )
    name, group = GROUPS[style]
    labels = adata.obs[column].dropna().map(lambda one: not_a_formula(str(one))).astype(object)
    table = pd.DataFrame(
        {name: [not_a_formula(str(cell)) for cell in labels.index], group or column: labels.to_numpy()}
    )
    write_atomic(path, table.to_csv(index=False))


def add_to_h5ad(
    added: AnnData,
    path: str | Path,
    *,
    source: str | Path,
    replacing: tuple[str, ...],
    digest: str | None = None,
) -> None:
    """Write a copy of a file or zarr folder with ``obs`` and the ``obsm``, ``obsp`` and ``uns`` entries of ``added``.

    Entries of ``obsm`` and ``uns`` that begin with one of ``replacing`` are left out. No matrix is read into memory whole.
    ``path`` is complete, or not there. Genes that ``added`` names by a column of ``var`` get these names; otherwise ``var``
    stays as it is, as where ``added`` has the genes of ``.raw``. A source whose fingerprint is not ``digest`` is refused.
    """
    from anndata.io import read_elem, write_elem

    from spatialgears.runtime.files import atomic_path, fingerprint

    source = Path(source)
    with atomic_path(path) as temporary, _writing(path):
        stored.copy_as_h5ad(source, temporary)
        if digest not in (None, fingerprint(temporary if source.is_file() else source)):
            raise InputError(
                f"{source} has changed since it was read; the positions are those of the cells it held then.",
                "Run again, so that the new file is read.",
            )
        vet_hdf5(temporary, room_for(temporary), backed=True)
        with stored.open_to_write(temporary, "r+") as file:
            held = read_elem(file["obs"]).index.astype(str)
            if len(held) != added.n_obs:
                raise InputError(
                    f"{source} holds {len(held):,} cells, and {added.n_obs:,} were placed.",
                    "Name the file they came from.",
                )
            if not held.equals(added.obs_names) and set(held) == set(added.obs_names):
                raise InputError(
                    f"{source} holds these cells in another order.",
                    "Write the cells themselves, without source=, or place them in the order of the file.",
                )
            write_elem(file, "obs", plain_text(added.obs))
            var, names = read_elem(file["var"]), np.asarray(added.var_names, str)
            if any(np.array_equal(names, column.astype(str)) for _, column in var.items()):
                write_elem(file, "var", plain_text(renamed(var, names)))
            for room in ("obsm", "uns"):
                for key in [key for key in file.get(room, ()) if key.startswith(replacing)]:
                    del file[room][key]
            for room in ("obsm", "obsp", "uns"):
                if room not in file:
                    write_elem(file, room, {})
                for key, value in getattr(added, room).items():
                    write_elem(file[room], key, value)
