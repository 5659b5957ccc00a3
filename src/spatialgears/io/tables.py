"""Counts and coordinates as text tables (CSV or TSV, also gzipped)."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import sparse

from spatialgears.errors import InputError
from spatialgears.io.vetting import Room
from spatialgears.io.vetting.tables import first_lines, open_text, require_columns, vet_parquet
from spatialgears.validate.coordinates import named_pair

if TYPE_CHECKING:
    from anndata import AnnData

#: Rows, and values, of a counts table held dense at one time.
CHUNK, CHUNK_VALUES = 1000, 2 * 10**7

POSITIONS = ["barcode", "in_tissue", "array_row", "array_col", "pxl_row_in_fullres", "pxl_col_in_fullres"]


def is_table(path: Path) -> bool:
    """Whether the name of the file is that of a text table."""
    return path.is_file() and path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv", ".txt"))


def read_counts(path: Path, room: Room, *, transpose: bool, names: pd.Index | None) -> AnnData:
    """A table of counts as sparse AnnData; ``names`` of spots or cells, where known, tell rows from columns."""
    from anndata import AnnData

    separator, lines = _head(path, room)
    if len(lines) < 2 or len(lines[1]) < 2:
        raise InputError(
            f"{path}: expected a header and rows of a name and counts, separated by commas, tabs or semicolons; it begins "
            f"with {' / '.join(' '.join(line)[:40] for line in lines) or 'nothing'}.",
            "Write it with one of these between the values.",
        )
    columns = lines[0][-(len(lines[1]) - 1) :]  # the header may lack the corner, as R writes it
    require_columns(path, len(lines[1]))
    rows: list[str] = []
    blocks = []
    options = {"sep": separator, "header": None, "skiprows": 1, "converters": {0: str}}
    step = max(1, min(CHUNK, CHUNK_VALUES // len(columns)))
    with open_text(path, room) as stream, pd.read_csv(stream, chunksize=step, **options) as chunks:
        for chunk in chunks:
            rows.extend(chunk[0])
            blocks.append(sparse.csr_matrix(chunk.iloc[:, 1:].to_numpy(np.float32)))
    counts = sparse.vstack(blocks, format="csr")
    if names is not None:
        transpose = len(names.intersection(columns)) > len(names.intersection(rows))
    if transpose:
        counts, rows, columns = counts.T.tocsr(), columns, rows
    return AnnData(counts, obs=pd.DataFrame(index=rows), var=pd.DataFrame(index=columns))


def read_coordinates(path: Path, room: Room) -> pd.DataFrame:
    """A table of names, x and y; columns are found by their names, or are the only two with numbers."""
    if path.suffix.lower() == ".parquet":
        frame = _read_parquet(path, room)
    else:
        separator, lines = _head(path, room)
        bare = len(lines) > 0 and all(_is_number(value) for value in lines[0][1:])
        corner = len(lines) == 2 and len(lines[1]) == len(lines[0]) + 1  # the header lacks it, as R writes it
        with open_text(path, room) as stream:
            frame = pd.read_csv(
                stream,
                sep=separator,
                header=None if bare else 0,
                names=["name", *lines[0]] if corner else None,
                converters={0: str},
                index_col=False,
            )
        if bare and frame.shape[1] == len(POSITIONS):
            frame.columns = POSITIONS
    frame = frame.set_index(frame.columns[0])
    frame.index = frame.index.astype(str)
    if frame.index.has_duplicates:
        again = frame.index[frame.index.duplicated()]
        if pd.to_numeric(pd.Series(again), errors="coerce").notna().all():
            raise InputError(
                f"{path}: the first column should name the spots, and holds numbers, e.g. {again[0]} twice.",
                "Write a table of barcode, x, y.",
            )
        raise InputError(
            f"{path}: {len(again):,} names occur twice, e.g. {again[0]}.", "Give each one place."
        )
    return frame[_xy(frame, path)].set_axis(["x", "y"], axis=1)


def read_positions(path: Path, room: Room) -> pd.DataFrame:
    """Space Ranger's positions of spots: CSV with a header (from 2.0) or without, parquet (Visium HD)."""
    if path.suffix.lower() == ".parquet":
        frame = _read_parquet(path, room)
    else:
        _, lines = _head(path, room)
        bare = "barcode" not in lines[0]
        with open_text(path, room) as stream:
            frame = pd.read_csv(stream, header=None if bare else 0, names=POSITIONS if bare else None)
    lacking = [name for name in POSITIONS if name not in frame]
    if lacking:
        raise InputError(
            f"{path}: expected the columns {', '.join(POSITIONS)}; {', '.join(lacking)} are missing.",
            "Use the file as Space Ranger wrote it.",
        )
    return frame.set_index(frame["barcode"].astype(str))


def _read_parquet(path: Path, room: Room) -> pd.DataFrame:
    vet_parquet(path, room)
    return pd.read_parquet(path)


def _head(path: Path, room: Room) -> tuple[str, list[list[str]]]:
    """The separator and the fields of the first two lines."""
    lines = first_lines(path, room, 2)
    separator = max(",\t;", key=lines[0].count) if lines else ","
    require_columns(path, max((line.count(separator) for line in lines), default=0))
    return separator, list(csv.reader(lines, delimiter=separator))


def _xy(frame: pd.DataFrame, path: Path) -> list[str]:
    if pair := named_pair(frame):
        return pair
    numeric = [name for name in frame.select_dtypes("number") if name not in POSITIONS]
    if len(numeric) != 2:
        raise InputError(
            f"{path}: expected a column of names, then x and y; found {', '.join(map(str, frame.columns))}.",
            "Name the two columns with coordinates x and y.",
        )
    return numeric


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
