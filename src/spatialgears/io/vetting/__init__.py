"""Files are vetted before they are read: nothing that reaches into other files, runs code, or unpacks beyond memory.

A module per format says what it refuses. :func:`room_for` is the measure they share.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spatialgears.errors import InputError
from spatialgears.runtime.memory import bounded, free_memory
from spatialgears.text import size

#: Bytes in memory that a file of any size may take, and how many times its own size beyond that. gzip packs a thousandfold at
#: most, counts some ten- to hundredfold.
SMALL, EXPANSION = 512 * 2**20, 150
#: Readers hold several copies on the way; of what is packed as densely as that, there is no room for them.
COPIES = 3


@dataclass(frozen=True)
class Room:
    """How much memory a file may take when it is read."""

    path: Path  # the file or folder
    stored: int  # its size on disk
    free: float  # bytes of memory that are free

    @property
    def most(self) -> float:
        """Bytes that its contents may unpack to."""
        return min(SMALL + EXPANSION * self.stored, self.free)

    def require(self, needed: float, what: str = "") -> None:
        """Refuse contents that unpack to more."""
        if needed <= self.most:
            return
        taken = f"{self.path} would take {size(needed)} of memory" + f" ({what})" * bool(what)
        if self.most == self.free:
            raise InputError(
                f"{taken}, and {size(self.free)} are free.",
                "Use a larger machine, or keep fewer cells, genes or layers in the file.",
            )
        raise InputError(
            f"{taken}, more than {EXPANSION} times its {size(self.stored)} on disk.",
            "Is the file what it should be? If it holds mostly zeros, write it again with sparse matrices.",
        )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Read within a bound on memory, whatever a file's own words about its size are."""
        most = min(self.most + (COPIES - 1) * SMALL, self.free)
        try:
            with bounded(most):
                yield
        except MemoryError as error:
            raise InputError(
                f"{self.path} would take more than {size(most)} of memory, for its {size(self.stored)} on disk.",
                "Is the file what it should be? If so, use a larger machine, or keep fewer cells, genes or layers in it.",
            ) from error


def room_for(path: Path) -> Room:
    """The memory that a file, or a folder's files together, may take."""
    files = path.rglob("*") if path.is_dir() else [path]
    return Room(path, sum(file.stat().st_size for file in files if file.is_file()), free_memory())
