"""Inputs made to harm: read right or refused with advice, in little memory, and no file but the output is touched.

Every case makes one input. The fast tests read some of them; the slow one gives each to `gears run`, in a process of its own.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import sys
import time
import warnings
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import zarr
from scipy import sparse

from spatialgears.errors import InputError
from spatialgears.io import read
from spatialgears.runtime.files import fingerprint

SECRET = "the private words"
GIB = 2**30
PARTS = 4  # in which the long form may be run: -k "ends_well and 0"
#: By name: makes an input in a folder, from clean ones (``base``), and gives its path.
CASES: dict[str, Callable[[Path, SimpleNamespace], Path]] = {}


def case(name: str, *values):
    """Register a case, or one for each of some values."""

    def register(make):
        if not values:
            CASES[name] = make
        for value in values:
            label = (
                value
                if isinstance(value, str)
                else "-".join(map(str, value))
                if isinstance(value, tuple)
                else value
            )
            CASES[f"{name}: {label}"] = partial(make, *(value if isinstance(value, tuple) else (value,)))
        return make

    return register


@pytest.fixture(scope="session")
def base(small_tissue, tmp_path_factory) -> SimpleNamespace:
    """Clean cells in every format, and bystanders: files beside, which belong to somebody else."""
    folder = tmp_path_factory.mktemp("clean")
    cells, slide = small_tissue.cells.copy(), small_tissue.slides[0].copy()
    cells.obs["batch"] = pd.Categorical(np.resize(["a", "b"], cells.n_obs))
    cells.obs["note"] = "plain"
    cells.obsm["X_pca"] = np.ones((cells.n_obs, 3), np.float32)  # of zeros zarr writes no chunks
    cells.obsp["graph"] = sparse.eye(cells.n_obs, format="csr", dtype=np.float32)
    cells.layers["counts"] = cells.X.copy()
    cells.uns["more"] = {"number": np.arange(4), "text": "word"}
    cells.raw = cells.copy()
    cells.write_h5ad(folder / "cells.h5ad", convert_strings_to_categoricals=False)
    slide.write_h5ad(folder / "slide.h5ad")
    cells.raw = None
    for version in (2, 3):
        with ad.settings.override(zarr_write_format=version), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cells.write_zarr(folder / f"cells{version}.zarr", convert_strings_to_categoricals=False)
    beside = folder / "bystanders"
    beside.mkdir()
    cells.write_h5ad(beside / "other.h5ad")
    (beside / "private.txt").write_text(f"{SECRET}\n" * 400)
    (beside / "document").write_text("a thesis")
    os.mkfifo(folder / "pipe")
    return SimpleNamespace(folder=folder, beside=beside, cells=folder / "cells.h5ad", slide=folder / "slide.h5ad",
                           pipe=folder / "pipe", tissue=cells)  # fmt: skip


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def opened(folder: Path, base: SimpleNamespace) -> h5py.File:
    """A copy of the clean cells, to be spoilt."""
    path = folder / "cells.h5ad"
    shutil.copy(base.cells, path)
    return h5py.File(path, "r+")


# HDF5 files that reach elsewhere

ROOMS = ("X", "obs", "var", "obsm", "varm", "obsp", "uns", "layers", "raw")
INSIDE = (
    "obs/note",
    "obs/_index",
    "obsm/X_pca",
    "obsm/X_gears",
    "uns/gears",
    "uns/more/number",
    "layers/counts/data",
)


@case("external link to another .h5ad", *ROOMS, *INSIDE)
def external(name, folder, base):
    with opened(folder, base) as file:
        if name in file:
            del file[name]
        file[name] = h5py.ExternalLink(str(base.beside / "other.h5ad"), name.split("/")[0])
    return Path(file.filename) if file else folder / "cells.h5ad"


@case("external link to no file", *ROOMS[3:7])
def external_nowhere(name, folder, base):
    with opened(folder, base) as file:
        del file[name]
        file[name] = h5py.ExternalLink("nothing.h5ad", "/uns")
    return folder / "cells.h5ad"


@case("external link to a pipe", *ROOMS[3:7])
def external_pipe(name, folder, base):
    with opened(folder, base) as file:
        del file[name]
        file[name] = h5py.ExternalLink(str(base.pipe), "/uns")
    return folder / "cells.h5ad"


@case("external link deep inside", "uns/a/b/c/d", "obsm/deep/er", "varm/x")
def external_deep(name, folder, base):
    with opened(folder, base) as file:
        file[name] = h5py.ExternalLink(str(base.beside / "other.h5ad"), "/obs")
    return folder / "cells.h5ad"


@case("soft link through an external one", "obsm/linked", "uns/linked")
def soft_through_external(name, folder, base):
    with opened(folder, base) as file:
        file["uns/door"] = h5py.ExternalLink(str(base.beside / "other.h5ad"), "/")
        file[name] = h5py.SoftLink("/uns/door/obsm/X_pca")
    return folder / "cells.h5ad"


@case("external storage", "obs/leak", "obs/note", "uns/leak", "obsm/leak", "layers/leak")
def external_storage(name, folder, base):
    with opened(folder, base) as file:
        n = file["obs/_index"].shape[0]
        if name in file:
            del file[name]
        group, key = name.rsplit("/", 1)
        width = len(SECRET) + 1
        stored = file[group].create_dataset(
            key, (n,), f"S{width}", external=[(str(base.beside / "private.txt"), 0, n * width)]
        )
        stored.attrs["encoding-type"], stored.attrs["encoding-version"] = "string-array", "0.2.0"
        if group == "obs":
            file["obs"].attrs["column-order"] = [*file["obs"].attrs["column-order"], key]
    return folder / "cells.h5ad"


@case("virtual dataset", "obs/leak", "uns/leak", "obsm/leak", "layers/leak")
def virtual(name, folder, base):
    with opened(folder, base) as file:
        layout = h5py.VirtualLayout(shape=(file["obs/_index"].shape[0], 3), dtype="f4")
        layout[:] = h5py.VirtualSource(str(base.beside / "other.h5ad"), "obsm/X_pca", shape=layout.shape)
        file.create_virtual_dataset(name, layout)
    return folder / "cells.h5ad"


@case("soft link", "/obsm/X_pca", "/nothing", "/", "/uns", "../../etc/passwd", "/uns/self")
def soft(target, folder, base):
    with opened(folder, base) as file:
        file["uns/self"] = h5py.SoftLink(target)
    return folder / "cells.h5ad"


@case("a group inside itself", "uns", "obsm", "obs")
def cycle(name, folder, base):
    with opened(folder, base) as file:
        file[f"{name}/again"] = file[name]
    return folder / "cells.h5ad"


@case("links upon links", "hard", "soft")
def laughs(kind, folder, base):
    with opened(folder, base) as file:
        file["uns/l0"] = np.zeros(1000)
        for level in range(1, 12):
            group = file.create_group(f"uns/l{level}")
            for i in range(10):
                below = f"/uns/l{level - 1}"
                group[f"k{i}"] = file[below] if kind == "hard" else h5py.SoftLink(below)
    return folder / "cells.h5ad"


# HDF5 files that unpack beyond memory

VALUES = {
    "f8": "f8",
    "long words": "S100000",
    "words": h5py.string_dtype(),
    "u1": "u1",
    "pairs": [("a", "f8"), ("b", "S99")],
}
PLACES = ("obs/_index", "obs/note", "var/_index", "X/data", "X/indptr", "obsm/big", "uns/big", "layers/big", "obsp/big",
          "raw/X/indices", "obs/batch/categories")  # fmt: skip


@case("declared without end", *((place, kind) for place in PLACES for kind in VALUES))
def declared(place, kind, folder, base):
    with opened(folder, base) as file:
        attributes = (
            dict(file[place].attrs)
            if place in file
            else {"encoding-type": "array", "encoding-version": "0.2.0"}
        )
        if place in file:
            del file[place]
        made = file.create_dataset(place, (4 * 10**11,), VALUES[kind], chunks=(10**4,), compression="gzip")
        made.attrs.update(attributes)
    return folder / "cells.h5ad"


@case("one word a million times", "obs/_index", "obs/note", "uns/words", "var/_index")
def repeated(place, folder, base):
    """Text of any length is kept once, and its address as often as one likes."""
    with opened(folder, base) as file:
        attributes = (
            dict(file[place].attrs)
            if place in file
            else {"encoding-type": "string-array", "encoding-version": "0.2.0"}
        )
        if place in file:
            del file[place]
        count = 40_000
        made = file.create_dataset(place, (count,), h5py.string_dtype())
        made.attrs.update(attributes)
        made[0] = "x" * 500_000
        made[1] = "y"
        file.flush()
        where = made.id.get_offset()
    with open(folder / "cells.h5ad", "r+b") as file:
        file.seek(where)
        address = file.read(16)
        file.seek(where)
        file.write(address * count)
    return folder / "cells.h5ad"


@case("a chunk that unpacks to gigabytes", "obsm/X_pca", "uns/more/number", "X/data")
def packed(place, folder, base):
    with opened(folder, base) as file:
        values, attributes = file[place][()], dict(file[place].attrs)
        del file[place]
        made = file.create_dataset(place, data=values, chunks=values.shape, compression="gzip")
        made.attrs.update(attributes)
        pack = zlib.compressobj(9)
        blank = bytes(2**24)
        stream = b"".join(pack.compress(blank) for _ in range(400)) + pack.flush()
        made.id.write_direct_chunk((0,) * values.ndim, stream)
    return folder / "cells.h5ad"


@case("chunks of one value", "obs/note", "uns/big")
def crumbs(place, folder, base):
    with opened(folder, base) as file:
        if place in file:
            del file[place]
        file.create_dataset(place, (10**8,), "u1", chunks=(1,))
    return folder / "cells.h5ad"


@case("a chunk larger than memory", "X", "layers/big")
def slab(place, folder, base):
    with opened(folder, base) as file:
        n, g = file["obs/_index"].shape[0], file["var/_index"].shape[0]
        if place in file:
            del file[place]
        made = file.create_dataset(
            place, (n, g), "f4", chunks=(20_000, 50_000), maxshape=(None, None), compression="gzip"
        )
        made.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
    return folder / "cells.h5ad"


@case("groups", 3000, 300_000)
def many_groups(count, folder, base):
    with opened(folder, base) as file:
        group = file["uns"]
        for i in range(count):
            if count < 10_000:
                group = group.create_group("g")  # each inside the one before
            else:
                group[f"g{i}"] = h5py.SoftLink("/uns/more/text")
    return folder / "cells.h5ad"


# HDF5 files that lie about what they hold


@case("a lie about the shape", "huge", "negative", "words", "empty", "many")
def shape_attribute(how, folder, base):
    lie = {"huge": [2**62, 2**62], "negative": [-1, 5], "words": "wide", "empty": [], "many": [3] * 50}[how]
    with opened(folder, base) as file:
        file["X"].attrs["shape"] = lie
    return folder / "cells.h5ad"


@case(
    "indices",
    *(
        (name, how)
        for name in ("indices", "indptr", "data")
        for how in ("negative", "huge", "short", "floats")
    ),
)
def indices(name, how, folder, base):
    with opened(folder, base) as file:
        values = file[f"X/{name}"][()]
        spoilt = {
            "negative": -values,
            "huge": np.full_like(values, 2**30),
            "short": values[: len(values) // 2],
            "floats": values + 0.5,
        }[how]
        del file[f"X/{name}"]
        file[f"X/{name}"] = spoilt
    return folder / "cells.h5ad"


@case("an encoding that is not so", *((name, kind) for name in ("X", "obs", "obsm", "uns", "obs/batch", "obs/note")
                                      for kind in ("array", "dataframe", "csc_matrix", "categorical", "awkward-array",
                                                   "nullable-integer", "rec-array", "none such")))  # fmt: skip
def encoding(name, kind, folder, base):
    with opened(folder, base) as file:
        file[name].attrs["encoding-type"] = kind
    return folder / "cells.h5ad"


@case("codes beyond the categories", 100, -100)
def codes(value, folder, base):
    with opened(folder, base) as file:
        file["obs/batch/codes"][:] = value
    return folder / "cells.h5ad"


@case("names", "\x1b[31mred\x1b[0m", "=1+1", "<script>", "../../x", "\u202e", "a\tb", "x" * 60_000)
def names(word, folder, base):
    with opened(folder, base) as file:
        file["obs/_index"][0] = word
        file["var/_index"][0] = word
        file[f"uns/{word.replace('/', '_')[:200]}"] = 1
    return folder / "cells.h5ad"


# other files under a name that promises data


@case("not a file", "pipe", "zero", "folder", "empty", "text", "link to itself", "socket")
def not_a_file(kind, folder, base):
    path = folder / "cells.h5ad"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "link to itself":
        path.symlink_to(path)
    elif kind == "socket":
        import socket

        here = os.getcwd()
        os.chdir(folder)  # names of sockets are short
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("cells.h5ad")
        os.chdir(here)
    else:
        path.write_text("" if kind == "empty" else "what is this?")
    return path


# zarr


def copied(folder: Path, base: SimpleNamespace, version: int) -> Path:
    return Path(shutil.copytree(base.folder / f"cells{version}.zarr", folder / "cells.zarr"))


def chunk_of(store: Path, array: str) -> Path:
    """The first chunk of an array."""
    return next(
        p
        for p in sorted((store / array).rglob("*"))
        if p.is_file() and not p.name.startswith((".z", "zarr.json"))
    )


ARRAYS = ("obs/note", "obsm/X_pca", "X/data")


@case(
    "zarr: link out",
    *((v, a, k) for v in (2, 3) for a in ARRAYS for k in ("chunk", "array", "loop", "pipe", "other")),
)
def zarr_link(version, array, kind, folder, base):
    store = copied(folder, base, version)
    if kind in ("chunk", "pipe"):
        path = chunk_of(store, array)
        path.unlink()
        os.mkfifo(path) if kind == "pipe" else path.symlink_to(base.beside / "private.txt")
    else:
        shutil.rmtree(store / array)
        target = {"array": base.folder / f"cells{version}.zarr" / array, "loop": store, "other": base.beside}[
            kind
        ]
        (store / array).symlink_to(target)
    return store


@case("zarr: pickles", *((v, how) for v in (2, 3) for how in ("filter", "compressor", "consolidated")))
def pickles(version, how, folder, base):
    store = copied(folder, base, version)
    if version == 2:
        path, codec = store / "obs" / "note" / ".zarray", {"id": "pickle", "protocol": 5}
        meta = json.loads(path.read_text())
        meta |= {"compressor": codec} if how == "compressor" else {"filters": [codec], "compressor": None}
    else:
        path, codec = store / "obs" / "note" / "zarr.json", {"name": "numcodecs.pickle", "configuration": {}}
        meta = json.loads(path.read_text())
        meta["codecs"] = [codec, *meta["codecs"]] if how == "filter" else [meta["codecs"][0], codec]
    if how == "consolidated":
        whole = store / (".zmetadata" if version == 2 else "zarr.json")
        found = json.loads(whole.read_text())
        if version == 2:
            found["metadata"]["obs/note/.zarray"] = meta
        else:
            found["consolidated_metadata"]["metadata"]["obs/note"] = meta
        whole.write_text(json.dumps(found))
    else:
        path.write_text(json.dumps(meta))
    chunk = chunk_of(store, "obs/note")
    (folder / "ran").unlink(missing_ok=True)
    chunk.write_bytes(f"cos\nsystem\n(S'touch {folder}/ran'\ntR.".encode())
    return store


@case(
    "zarr: declared without end",
    *((v, a) for v in (2, 3) for a in (*ARRAYS, "X/indptr", "obs/_index", "uns/more/number")),
)
def zarr_declared(version, array, folder, base):
    store = copied(folder, base, version)
    path = store / array / (".zarray" if version == 2 else "zarr.json")
    meta = json.loads(path.read_text())
    meta["shape"] = [4 * 10**11, *meta["shape"][1:]]
    path.write_text(json.dumps(meta))
    return store


@case("zarr: chunks of one value", 2, 3)
def zarr_crumbs(version, folder, base):
    store = copied(folder, base, version)
    path = store / "X" / "data" / (".zarray" if version == 2 else "zarr.json")
    meta = json.loads(path.read_text())
    meta["shape"] = [10**8]
    if version == 2:
        meta["chunks"] = [1]
    else:
        meta["chunk_grid"]["configuration"]["chunk_shape"] = [1]
    path.write_text(json.dumps(meta))
    return store


@case("zarr: a chunk that unpacks to gigabytes", *((v, c) for v in (2, 3) for c in ("zstd", "gzip", "blosc")))
def zarr_packed(version, codec, folder, base):
    import numcodecs

    store = copied(folder, base, version)
    root = zarr.open_group(str(store), mode="r+", use_consolidated=False)
    values, attributes = root["obsm/X_pca"][()], dict(root["obsm/X_pca"].attrs)
    kind = {"zstd": numcodecs.Zstd(), "gzip": numcodecs.GZip(), "blosc": numcodecs.Blosc()}[codec]
    three = {
        "zstd": zarr.codecs.ZstdCodec(),
        "gzip": zarr.codecs.GzipCodec(),
        "blosc": zarr.codecs.BloscCodec(),
    }[codec]
    made = root.create_array(
        "obsm/X_pca", shape=values.shape, dtype=values.dtype, chunks=values.shape, overwrite=True,
        compressors=kind if version == 2 else three,
    )  # fmt: skip
    made[:] = values
    made.attrs.update(attributes)
    (store / ".zmetadata").unlink(missing_ok=True)
    chunk_of(store, "obsm/X_pca").write_bytes(
        kind.encode(np.zeros(15 * 2**26, np.uint8 if codec != "gzip" else np.uint16))
    )
    return store


@case(
    "zarr: metadata",
    *((v, k) for v in (2, 3) for k in ("deep", "no json", "a list", "negative", "huge", "nan", "unknown")),
)
def zarr_metadata(version, kind, folder, base):
    store = copied(folder, base, version)
    path = store / "obsm" / "X_pca" / (".zarray" if version == 2 else "zarr.json")
    meta = json.loads(path.read_text())
    text = {
        "deep": '{"a": ' * 5000 + "1" + "}" * 5000,
        "no json": "{",
        "a list": "[1, 2]",
        "negative": json.dumps(meta | {"shape": [-3, 3]}),
        "huge": json.dumps(meta | {"shape": [2**70, 3]}),
        "nan": json.dumps(meta | {"fill_value": "nothing"}),
        "unknown": json.dumps(meta | {"compressor": {"id": "none such"}, "codecs": [{"name": "none such"}]}),
    }[kind]
    path.write_text(text)
    return store


# tables of text


def packed_text(path: Path, head: bytes, part: bytes, times: int) -> Path:
    """A gzipped file that is ``head`` and then ``part`` again and again, made without that much memory."""
    pack = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = part * max(1, 2**22 // len(part))
    with open(path, "wb") as file:
        file.write(pack.compress(head))
        for _ in range(max(1, times * len(part) // len(block))):
            file.write(pack.compress(block))
        file.write(pack.flush())
    return path


@case("table", "rows", "columns", "one line", "a quote", "zeros", "no end of header", "columns below")
def table(kind, folder, base):
    genes = base.tissue.var_names
    head = ("cell," + ",".join(genes) + "\n").encode()
    row = ("c," + ",".join(["1"] * len(genes)) + "\n").encode()
    head, part, times = {
        "rows": (head, row, 3 * GIB // len(row)),
        "columns": (b"cell", b",g", GIB),
        "one line": (head, b"x" * 64, 3 * GIB // 64),
        "a quote": (head + b'"', row, 3 * GIB // len(row)),
        "zeros": (head, b"\0" * 64, 3 * GIB // 64),
        "no end of header": (b"", b"g,", GIB),
        "columns below": (b"cell,a,b\nc,", b"1,", GIB),
    }[kind]
    return packed_text(folder / "cells.csv.gz", head, part, times)


@case("plain table", "bytes", "formula", "commas", "ragged", "words", "one column", "negative", "huge")
def plain_table(kind, folder, base):
    genes, values = base.tissue.var_names, base.tissue.X.toarray().astype(int)
    frame = pd.DataFrame(values, columns=genes, index=base.tissue.obs_names)
    path = folder / "cells.csv"
    if kind == "formula":
        frame.index = [f"=HYPERLINK({i})" for i in range(len(frame))]
    if kind == "words":
        frame = frame.astype(str).replace("0", "none")
    if kind in ("negative", "huge"):
        frame = -frame if kind == "negative" else frame * 1e300
    frame.to_csv(path)
    text = path.read_bytes()
    path.write_bytes(
        {"bytes": os.urandom(5000), "commas": b"," * 10**6, "ragged": text + b"x,1,2\n" + b"1," * 10**5 + b"\n",
         "one column": b"\n".join(line.split(b",")[0] for line in text.splitlines())}.get(kind, text)
    )  # fmt: skip
    return path


# 10x


def matrix_folder(folder: Path, base: SimpleNamespace, matrix: str | None = None) -> Path:
    from scipy.io import mmwrite

    counts = sparse.coo_matrix(base.tissue.X.T.astype(int))
    genes, cells = base.tissue.var_names, base.tissue.obs_names
    (folder / "features.tsv").write_text("".join(f"{g}\t{g}\tGene Expression\n" for g in genes))
    (folder / "barcodes.tsv").write_text("".join(f"{c}\n" for c in cells))
    if matrix is None:
        mmwrite(folder / "matrix.mtx", counts)
    else:
        (folder / "matrix.mtx").write_text(matrix)
    return folder


HEAD = "%%MatrixMarket matrix coordinate integer general\n"


@case("matrix.mtx", "sides", "entries", "both", "negative", "no header", "array", "complex", "comment", "outside", "words",
      "symmetric", "more", "fewer")  # fmt: skip
def matrix_market(kind, folder, base):
    g, n = base.tissue.n_vars, base.tissue.n_obs
    text = {
        "sides": f"{HEAD}{10**9} {10**9} 1\n1 1 1\n",
        "entries": f"{HEAD}{g} {n} {10**15}\n1 1 1\n",
        "both": f"{HEAD}{2**62} {2**62} {2**62}\n1 1 1\n",
        "negative": f"{HEAD}{-g} {n} 5\n1 1 1\n",
        "no header": "1 1 1\n",
        "array": f"%%MatrixMarket matrix array real general\n{g} {n}\n1\n",
        "complex": f"%%MatrixMarket matrix coordinate complex general\n{g} {n} 1\n1 1 1 1\n",
        "comment": HEAD + "%" * 10**7 + "\n",
        "outside": f"{HEAD}{g} {n} 1\n{10**9} {10**9} 1\n",
        "words": f"{HEAD}many {n} 1\n1 1 1\n",
        "symmetric": f"%%MatrixMarket matrix coordinate integer symmetric\n{g} {n} 1\n1 1 1\n",
        "more": f"{HEAD}{g} {n} 1\n" + "1 1 1\n" * 50,
        "fewer": f"{HEAD}{g} {n} 50\n1 1 1\n",
    }[kind]
    return matrix_folder(folder, base, text)


@case("packed matrix folder", "matrix", "barcodes", "features", "comments")
def packed_matrix(kind, folder, base):
    matrix_folder(folder, base)
    g, n = base.tissue.n_vars, base.tissue.n_obs
    name, head, part = {
        "matrix": ("matrix.mtx", f"{HEAD}{g} {n} {g * n}\n".encode(), b"1 1 1\n"),
        "comments": ("matrix.mtx", HEAD.encode(), b"%%\n"),
        "barcodes": ("barcodes.tsv", b"", b"cell\n"),
        "features": ("features.tsv", b"", b"g\tg\tGene Expression\n"),
    }[kind]
    (folder / name).unlink()
    packed_text(folder / f"{name}.gz", head, part, 3 * GIB // len(part))
    return folder


@case("a pipe in a matrix folder", "matrix.mtx", "barcodes.tsv", "features.tsv")
def pipe_in_folder(name, folder, base):
    matrix_folder(folder, base)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    return folder


@case("10x .h5", "link", "storage", "declared", "shape", "repeated", "none")
def tenx(kind, folder, base):
    cells = base.tissue
    path = folder / "cells.h5"
    with h5py.File(path, "w") as file:
        group = file.create_group("matrix")
        counts = sparse.csr_matrix(cells.X)
        for name in ("data", "indices", "indptr"):
            group[name] = getattr(counts, name)
        group["shape"] = [cells.n_vars, cells.n_obs] if kind != "shape" else [2**40, 2**40]
        group["barcodes"] = cells.obs_names.to_numpy("S")
        for name in ("id", "name"):
            group[f"features/{name}"] = cells.var_names.to_numpy("S")
        group["features/feature_type"] = np.full(cells.n_vars, b"Gene Expression")
        group["features/genome"] = np.full(cells.n_vars, b"none")
        if kind == "link":
            group["features/more"] = h5py.ExternalLink(str(base.beside / "other.h5ad"), "/var/_index")
        if kind == "storage":
            width = len(SECRET) + 1
            outside = [(str(base.beside / "private.txt"), 0, cells.n_obs * width)]
            del group["barcodes"]
            group.create_dataset("barcodes", (cells.n_obs,), f"S{width}", external=outside)
        if kind == "declared":
            del group["barcodes"]
            group.create_dataset("barcodes", (10**11,), "S18", chunks=(10**5,))
    return path


@case("Space Ranger", "rows", "columns", "words")
def space_ranger(kind, folder, base):
    """Positions in parquet, whose runs of one value take no room."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tenx("none", folder, base).rename(folder / "filtered_feature_bc_matrix.h5")
    (folder / "spatial").mkdir()
    names = ["barcode", "in_tissue", "array_row", "array_col", "pxl_row_in_fullres", "pxl_col_in_fullres"]
    n = 3 * 10**8 if kind == "rows" else 10**5
    block = 10**6 if kind == "rows" else n
    word = "x" * (10**5 if kind == "words" else 1)
    columns = {
        "barcode": pa.DictionaryArray.from_arrays(pa.array(np.zeros(block, np.int32)), pa.array([word]))
    }
    columns |= {name: pa.array(np.zeros(block, np.int64)) for name in names[1:]}
    if kind == "columns":
        columns |= {f"more{i}": pa.array(np.zeros(block, np.int8)) for i in range(3000)}
    part = pa.table(columns)
    with pq.ParquetWriter(
        folder / "spatial" / "tissue_positions.parquet", part.schema, compression="zstd"
    ) as writer:
        for _ in range(n // block):
            writer.write_table(part, row_group_size=block)
    return folder


# the tests


@pytest.fixture
def made(base, tmp_path):
    """Makes the input of a case by its name."""
    folder = tmp_path / "given"
    folder.mkdir()
    return lambda name: CASES[name](folder, base)


REACHING = [
    "external link to another .h5ad: obsm",
    "external link deep inside: uns/a/b/c/d",
    "external link to a pipe: uns",
    "soft link through an external one: obsm/linked",
    "external storage: obs/leak",
    "virtual dataset: layers/leak",
    "zarr: link out: 2-obs/note-chunk",
    "zarr: link out: 3-obsm/X_pca-array",
    "zarr: link out: 3-X/data-pipe",
    "10x .h5: storage",
    "not a file: pipe",
    "a pipe in a matrix folder: matrix.mtx",
]
LARGE = [
    "declared without end: obs/_index-words",
    "declared without end: obs/note-long words",
    "declared without end: X/indptr-u1",
    "one word a million times: obs/_index",
    "chunks of one value: uns/big",
    "links upon links: soft",
    "zarr: declared without end: 3-obs/_index",
    "zarr: declared without end: 2-X/indptr",
    "zarr: chunks of one value: 3",
    "matrix.mtx: sides",
    "matrix.mtx: entries",
    "10x .h5: declared",
]


@pytest.mark.parametrize("name", REACHING)
@pytest.mark.parametrize("backed", [False, True])
def test_a_file_that_reaches_elsewhere_is_refused(name, backed, made, base):
    before, path = digests(base.beside), made(name)
    with pytest.raises(InputError, match=r"link|another file|virtual|neither a file") as refused:
        read(path, backed=backed)
    assert "What to do" in str(refused.value) and SECRET not in str(refused.value)
    assert digests(base.beside) == before


@pytest.mark.parametrize("kind", ["pipe", "zero"])
def test_a_pipe_is_refused_before_its_end_is_waited_for(kind, made):
    """`gears run` knows its inputs by their contents before it reads them."""
    with pytest.raises(InputError, match="neither a file nor a folder"):
        fingerprint(made(f"not a file: {kind}"))


@pytest.mark.parametrize("name", LARGE)
def test_a_file_that_unpacks_beyond_memory_is_refused(name, made, monkeypatch):
    from spatialgears.io import vetting
    from spatialgears.io.vetting import contents

    path = made(name)
    monkeypatch.setattr(vetting, "SMALL", 64 * 2**20)
    monkeypatch.setattr(contents, "MOST_MEMBERS", 2000)
    with pytest.raises(
        InputError, match=r"of memory|chunks, too many|more than 2,000|the tables beside it|announces"
    ):
        read(path)


@pytest.mark.parametrize("name", ["soft link: /obsm/X_pca", "10x .h5: none"])
def test_what_stays_inside_is_read(name, made, base):
    found = read(made(name))
    assert found.n_obs == base.tissue.n_obs
    if "X_pca" in name:
        assert np.array_equal(found.uns["self"], base.tissue.obsm["X_pca"])


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("how", ["filter", "compressor", "consolidated"])
def test_pickles_are_refused_whatever_numcodecs_allows(version, how, made, monkeypatch):
    import numcodecs.pickles

    monkeypatch.setattr(numcodecs.pickles, "ALLOW_UNSAFE_PICKLE_DECODE", True)
    path = made(f"zarr: pickles: {version}-{how}")
    with pytest.raises(InputError, match=r"pickled .*pickle\). Pickles can run code"):
        read(path)
    assert not (path.parent / "ran").exists()


def test_a_packed_table_is_read_as_far_as_is_reasonable(base, tmp_path, monkeypatch):
    from spatialgears.io.vetting import tables

    monkeypatch.setattr(tables, "SMALL", 2**20)
    path = packed_text(tmp_path / "cells.csv.gz", b"cell,a,b\n", b"c," + b"1" * 1000 + b",0\n", 10**5)
    with pytest.raises(InputError, match=r"(?s)unpacks to more than .* gunzip"):
        read(path)
    (tmp_path / "names.csv.gz").write_bytes(gzip.compress(b"cell,a,b\nc,1,0\n"))
    assert read(tmp_path / "names.csv.gz").shape == (1, 2)


def attempt(arguments: list[str], told: str) -> None:
    """In a process of its own: the command, what it says, and what it took."""
    from spatialgears.cli.app import main

    sys.stdout = sys.stderr = open(told, "w")  # noqa: SIM115 - the process ends with it
    code = 0
    try:
        main(arguments)
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.stdout.flush()
    os._exit(code)


def ended(processes, arguments: list[str], told: Path) -> tuple[int, str, float, float]:
    """Exit code, words, peak gigabytes and CPU seconds of a command in a process of its own."""
    child = processes.Process(target=attempt, args=(arguments, str(told)))
    child.start()
    peak, seconds, until = 0.0, 0.0, time.monotonic() + 400
    while child.is_alive() and time.monotonic() < until:
        with suppress(OSError, KeyError, IndexError):
            status = dict(
                line.split(":", 1) for line in Path(f"/proc/{child.pid}/status").read_text().splitlines()
            )
            peak = max(peak, int(status["VmHWM"].split()[0]) / 2**20)
            fields = Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()
            seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        time.sleep(0.02)
    assert not child.is_alive(), f"{arguments}: no end"
    child.join()
    return child.exitcode, told.read_text(errors="replace"), peak, seconds


def words_in(path: Path) -> str:
    """All text of an .h5ad file."""
    found: list[str] = []

    def look(name, one):
        if isinstance(one, h5py.Dataset) and one.dtype.kind in "OS":
            found.append(str(one[()]))

    with h5py.File(path) as file:
        file.visititems(look)
    return " ".join(found)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("part", range(PARTS))
def test_every_hostile_input_ends_well(part, processes, base, least_run, tmp_path, record_property):
    before, wrong = digests(base.beside), []
    for number, (name, make) in list(enumerate(CASES.items()))[part::PARTS]:
        folder = tmp_path / str(number)
        folder.mkdir()
        path, out = make(folder, base), tmp_path / f"out{number}"
        clean = digests(folder)
        arguments = ["run", "--st", str(base.slide), "--sc", str(path), "-o", str(out), *least_run]
        code, words, peak, seconds = ended(processes, arguments, tmp_path / "told")
        unexpected = "unexpected" in words or "Traceback" in words
        advised = code == 0 or (code in (1, 2) and "Error: " in words)
        leaked = code == 0 and SECRET in words_in(out / "cells.h5ad")
        changed = digests(base.beside) != before or digests(folder) != clean
        if unexpected or not advised or leaked or changed or "\x1b" in words or peak > 4 or seconds > 60:
            wrong.append((name, code, round(peak, 1), round(seconds), leaked, changed, words[-300:]))
        else:
            record_property("hostile inputs ended well", 1)
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(folder)
    assert not wrong, "\n".join(map(str, wrong))
    if part == 0:
        record_property("files beside hostile inputs with unchanged hashes", len(before))
    assert len(CASES) >= 200
