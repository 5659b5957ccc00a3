"""Where results are kept: one JSON file per run, and layouts, so that an interrupted benchmark can continue."""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from spatialgears._version import __version__
from spatialgears.runtime.files import write_atomic

logger = logging.getLogger(__name__)

Row = dict[str, Any]


class Store:
    """A folder of rows (``rows/KEY.json``) and layouts (``layouts/KEY.npz``).

    A key is a digest of what determines a result: data, method with its options, seed. A run whose key exists is not
    repeated.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @staticmethod
    def key(*parts: Any) -> str:
        """A digest of parts that JSON can hold."""
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:20]

    def load(self, key: str) -> Row | None:
        """The row with that key, or None."""
        return _read(self.folder / "rows" / f"{key}.json")

    def save(self, row: Row, arrays: Mapping[str, np.ndarray] | None = None) -> None:
        """Write a row under ``row["key"]`` and its layouts; each file is complete or absent."""
        if arrays:
            buffer = io.BytesIO()
            small: dict[str, Any] = {name: np.asarray(x, dtype=np.float32) for name, x in arrays.items()}
            np.savez_compressed(buffer, **small)
            write_atomic(self.folder / "layouts" / f"{row['key']}.npz", buffer.getvalue())
        write_atomic(self.folder / "rows" / f"{row['key']}.json", json.dumps(row, indent=1) + "\n")

    def once(self, *parts: Any, make: Callable[[], Row]) -> Row:
        """The row kept under ``parts`` and the version; where there is none, it is made and kept."""
        key = self.key(*parts, __version__)
        row = self.load(key)
        if row is None:
            row = make()
            write_atomic(self.folder / "rows" / f"{key}.json", json.dumps(row, indent=1) + "\n")
        return row

    def rows(self) -> list[Row]:
        """All rows, oldest first."""
        rows = [row for path in sorted(self.folder.glob("rows/*.json")) if (row := _read(path)) is not None]
        return sorted(rows, key=lambda row: (row.get("started", ""), row.get("method", "")))

    def arrays(self, key: str) -> dict[str, np.ndarray]:
        """The layouts of a row; empty if there are none."""
        path = self.folder / "layouts" / f"{key}.npz"
        if not path.exists():
            return {}
        with np.load(path) as file:
            return {name: file[name] for name in file.files}


def _read(path: Path) -> Row | None:
    """A row; None where there is none, or what is there is damaged and has to be made again."""
    try:
        row = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        logger.warning("%s is damaged; its run is done again.", path)
        return None
    return row if isinstance(row, dict) else None
