"""AnnData left on disk, in HDF5 or zarr: tables are read, matrices stay there until a part of them is needed."""

from __future__ import annotations

import io
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy import sparse

from spatialgears.errors import InputError
from spatialgears.io.vetting.zarr import vet_zarr
from spatialgears.validate import counts

if TYPE_CHECKING:
    from anndata import AnnData

_SPARSE = ("csr_matrix", "csc_matrix")


def is_current(root: Any) -> bool:
    """Whether a store is one that :func:`open_stored` can open; those of anndata before 0.8 are not."""
    return root.attrs.get("encoding-type") == "anndata"


def open_stored(root: Any) -> AnnData:
    """The AnnData in an HDF5 file or zarr group, with ``X``, layers, ``obsp`` and ``raw.X`` left there."""
    from anndata import AnnData
    from anndata.io import read_elem

    read = {key: read_elem(root[key]) for key in ("obs", "var", "obsm", "varm", "varp", "uns") if key in root}
    left = {
        room: {key: _left(root[room][key]) for key in root[room]}
        for room in ("layers", "obsp")
        if room in root
    }
    if "raw" in root and root["raw"].attrs.get("encoding-type") == "raw":  # not "null"
        read["raw"] = {key: (_left if key == "X" else read_elem)(root["raw"][key]) for key in root["raw"]}
    return AnnData(X=_left(root["X"]) if "X" in root else None, **read, **left)


def _left(stored: Any) -> Any:
    """A matrix as something that reads a part of itself when it is indexed."""
    from anndata.io import read_elem, sparse_dataset

    kind = stored.attrs.get("encoding-type")
    if kind in _SPARSE:
        return sparse_dataset(stored)
    return stored if kind == "array" and stored.ndim == 2 else read_elem(stored)


def check_complete(root: Any, path: Path) -> None:
    """Refuse a zarr store that lacks chunks of sparse expression, which would be read as zeros."""
    layers = root.get("layers", {})
    for matrix in (*(root[key] for key in root if key == "X"), *(layers[key] for key in layers)):
        if matrix.attrs.get("encoding-type") not in _SPARSE:
            continue
        # chunks of zeros are not stored: there is none among values, and may be one among indices
        for name, spared in (("data", 0), ("indices", 1)):
            lost = matrix[name].nchunks - matrix[name].nchunks_initialized
            if lost > spared:
                raise InputError(
                    f"{path} is not complete: {lost:,} of {matrix[name].nchunks:,} chunks of {matrix.name}/{name} are missing.",
                    "Copy the folder again, or write it again with anndata's write_zarr.",
                )


def on_disk(adata: AnnData) -> bool:
    """Whether matrices of an AnnData are left on disk; those of a view are read when it is used."""
    if adata.isbacked or adata.is_view:
        return bool(adata.isbacked)
    matrices = (adata.X, *adata.layers.values(), *adata.obsp.values())
    return any(
        one is not None and not sparse.issparse(one) and not isinstance(one, np.ndarray) for one in matrices
    )


@contextmanager
def names_may_repeat() -> Iterator[None]:
    """Leave it to validation to judge names that repeat."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"(Variable|Observation) names are not unique")
        yield


def copied(adata: AnnData) -> AnnData:
    """A copy in memory, wherever the matrices are."""
    return adata.to_memory() if on_disk(adata) else adata.copy()


def source_of(adata: AnnData) -> Path | None:
    """The file or folder that an AnnData is left in; None if it is in memory, a view, or of no file of its own."""
    if adata.is_view or not on_disk(adata):
        return None
    if adata.isbacked:
        return Path(adata.filename)
    matrix = getattr(adata.X, "group", adata.X)
    if not re.fullmatch("/(X|raw/X|layers/.+)", getattr(matrix, "name", "")):
        return None
    if hasattr(matrix, "file"):
        return Path(matrix.file.filename)
    folder = getattr(matrix.store, "root", None)
    return Path(folder) if folder and Path(folder).is_dir() else None


def store_at(path: str | Path) -> Path | None:
    """The ``.h5ad`` file or ``.zarr`` folder at a path, if it is one that results can be added to a copy of."""
    path = Path(path).expanduser()
    try:
        if path.suffix.lower() == ".h5ad" and path.is_file():
            import h5py

            with h5py.File(path) as file:
                return path if is_current(file) else None
        if path.suffix.lower() == ".zarr" and path.is_dir():
            import zarr

            return path if is_current(zarr.open_group(str(path), mode="r", use_consolidated=False)) else None
    except (OSError, ValueError):
        return None
    return None


class _Patient(io.RawIOBase):
    """A file that keeps its failure for later: HDF5 ends the process if it is told of one.

    After the first failure nothing more is written.
    """

    def __init__(self, file: io.FileIO) -> None:
        self.error: OSError | None = None
        self._file = file

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        try:
            while len(left) and self.error is None:
                left = left[self._file.write(left) :]
        except OSError as error:
            self.error = error
        return len(data)

    def readinto(self, buffer: Any) -> int:
        found = self._file.readinto(buffer) or 0
        memoryview(buffer).cast("B")[found:] = bytes(len(buffer) - found)  # what was not written any more
        return len(buffer)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def truncate(self, size: int | None = None, /) -> int:
        try:
            return self._file.truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0


@contextmanager
def open_to_write(path: Path, mode: Literal["w", "r+"]) -> Iterator[Any]:
    """An HDF5 file to write to; a disk that is full is an OSError, once the file is closed."""
    import h5py

    with io.FileIO(path, "r+" if mode == "r+" else "w+") as file:
        patient = _Patient(file)
        try:
            with h5py.File(patient, mode) as opened:
                yield opened
        except Exception as error:
            if patient.error is not None:
                raise patient.error from error
            raise
        if patient.error is not None:
            raise patient.error


def write_parts(adata: AnnData, path: Path) -> None:
    """Write an AnnData in memory to an HDF5 file, packed."""
    from anndata.io import write_elem

    packed: dict[str, Any] = {"dataset_kwargs": {"compression": "gzip"}}
    with open_to_write(path, "w") as file:
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        for name in ("X", "raw", "obs", "var"):
            if getattr(adata, name) is not None:
                write_elem(file, name, getattr(adata, name), **packed)
        for name in ("obsm", "varm", "obsp", "varp", "layers", "uns"):
            write_elem(file, name, dict(getattr(adata, name)), **packed)


def copy_as_h5ad(source: Path, target: Path) -> None:
    """Copy a file as it is, or a zarr folder into HDF5, a part of a matrix at a time."""
    if source.is_file():
        shutil.copyfile(source, target)
        return
    import zarr

    vet_zarr(source)
    with open_to_write(target, "w") as file:
        _copy(zarr.open_group(str(source), mode="r", use_consolidated=False), file)


def _copy(source: Any, target: Any) -> None:
    from anndata.io import read_elem, write_elem

    target.attrs.update(source.attrs)
    for key in source:
        stored = source[key]
        kind = stored.attrs.get("encoding-type", "")
        if kind in ("dict", "raw", *_SPARSE):
            _copy(stored, target.create_group(key))
        elif kind in ("array", "") and stored.ndim and stored.dtype.kind in "biuf":
            packed = "gzip" if stored.size else None  # nothing cannot be packed
            made = target.create_dataset(key, stored.shape, stored.dtype, compression=packed)
            made.attrs.update(stored.attrs)
            step = max(1, counts.CHUNK_ENTRIES // max(1, int(np.prod(stored.shape[1:]))))
            for start in range(0, len(made), step):
                made[start : start + step] = stored[start : start + step]
        else:
            write_elem(target, key, read_elem(stored))
