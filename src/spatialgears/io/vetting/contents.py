"""What an HDF5 file or zarr group declares to hold: within memory, and in a number of parts that can be read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spatialgears.errors import InputError
from spatialgears.io.vetting import Room

#: Groups and arrays in a file, links to one of them counted each.
MOST_MEMBERS = 100_000
#: Chunks that an array may have however small the file is, and bytes of the file for each further one.
FEW_CHUNKS, CHUNK_BYTES = 100_000, 64
#: Bytes of a string in memory beside its text.
STRING_BYTES = 100
#: Where the matrices are that stay on disk in a store that is not read whole.
MATRICES = ("X/", "layers/", "obsp/", "raw/X/")


def weigh(root: Any, room: Room, *, backed: bool = False) -> None:
    """Refuse a group that declares more values, or chunks, than a file of its size can plausibly hold, or memory can.

    With ``backed``, matrices stay on disk and need not fit. Nothing but names, shapes and types is read.
    """
    total = 0.0
    for count, (name, one) in enumerate(_members(root, room.path), start=1):
        require_few(count, room.path)
        if getattr(one, "shape", None) is None:  # a group, or nothing
            continue
        each = _bytes_of(one.dtype)
        chunk = getattr(one, "shards", None) or one.chunks
        if chunk:
            room.require(math.prod(chunk) * each, f"one chunk of {name}")
            chunks = math.prod(-(-n // max(1, step)) for n, step in zip(one.shape, chunk, strict=True))
            if chunks > FEW_CHUNKS + room.stored // CHUNK_BYTES:
                raise InputError(
                    f"{room.path}: {name} has {chunks:,} chunks, too many for a file of its size.",
                    "Is the file what it should be? Write it again with anndata.",
                )
        if not (backed and f"{name}/".startswith(MATRICES) and not name.endswith("/indptr")):
            total += math.prod(one.shape) * each
            room.require(total, f"up to {name}")


def require_few(count: int, path: Path) -> None:
    """Refuse a file with too many members to look at."""
    if count > MOST_MEMBERS:
        raise InputError(
            f"{path} holds more than {MOST_MEMBERS:,} groups and arrays.",
            "Is the file what it should be? Keep less in .uns.",
        )


def address(one: Any) -> int | None:
    """What tells an object of an HDF5 file from the others, by whatever name; None in a zarr store."""
    if not hasattr(one, "file"):
        return None
    import h5py

    return int(h5py.h5o.get_info(one.id).addr)


def _members(
    group: Any, path: Path, name: str = "", above: tuple[Any, ...] = ()
) -> Iterator[tuple[str, Any]]:
    """Everything below a group, with its name; a group inside itself is refused."""
    own = address(group)
    if own is not None and own in above:
        raise InputError(
            f"{path}: {name} is a link to a group that it lies in.",
            "Is the file what it should be? Write it again with anndata.",
        )
    for key in group:
        where, one = f"{name}/{key}".lstrip("/"), group.get(key)
        if one is None:  # a link to nothing
            continue
        yield where, one
        if hasattr(one, "keys"):
            yield from _members(one, path, where, (*above, own))


def _bytes_of(dtype: Any) -> int:
    """Bytes that a value takes in memory."""
    parts = [dtype[name] for name in dtype.names or ()]
    return int(dtype.itemsize) + STRING_BYTES * sum(part.kind in "OSUT" for part in (dtype, *parts))
