"""Text, parquet and Matrix Market files: gzip that unpacks within reason, lines of a length, and sizes that can be true."""

from __future__ import annotations

import gzip
import io
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

from spatialgears.errors import InputError
from spatialgears.io.vetting import EXPANSION, SMALL, Room
from spatialgears.io.vetting.contents import STRING_BYTES
from spatialgears.text import size

#: Values in a line of a table.
MOST_COLUMNS = 1_000_000
#: Bytes of a line of a table.
MOST_LINE = 64 * 2**20
#: Bytes of the shortest entry of a Matrix Market file, and of an entry in memory.
LEAST_ENTRY, ENTRY_BYTES = 2, 16


class _Unpacked(io.RawIOBase):
    """The bytes of a file, unpacked if it is gzipped, as long as there are not too many of them."""

    def __init__(self, path: Path, room: Room, *, names: bool) -> None:
        self._stream: Any = (gzip.open if is_gzip(path) else open)(path, "rb")  # closed with this
        self._path, self._room, self._names, self._bytes, self._lines = path, room, names, 0, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        self._bytes += len(data)
        if self._bytes > most_text(self._path):
            raise InputError(
                f"{self._path} unpacks to more than {size(most_text(self._path))} from {size(self._path.stat().st_size)}.",
                "Is the file what it should be? If so, unpack it first: gunzip.",
            )
        if self._names:  # each line begins with one
            self._lines += data.count(b"\n")
            self._room.require(STRING_BYTES * self._lines, "its names")
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


def is_gzip(path: Path) -> bool:
    """Whether a file is gzipped, by its name."""
    return path.suffix.lower() == ".gz"


def most_text(path: Path) -> int:
    """Bytes that a file of text may unpack to."""
    stored = path.stat().st_size
    return SMALL + EXPANSION * stored if is_gzip(path) else stored


def open_text(path: Path, room: Room, *, names: bool = True) -> BinaryIO:
    """A file to read, unpacked within reason; ``names`` says that every line holds one, which takes memory."""
    if not path.is_file():  # a pipe would be waited for
        raise InputError(f"{path} is neither a file nor a folder.", "Write the data to a file first.")
    return io.BufferedReader(_Unpacked(path, room, names=names), 2**20)


def first_lines(path: Path, room: Room, count: int) -> list[str]:
    """The first lines of a table."""
    found = []
    with open_text(path, room) as stream:
        for _ in range(count):
            line = stream.readline(MOST_LINE)
            if len(line) == MOST_LINE and not line.endswith(b"\n"):
                raise InputError(
                    f"{path} has a line of more than {size(MOST_LINE)}.",
                    "Is it a table, with a row on each line?",
                )
            if line:
                found.append(line.decode("utf-8-sig"))
    return found


def require_columns(path: Path, columns: int) -> None:
    """Refuse a table that is wider than any reader can hold."""
    if columns > MOST_COLUMNS:
        raise InputError(
            f"{path} has {columns:,} columns; at most {MOST_COLUMNS:,} can be read from a table.",
            "Write the counts as .h5ad, sparse.",
        )


def vet_matrix_market(path: Path, room: Room, shape: tuple[int, int]) -> None:
    """Refuse a Matrix Market file whose header is not of this shape, or announces more entries than the file can hold."""
    from scipy.io import mminfo

    with closing(open_text(path, room, names=False)) as stream:
        rows, columns, entries, *_ = mminfo(stream)
    if (rows, columns) != shape:
        raise InputError(
            f"{path} holds {rows:,} features of {columns:,} barcodes, the tables beside it {shape[0]:,} and {shape[1]:,}.",
            "Take the three files from one run.",
        )
    if entries > rows * columns or entries * LEAST_ENTRY > most_text(path):
        raise InputError(
            f"{path} announces {entries:,} entries, more than there is room for in the file.",
            "Copy or download it again.",
        )
    room.require(entries * ENTRY_BYTES, "the matrix")


def vet_parquet(path: Path, room: Room) -> None:
    """Refuse a parquet table that declares more values than fit in memory."""
    from pyarrow.parquet import read_metadata

    found = read_metadata(path)
    unpacked = sum(found.row_group(i).total_byte_size for i in range(found.num_row_groups))
    room.require(max(unpacked, found.num_rows * found.num_columns * 8), "the table")
