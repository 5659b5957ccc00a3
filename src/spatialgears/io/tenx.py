"""Folders as the 10x pipelines write them: sparse matrix folders and Space Ranger output."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from spatialgears.errors import InputError
from spatialgears.io.tables import read_positions
from spatialgears.io.vetting import Room
from spatialgears.io.vetting.hdf5 import vet_hdf5
from spatialgears.io.vetting.tables import open_text, vet_matrix_market

if TYPE_CHECKING:
    from anndata import AnnData

log = logging.getLogger(__name__)

_POSITIONS = ("tissue_positions.csv", "tissue_positions_list.csv", "tissue_positions.parquet")
MOST_PIXELS = 10**8  # of a tissue image; Space Ranger's have at most 4 million
_MATRICES = ("filtered_feature_bc_matrix", "raw_feature_bc_matrix")


def is_matrix_folder(folder: Path) -> bool:
    """Whether the folder holds a ``matrix.mtx``, perhaps gzipped, perhaps with a prefix."""
    return bool(_matrices(folder))


def is_space_ranger(folder: Path) -> bool:
    """Whether the folder is, or holds, what Space Ranger writes."""
    return any(
        (root / name).is_dir() for root in (folder, folder / "outs") for name in ("spatial", "binned_outputs")
    )


def is_cell_ranger(folder: Path) -> bool:
    """Whether the folder is, or holds, what Cell Ranger writes: filtered counts, and no places."""
    return bool(_files(_outs(folder), _MATRICES[0])) or (_outs(folder) / _MATRICES[0]).is_dir()


def read_cell_ranger(folder: Path, room: Room) -> AnnData:
    """The filtered counts, gene expression only."""
    source = _matrix(_outs(folder), _MATRICES[0])
    assert source is not None
    return _read_matrix(source, room)


def read_matrix_folder(folder: Path, room: Room, *, matrix: Path | None = None) -> AnnData:
    """Matrix, features and barcodes, gene expression only."""
    import pandas as pd
    from anndata import AnnData
    from scipy import sparse
    from scipy.io import mmread

    found = matrix or _only(_matrices(folder), folder)
    prefix, known, _ = found.name.partition("matrix.mtx")
    if not known:
        raise InputError(
            f"{found}: expected a name that ends in matrix.mtx or matrix.mtx.gz, so that the tables beside it are found.",
            "Call it so, and the others features.tsv (or genes.tsv) and barcodes.tsv, all after the same beginning.",
        )
    tables = []
    for named in (("features", "genes"), ("barcodes",)):
        with open_text(_beside(found, prefix, named), room) as stream:
            tables.append(pd.read_csv(stream, sep="\t", header=None, dtype=str, na_filter=False))
    features, barcodes = tables
    vet_matrix_market(found, room, (len(features), len(barcodes)))
    with open_text(found, room, names=False) as stream:
        counts = sparse.csr_matrix(mmread(stream).T).astype("float32")
    names = dict(enumerate(["gene_ids", "symbol", "feature_types"]))
    var = features.iloc[:, :3].rename(columns=names)
    var.index = pd.Index(var.pop("symbol") if "symbol" in var else var["gene_ids"], name=None)
    adata = AnnData(counts, obs=pd.DataFrame(index=barcodes[0].to_numpy()), var=var)
    genes = var["feature_types"] == "Gene Expression" if "feature_types" in var else [True] * len(var)
    return adata[:, genes].copy()


def read_space_ranger(folder: Path, room: Room) -> AnnData:
    """Counts of the spots in tissue; ``obsm["spatial"]`` in pixels of the full image, column first."""
    from spatialgears.validate.counts import check_structure

    root = _outs(folder)
    bins = sorted(path.name for path in (root / "binned_outputs").glob("square_*"))
    if bins and not (root / "spatial" / _POSITIONS[0]).exists():
        raise InputError(
            f"{folder} is Visium HD with the bins {', '.join(bins)}.",
            f"Choose one, e.g. {root / 'binned_outputs' / bins[-1]}",
        )
    places = next((path for name in _POSITIONS if (path := root / "spatial" / name).exists()), None)
    if places is None:
        raise InputError(
            f"{root / 'spatial'} has no positions of spots; expected {' or '.join(_POSITIONS)}.",
            "Copy the positions file of the Space Ranger output there.",
        )
    source = _matrix(root, _MATRICES[0]) or _matrix(root, _MATRICES[1])
    if source is None:
        raise InputError(
            f"{root} has no counts; expected {_MATRICES[0]}.h5 or the folder {_MATRICES[0]}.",
            "Copy it there from the Space Ranger output.",
        )
    adata = _read_matrix(source, room)
    check_structure(adata.X)
    positions = read_positions(places, room).reindex(adata.obs_names)
    unknown = positions["in_tissue"].isna()
    if unknown.any():
        raise InputError(
            f"{places}: {unknown.sum():,} of {adata.n_obs:,} barcodes are missing, e.g. {unknown.idxmax()}.",
            "Take counts and positions from the same Space Ranger run.",
        )
    adata.obs[["in_tissue", "array_row", "array_col"]] = positions[
        ["in_tissue", "array_row", "array_col"]
    ].astype(int)
    adata.obsm["spatial"] = positions[["pxl_col_in_fullres", "pxl_row_in_fullres"]].to_numpy(float)
    inside = (adata.obs["in_tissue"] == 1).to_numpy()
    if not inside.all():
        log.info("%s: %d of %d spots are in tissue and kept", folder, inside.sum(), adata.n_obs)
        adata = adata[inside].copy()
    if library := _tissue(root / "spatial"):
        adata.uns["spatial"] = {root.parent.name if root.name == "outs" else root.name: library}
    return adata


def _tissue(folder: Path) -> dict[str, Any]:
    """Images and scale factors as scanpy and squidpy keep them; empty where Space Ranger's files are not all there."""
    import json

    from PIL import Image

    factors = folder / "scalefactors_json.json"
    try:
        scales = {str(name): float(value) for name, value in json.loads(factors.read_bytes()).items()}
        images = {}
        for name in ("hires", "lowres"):
            path = folder / f"tissue_{name}_image.png"
            if path.is_file() and f"tissue_{name}_scalef" in scales:
                with Image.open(path, formats=["PNG"]) as image:
                    if image.width * image.height > MOST_PIXELS:
                        raise ValueError(f"{path} has {image.width} x {image.height} pixels")
                    images[name] = np.asarray(image.convert("RGB"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        log.warning("the tissue image in %s is left out: %s", folder, error)
        return {}
    return {"images": images, "scalefactors": scales} if images else {}


def _outs(folder: Path) -> Path:
    return folder / "outs" if (folder / "outs").is_dir() else folder


def read_10x_h5(path: Path, room: Room) -> AnnData:
    """Counts of a 10x ``.h5`` file, gene expression only."""
    import scanpy  # slow to import: only where needed

    vet_hdf5(path, room)
    return scanpy.read_10x_h5(path)


def _read_matrix(path: Path, room: Room) -> AnnData:
    return read_matrix_folder(path, room) if path.is_dir() else read_10x_h5(path, room)


def _beside(matrix: Path, prefix: str, names: Sequence[str]) -> Path:
    """The table of one of these names beside a matrix, gzipped or not."""
    paths = [matrix.with_name(f"{prefix}{name}.tsv{end}") for name in names for end in ("", ".gz")]
    if found := next((path for path in paths if path.is_file()), None):
        return found
    raise InputError(
        f"{matrix}: expected {' or '.join(path.name for path in paths)} beside it, found none of them.",
        "Copy it there, with the same beginning as the matrix.",
    )


def _matrix(root: Path, name: str) -> Path | None:
    """The matrix called ``name``, as a file (perhaps with a sample's prefix) or a folder."""
    if files := _files(root, name):
        return _only(files, root)
    return root / name if (root / name).is_dir() else None


def _files(root: Path, name: str) -> list[Path]:
    return sorted(root.glob(f"*{name}.h5"))


def _only(found: list[Path], folder: Path) -> Path:
    """The one matrix of a folder; several are refused."""
    if len(found) > 1:
        raise InputError(
            f"{folder} holds {len(found)} matrices: {', '.join(path.name for path in found)}.",
            "Name one of these files instead of the folder, or give each sample a folder.",
        )
    return found[0]


def _matrices(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*matrix.mtx"), *folder.glob("*matrix.mtx.gz")])
