"""HDF5 files (``.h5ad``, 10x ``.h5``): no links to other files, no storage in them, and no more than fits in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spatialgears.errors import InputError
from spatialgears.io.vetting import Room
from spatialgears.io.vetting.contents import address, require_few, weigh


def vet_hdf5(path: Path, room: Room, *, backed: bool = False) -> None:
    """Refuse a file that reaches into others or does not fit in memory.

    With ``backed``, matrices stay on disk and need not fit.
    """
    import h5py

    with h5py.File(path, "r") as file:
        _refuse_links_out(file, path)
        weigh(file, room, backed=backed)


def _refuse_links_out(file: Any, path: Path) -> None:
    """Walk the file by hard links alone, so that no other file is opened, and refuse what points to one.

    Soft links lead along the links of the same file, all of which are looked at.
    """
    import h5py

    seen, groups, count = {address(file)}, [file], 0
    while groups:
        group = groups.pop()
        for name in group:
            count += 1
            require_few(count, path)
            where = f"{group.name.rstrip('/')}/{name}"
            try:
                link = group.get(name, getlink=True)
            except TypeError:  # a kind of link that only a program of its own can follow
                raise _reaches_out(path, where, "is a link of an unknown kind") from None
            if isinstance(link, h5py.ExternalLink):
                raise _reaches_out(path, where, f"is a link to another file ({link.filename})")
            if isinstance(link, h5py.SoftLink):
                continue
            one = group[name]
            if isinstance(one, h5py.Dataset):
                if one.external:
                    raise _reaches_out(
                        path, where, f"keeps its values in another file ({one.external[0][0]})"
                    )
                if one.is_virtual:
                    raise _reaches_out(path, where, "is a virtual dataset, made of others")
            elif isinstance(one, h5py.Group) and (place := address(one)) not in seen:
                seen.add(place)
                groups.append(one)


def _reaches_out(path: Path, where: str, how: str) -> InputError:
    return InputError(
        f"{path}: {where} {how}. Files that reach into others are not read.",
        "If you trust it, write it again with everything inside: anndata.read_h5ad(path).write_h5ad(another_path).",
    )
