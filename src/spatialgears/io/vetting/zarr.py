"""Zarr stores: no links out of the folder, nothing but files in it, and no codec that unpickles."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spatialgears.errors import InputError

#: Files that say how arrays are encoded.
METADATA = (".zarray", ".zgroup", ".zmetadata", "zarr.json")
#: Bytes of such a file.
MOST_METADATA = 64 * 2**20


def vet_zarr(folder: Path) -> None:
    """Refuse a store that reaches out of its folder, would hang, or holds pickles, whatever numcodecs is told to allow."""
    root = os.path.realpath(folder)
    folders = [root]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_symlink():
                    _refuse_link_out(entry.path, root)
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif not entry.is_file(follow_symlinks=False):
                    raise InputError(
                        f"{entry.path} is neither a file nor a folder.",
                        "A zarr store has nothing else: copy it again from where it comes from.",
                    )
                if entry.name in METADATA and entry.is_file():
                    _refuse_pickle(Path(entry.path))


def _refuse_link_out(path: str, root: str) -> None:
    target = os.path.realpath(path)
    if not (os.path.isfile(target) and os.path.commonpath([target, root]) == root):
        raise InputError(
            f"{path} is a symbolic link to {target}. Links out of a store, or to its folders, are not followed.",
            "If you trust it, copy the store with what its links point to: cp -rL.",
        )


def _refuse_pickle(path: Path) -> None:
    if path.stat().st_size > MOST_METADATA:
        raise InputError(f"{path} is too large to describe arrays.", "Write the store again with anndata.")
    for codec in _codecs(json.loads(path.read_bytes())):
        if "pickle" in codec.lower():
            raise InputError(
                f"{path} says that values are pickled ({codec}). Pickles can run code and are never read.",
                "If you trust it, write it again with anndata, which stores text as text.",
            )


def _codecs(found: Any) -> Iterator[str]:
    """Names of codecs anywhere in the description of arrays; attributes are no such description."""
    if isinstance(found, dict):
        yield from (found[key] for key in ("id", "name") if isinstance(found.get(key), str))
        for key, value in found.items():
            if key != "attributes" and not key.endswith(".zattrs"):
                yield from _codecs(value)
    elif isinstance(found, list):
        for value in found:
            yield from _codecs(value)
