"""One ``read`` for every format: the file is vetted first, and an error says what it holds instead."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from spatialgears.errors import InputError
from spatialgears.io import stored
from spatialgears.io.spatialdata import from_spatialdata, open_store
from spatialgears.io.tables import is_table, read_coordinates, read_counts
from spatialgears.io.tenx import (
    is_cell_ranger,
    is_matrix_folder,
    is_space_ranger,
    read_10x_h5,
    read_cell_ranger,
    read_matrix_folder,
    read_space_ranger,
)
from spatialgears.io.vetting import Room, room_for
from spatialgears.io.vetting.contents import weigh
from spatialgears.io.vetting.hdf5 import vet_hdf5
from spatialgears.io.vetting.zarr import vet_zarr
from spatialgears.text import listed

if TYPE_CHECKING:
    from anndata import AnnData


log = logging.getLogger(__name__)

FORMATS = (
    ".h5ad, .zarr (AnnData or SpatialData), 10x .h5, a folder with a 10x matrix.mtx, "
    "an output folder of Cell Ranger or Space Ranger, .csv or .tsv (also .gz) counts"
)
#: Folders by what they hold: how each is known, what it is, and what reads it.
FOLDERS: tuple[tuple[Callable[[Path], bool], str, Callable[[Path, Room], AnnData]], ...] = (
    (is_space_ranger, "a Space Ranger folder", read_space_ranger),
    (is_matrix_folder, "a 10x matrix folder", read_matrix_folder),
    (is_cell_ranger, "a Cell Ranger folder", read_cell_ranger),
)


def read(
    path: str | Path,
    *,
    layer: str | None = None,
    genes: str | None = None,
    coordinates: str | Path | Sequence[str] | None = None,
    table: str | None = None,
    transpose: bool = False,
    backed: bool = False,
) -> AnnData:
    """Read spots or cells from any of the supported formats.

    Parameters
    ----------
    path
        ``.h5ad``; ``.zarr`` (AnnData or SpatialData); a 10x ``.h5``; a folder with a 10x ``matrix.mtx``;
        an output folder of Cell Ranger or Space Ranger (spots in tissue only); ``.csv`` or ``.tsv`` counts, also gzipped.
    layer
        Take these values as ``.X``: a key of ``.layers``, or ``"raw"`` for ``.raw``.
    genes
        Column of ``.var`` to name genes by, e.g. ``"gene_ids"``.
    coordinates
        A table (barcode, x, y) on disk, or the names of two columns of ``.obs``.
    table
        Which table of a SpatialData store to take, where it has several.
    transpose
        The table of counts has genes in rows; other formats are read as they are. Found out by itself where
        ``coordinates`` is a table.
    backed
        Leave ``.X``, layers, ``.obsp`` and ``.raw`` of an ``.h5ad`` or ``.zarr`` on disk. Expression is read in parts when
        needed; ``.to_memory()`` reads everything. Has no effect on other formats, nor on a SpatialData table whose places
        are those of its shapes.

    Returns
    -------
    AnnData
        Coordinates, where known, in ``.obsm["spatial"]``. Sparse matrices stay sparse. With ``layer``, the other layers,
        ``.varm`` and ``.raw`` are left behind.

    Examples
    --------
    >>> import spatialgears as sg
    >>> slide = sg.read("visium/outs")  # doctest: +SKIP
    >>> cells = sg.read("cells.h5ad", layer="counts")  # doctest: +SKIP
    """
    path = _existing(path)
    positions = None
    if isinstance(coordinates, str | Path):
        coordinates = _existing(coordinates)
        room = room_for(coordinates)
        with room.held(), _reading(coordinates, "a table of coordinates"):
            positions = read_coordinates(coordinates, room)
    room = room_for(path)
    if is_table(path):
        with room.held(), _reading(path, "a table of counts"):
            adata = read_counts(
                path, room, transpose=transpose, names=None if positions is None else positions.index
            )
    else:
        with room.held():
            adata = _read_binary(path, room, table=table, backed=backed)
        with _reading(path, "what its name says"):
            from spatialgears.validate.counts import check_structure

            for matrix in _in_memory(adata):
                check_structure(matrix)
    if layer is not None:
        adata = take_layer(adata, layer, str(path))
    if genes is not None:
        if genes not in adata.var:
            raise InputError(
                f"{path}: .var has no column {genes!r}; it has {listed(adata.var.columns)}.",
                "Name one of these columns, or none to keep the names there are.",
            )
        adata.var = renamed(adata.var, adata.var[genes].astype(str).to_numpy())
    if positions is not None:
        where = f"{coordinates} (for {path}; it names {listed(positions.index, 3)})"
        _attach(adata, positions.reindex(adata.obs_names).to_numpy(), where)
    elif coordinates is not None and not isinstance(coordinates, str | Path):
        missing = [name for name in coordinates if name not in adata.obs]
        if missing or len(coordinates) != 2:
            raise InputError(
                f"{path}: expected two columns of .obs as coordinates, found {list(coordinates)}; "
                f".obs has {listed(adata.obs.columns)}.",
                "Name two of these columns, x first.",
            )
        _attach(adata, adata.obs[list(coordinates)].to_numpy(), str(path))
    return adata


def renamed(var: pd.DataFrame, names: np.ndarray) -> pd.DataFrame:
    """Genes by other names; those they had are a column, where none holds them yet."""
    before, found = np.asarray(var.index, str), var.set_axis(names)
    if not any(np.array_equal(before, column.astype(str)) for _, column in var.items()):
        called = next(
            name for name in (var.index.name, "gene_ids", "former_names") if name and name not in var
        )
        found[called] = before
    return found


def _in_memory(adata: AnnData) -> Iterator[Any]:
    """The matrices of expression that were read."""
    yield from () if adata.isbacked else (adata.X,)
    yield from adata.layers.values()
    if adata.raw is not None and not adata.isbacked:
        yield adata.raw.X


def _read_binary(path: Path, room: Room, *, table: str | None, backed: bool) -> AnnData:
    import anndata

    suffix = path.suffix.lower()
    if path.is_dir():
        if suffix == ".zarr" or any((path / name).exists() for name in (".zgroup", ".zattrs", "zarr.json")):
            with _reading(path, "a zarr store"):
                return _read_zarr(path, room, table, backed=backed)
        for fits, kind, reader in FOLDERS:
            if fits(path):
                with _reading(path, kind):
                    return reader(path, room)
    elif suffix == ".h5ad":
        with _reading(path, "an .h5ad file"):
            vet_hdf5(path, room, backed=backed)
            return _open_h5ad(path) if backed else anndata.read_h5ad(path)
    elif suffix == ".h5":
        with _reading(path, "a 10x .h5 file"):
            return read_10x_h5(path, room)
    elif path.name.endswith((".mtx", ".mtx.gz")):
        with _reading(path, "a 10x matrix folder"):
            return read_matrix_folder(path.parent, room, matrix=path)
    inside = list(path.iterdir()) if path.is_dir() else []
    below = [entry for entry in inside if is_space_ranger(entry) or is_matrix_folder(entry)]
    if len(below) == 1:
        raise InputError(f"{path} holds no data itself; {below[0]} does.", f"Name {below[0]} instead.")
    raise InputError(f"{path} is in no format that is known here; expected {FORMATS}.", _inside(path))


def _open_h5ad(path: Path) -> AnnData:
    import anndata
    import h5py

    file = h5py.File(path, "r")
    if stored.is_current(file):
        return stored.open_stored(file)
    file.close()
    return anndata.read_h5ad(path, backed="r")


def _open_zarr(path: Path, room: Room, *, backed: bool) -> AnnData:
    import anndata
    import zarr

    root = zarr.open_group(str(path), mode="r", use_consolidated=False)  # what is there, not what was
    if "obs" not in root or "var" not in root:
        raise InputError(
            f"{path} is a zarr store, but not a whole AnnData or SpatialData: it holds {listed(sorted(root))}.",
            "Write it again with anndata's write_zarr, or name the folder that holds obs and var.",
        )
    backed = backed and stored.is_current(root)
    weigh(root, room, backed=backed)
    stored.check_complete(root, path)
    return stored.open_stored(root) if backed else anndata.read_zarr(root)


def _read_zarr(path: Path, room: Room, table: str | None, *, backed: bool) -> AnnData:
    import zarr

    vet_zarr(path)
    store = zarr.open_group(str(path), mode="r", use_consolidated=False)
    group = next((name for name in ("tables", "table") if name in store and "obs" not in store), None)
    if group is None:
        return _open_zarr(path, room, backed=backed)
    names = sorted(entry.name for entry in (path / group).iterdir() if entry.is_dir())
    if table not in names if table else len(names) != 1:
        raise InputError(
            f"{path} is a SpatialData store with the tables {listed(names)}; "
            + (f"there is none called {table!r}." if table else "expected exactly one."),
            f"Choose one: read(path, table=...), or name it as a path: {path / group / names[0]}."
            if names
            else "Write it again with its tables.",
        )
    adata = _open_zarr(path / group / (table or names[0]), room, backed=backed)
    if not adata.uns.get("spatialdata_attrs") or ("spatial" in adata.obsm and not _has_images(store)):
        return adata
    if (
        "spatial" not in adata.obsm
    ):  # the table has no places of its own: they are those of the shapes it annotates
        return from_spatialdata(open_store(path), table=table or names[0])
    try:
        placed = from_spatialdata(open_store(path), table=table or names[0])
    except Exception as error:  # the spots are there, and only the image is not
        log.warning("the images of %s are left out: %s", path, error)
        return adata
    if "spatial" in placed.uns and np.allclose(adata.obsm["spatial"], placed.obsm["spatial"], rtol=1e-3):
        adata.uns["spatial"] = placed.uns["spatial"]
    return adata


def _has_images(store: Any) -> bool:
    return "images" in store and bool(list(store["images"])) and find_spec("spatialdata") is not None


def take_layer(adata: AnnData, layer: str | None, name: str) -> AnnData:
    """The same with a layer, or ``"raw"``, as ``.X``; an empty ``.X``, or a layer that is not there, is refused."""
    from anndata import AnnData

    from spatialgears.validate.counts import values_of

    values, var = values_of(adata, layer, name)
    if layer in (None, "X"):
        return adata
    rooms = ("obsm", "obsp", "uns")
    return AnnData(X=values, obs=adata.obs, var=var, **{room: dict(getattr(adata, room)) for room in rooms})


def _attach(adata: AnnData, coords: np.ndarray, where: str) -> None:
    given = pd.DataFrame(coords)
    coords = given.apply(pd.to_numeric, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    words = (np.isnan(coords) & given.notna().to_numpy()).any(axis=1)
    if words.any():
        raise InputError(
            f"{where}: coordinates must be numbers, found {given[words].iloc[0].tolist()} of {adata.obs_names[words][0]}.",
            "Name columns of numbers, written with decimal points.",
        )
    missing = adata.obs_names[np.isnan(coords).any(axis=1)]
    if len(missing):
        raise InputError(
            f"{where}: {len(missing):,} of {adata.n_obs:,} spots have no coordinates, "
            f"e.g. {listed(missing, 3)}.",
            "Use the same barcodes in both, or leave out the spots without a place."
            if len(missing) < adata.n_obs
            else "Use the same barcodes in both; endings such as -1 count. If these are genes, add --transpose.",
        )
    adata.obsm["spatial"] = coords


@contextmanager
def _reading(path: Path, kind: str) -> Iterator[None]:
    """Turn a reader's failure into an error that names the file; repeated names are judged by validation."""
    try:
        with stored.names_may_repeat():
            yield
    except (InputError, MemoryError):
        raise
    except ImportError as error:
        raise InputError(
            f"{path} is {kind}, and {error.name or 'a package'}, which reads it, is not installed.",
            "Run: pip install 'spatialgears[formats]'",
        ) from error
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        hint = "Is the file complete, and what its name says it is?"
        if re.search("memory allocation failed|out of memory", reason):  # as HDF5 and pandas say
            raise MemoryError from error
        if "truncated file" in reason:
            reason = "it ends too early, as after a copy or download that was broken off."
            hint = "Copy or download it again."
        elif "could not convert string" in reason:
            hint = "Leave only counts beside the names; columns of text, such as cell types, are not read from tables."
        elif told := _telltale(path):
            reason, hint = told
        raise InputError(f"{path} could not be read as {kind}: {reason}", hint) from error


def _telltale(path: Path) -> tuple[str, str] | None:
    """What the first bytes of a file say that is not what its name says, and what to do."""
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        head = file.read(512).lstrip()
    if not head:
        return "it is empty.", "Write, copy or download it again; was the disk full?"
    if head[:1] == b"<":
        return "it is a web page, as when a download asks to sign in.", "Download it again."
    if path.suffix.lower() in (".h5ad", ".h5") and not head.startswith(b"\x89HDF"):
        begins = head.splitlines()[0][:20].decode(errors="replace")
        return (
            f"it is not an HDF5 file; it begins with {begins!r}.",
            "Give it the ending of what it is (a table: .csv or .tsv), or name another file.",
        )
    return None


def _existing(path: str | Path) -> Path:
    try:
        path = Path(path).expanduser()
        if path.is_file() or path.is_dir():
            return path
        if path.exists():
            raise InputError(f"{path} is neither a file nor a folder.", "Write the data to a file first.")
        folder = next(parent for parent in path.absolute().parents if parent.is_dir())
    except InputError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # too long, an unknown user's home, a null byte
        raise InputError(f"{str(path)[:200]!r} is not a path: {error}.", "Check the path.") from None
    names = [entry.name for entry in folder.iterdir()] if folder == path.absolute().parent else []
    close = get_close_matches(path.name, names, n=1, cutoff=0.85)
    hint = f"Did you mean {path.with_name(close[0])}?" if close else "Check the path."
    raise InputError(f"There is no file or folder {path}.", f"{hint} {_inside(folder)}")


def _inside(path: Path) -> str:
    if not path.is_dir():
        known = {
            ".rds": "Convert it in R, for example with zellkonverter::writeH5AD (from Seurat: as.SingleCellExperiment first).",
            ".xlsx": "Save the sheet as .csv.",
            ".loom": "Convert it: anndata.io.read_loom(path).write_h5ad(...).",
        }
        advice = "Convert it, for example with anndata's write_h5ad; what its name ends in tells the format."
        return known.get(path.suffix.lower(), advice)
    names = sorted(entry.name for entry in path.iterdir() if not entry.name.startswith("."))
    return f"The folder {path} holds {listed(names) if names else 'nothing'}."
