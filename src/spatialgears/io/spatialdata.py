"""SpatialData in and out: spots from a table and the elements it annotates, cells as circles with their table."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from spatialgears.errors import InputError
from spatialgears.io.stored import copied

if TYPE_CHECKING:
    from anndata import AnnData
    from spatialdata import SpatialData

#: Name of the coordinate system reconstructed cells lie in: it has nothing to do with that of any slide.
SYSTEM = "gears"
#: Columns of ``obs`` that tie a row to its circle; named so that no column of the user's is lost.
REGION, INSTANCE = "spatialdata_region", "spatialdata_instance"


def from_spatialdata(
    sdata: SpatialData, *, table: str | None = None, coordinate_system: str = "global"
) -> AnnData:
    """Take spots or cells from a SpatialData object, each with the place of the element it annotates.

    Parameters
    ----------
    sdata
        The object; not modified.
    table
        Which table to take, where there are several.
    coordinate_system
        The system to give the places in.

    Returns
    -------
    AnnData
        A copy of the table. ``obsm["spatial"]`` holds the centres of the shapes or points that the table annotates; where
        it annotates none, what ``obsm`` held already is kept.

    Examples
    --------
    >>> import spatialgears as sg
    >>> tissue = sg.datasets.simulate_tissue(n_cells=200, n_genes=60, spots=100)
    >>> sdata = sg.io.to_spatialdata(tissue.slides[0], key="spatial")
    >>> spots = sg.io.from_spatialdata(sdata, coordinate_system="gears")
    >>> spots.shape == tissue.slides[0].shape, spots.obsm["spatial"].shape[1]
    (True, 2)
    """
    _library()
    names = list(sdata.tables)
    if table not in names if table else len(names) != 1:
        raise InputError(
            f"The SpatialData object has the tables {', '.join(names) or 'none'}; "
            + (f"there is none called {table!r}." if table else "expected exactly one."),
            "Choose one with table=.",
        )
    chosen = table or names[0]
    adata = sdata.tables[chosen].copy()
    if adata.uns.get("spatialdata_attrs"):
        adata.obsm["spatial"] = _centres(sdata, adata, chosen, coordinate_system)
    return adata


def to_spatialdata(adata: AnnData, *, key: str = "X_gears", name: str = "cells") -> SpatialData:
    """Give cells and their places as SpatialData, as napari-spatialdata, spatialdata-plot and Vitessce open it.

    Parameters
    ----------
    adata
        Cells with places, as ``Reconstruction.to_adata`` or ``gears run`` give them; not modified.
    key
        Key of ``obsm`` with the places.
    name
        Name of the shapes, and of the table with ``_table`` added.

    Returns
    -------
    SpatialData
        Circles ``shapes[name]``, sized so that neighbours hardly touch, and ``tables[f"{name}_table"]``, a copy of ``adata``
        that annotates them. They lie in a coordinate system of their own, ``"gears"``: reconstructed places are intrinsic and
        must not be laid over an image. ``.write(path)`` saves it.

    Examples
    --------
    >>> import spatialgears as sg
    >>> truth = sg.datasets.simulate_tissue(n_cells=200, n_genes=60, spots=100).truth
    >>> sdata = sg.io.to_spatialdata(truth, key="spatial")
    >>> sorted(sdata.shapes), sorted(sdata.tables)
    (['cells'], ['cells_table'])
    """
    library = _library()
    places = _places(adata, key)
    table = copied(adata)
    table.uns.pop("spatialdata_attrs", None)
    table.obs[REGION] = pd.Categorical([name] * table.n_obs)
    table.obs[INSTANCE] = np.arange(table.n_obs)
    with _quiet():
        circles = library.models.ShapesModel.parse(
            places,
            geometry=0,
            radius=_radius(places),
            index=table.obs[INSTANCE].to_numpy(),
            transformations={SYSTEM: library.transformations.Identity()},
        )
        table = library.models.TableModel.parse(table, region=name, region_key=REGION, instance_key=INSTANCE)
        return library.SpatialData(shapes={name: circles}, tables={f"{name}_table": table})


def open_store(path: Path) -> SpatialData:
    """A SpatialData store on disk, without its images."""
    library = _library()
    with _quiet():
        return library.read_zarr(path, selection=("shapes", "points", "labels", "tables"))


def _library() -> Any:
    """The spatialdata package, or a word on how to get it."""
    try:
        with _quiet():
            import spatialdata
            import spatialdata.models
            import spatialdata.transformations
    except ImportError as error:
        raise InputError(
            f"SpatialData objects need the package spatialdata, and {error.name} is not installed.",
            "Run: pip install 'spatialgears[spatialdata]'",
        ) from error
    return spatialdata


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what spatialdata and the libraries below it warn each other of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _centres(sdata: SpatialData, adata: AnnData, table: str, system: str) -> np.ndarray:
    """(n, 2) centres of what the rows of a table annotate, in one coordinate system."""
    library = _library()
    attributes = adata.uns["spatialdata_attrs"]
    region, instance = (
        adata.obs[attributes["region_key"]].astype(str),
        adata.obs[attributes["instance_key"]],
    )
    places = np.full((adata.n_obs, 2), np.nan)
    for name in region.unique():
        if name not in sdata:
            raise InputError(
                f"The table {table!r} annotates {name!r}, which the object does not hold.",
                "Add that element, or take the table alone: read(path) of its folder.",
            )
        known = library.transformations.get_transformation(sdata[name], get_all=True)
        if system not in known:
            raise InputError(
                f"{name!r} has no coordinate system {system!r}; it has {', '.join(map(repr, known))}.",
                "Choose one of these with coordinate_system=.",
            )
        with _quiet():
            centres = library.get_centroids(sdata[name], coordinate_system=system)
            xy = centres[["x", "y"]].compute()
        rows = (region == name).to_numpy()
        places[rows] = xy.reindex(instance[rows]).to_numpy()
    missing = np.isnan(places).any(axis=1)
    if missing.any():
        raise InputError(
            f"The table {table!r}: {missing.sum():,} of {len(places):,} rows annotate nothing that is there, e.g. "
            f"{adata.obs_names[missing][0]}.",
            "Keep the rows that have an element: spatialdata.match_table_to_element.",
        )
    return places


def _places(adata: AnnData, key: str) -> np.ndarray:
    if key not in adata.obsm:
        raise InputError(
            f"There is no obsm[{key!r}]; there is {', '.join(map(repr, adata.obsm)) or 'nothing in obsm'}.",
            "Call Reconstruction.to_adata(adata) first, or name the slot with key=.",
        )
    return np.asarray(adata.obsm[key], dtype=np.float64)[:, :2]


def _radius(places: np.ndarray) -> float:
    """Half the median distance to the nearest other cell: circles of neighbours hardly touch."""
    from scipy.spatial import cKDTree

    if len(places) < 2:
        return 1.0
    nearest = cKDTree(places).query(places, k=2)[0][:, 1]  # (n,)
    return float(np.median(nearest)) / 2 or 1.0
