"""SpatialData in and out: spots from a table and the elements it annotates, cells as circles with their table."""

from __future__ import annotations

import logging
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

logger = logging.getLogger(__name__)
MOST_PIXELS = 2000  # of a side of an image that is taken
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
        it annotates none, what ``obsm`` held already is kept. ``uns["spatial"]`` holds the image in which they lie, turned
        and scaled to their coordinates, where there is one and the table has none of its own.

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
        add_image(adata, sdata, coordinate_system)
    return adata


def add_image(adata: AnnData, sdata: SpatialData, system: str = "global") -> None:
    """Write the image under the spots to ``uns["spatial"]`` as scanpy keeps it, in axes of ``obsm["spatial"]``.

    Of several images, and of the levels of one, the smallest that is fine enough is taken.
    """
    if "spatial" in adata.uns:
        return
    places = np.asarray(adata.obsm["spatial"], dtype=np.float64)[:, :2]
    found = [one for name in sdata.images for one in _levels(sdata.images[name], name, system)]
    found = [one for one in found if _covers(one, places)]
    if not found:
        return
    enough = [one for one in found if max(one[1].shape[1:]) >= MOST_PIXELS]
    name, image, matrix = (
        min(enough, key=lambda one: one[1].size) if enough else max(found, key=lambda one: one[1].size)
    )
    with _quiet():
        pixels, scale = _resampled(image, matrix, 1.02 * places.max(0))
    logger.info("image %s lies under the spots", name)
    adata.uns["spatial"] = {
        name: {"images": {"hires": pixels}, "scalefactors": {"tissue_hires_scalef": scale}}
    }


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
    """A SpatialData store on disk; images are read when they are needed."""
    library = _library()
    with _quiet():
        return library.read_zarr(path)


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


def _levels(image: Any, name: str, system: str) -> Iterator[tuple[str, Any, np.ndarray]]:
    """Name, pixels (c, y, x) and the matrix (3, 3) from them to the coordinates, for each resolution of an image."""
    library = _library()
    known = library.transformations.get_transformation(image, get_all=True)
    if system not in known:
        return
    matrix = known[system].to_affine_matrix(input_axes=("x", "y"), output_axes=("x", "y"))
    levels = list(library.get_pyramid_levels(image)) if hasattr(image, "children") else [image]
    height, width = (levels[0].sizes[axis] for axis in "yx")
    for level in levels:
        coarser = np.diag([width / level.sizes["x"], height / level.sizes["y"], 1.0])
        yield name, level.transpose("c", "y", "x").data, matrix @ coarser


def _covers(level: tuple[str, Any, np.ndarray], places: np.ndarray) -> bool:
    """Whether most places lie in an image, and none left of its axes or above them."""
    _, image, matrix = level
    if places.min() < 0 or abs(np.linalg.det(matrix)) < 1e-12:
        return False
    pixels = np.linalg.solve(matrix, np.vstack([places.T, np.ones(len(places))]))[:2]
    inside = (pixels >= 0) & (pixels <= np.array(image.shape[:0:-1])[:, None])
    return bool(inside.all(0).mean() > 0.5)


def _resampled(image: Any, matrix: np.ndarray, far: np.ndarray) -> tuple[np.ndarray, float]:
    """Pixels (height, width, 3) uint8 from the origin of the coordinates to a far corner, and how many make a unit."""
    from scipy.ndimage import affine_transform

    step = max(1, max(image.shape[1:]) // (2 * MOST_PIXELS))
    image = np.asarray(image[[0, 1, 2] if len(image) >= 3 else [0, 0, 0], ::step, ::step])
    if image.dtype != np.uint8:
        image = np.clip(image * (255 / max(float(np.quantile(image, 0.999)), 1e-12)), 0, 255).astype(np.uint8)
    back = np.diag([1 / step, 1 / step, 1]) @ np.linalg.inv(matrix)
    scale = min(MOST_PIXELS / far.max(), float(np.sqrt(abs(np.linalg.det(back[:2, :2])))))
    turned, shift = back[1::-1, 1::-1] / scale, back[1::-1, 2]  # rows before columns
    size = tuple(int(np.ceil(length * scale)) for length in far[::-1])
    options = {"offset": shift + turned.sum(1) / 2 - 0.5, "output_shape": size, "order": 1, "cval": 255}
    return np.stack([affine_transform(one, turned, **options) for one in image], axis=-1), scale


def _centres(sdata: SpatialData, adata: AnnData, table: str, system: str) -> np.ndarray:
    """(n, 2) centres of what the rows of a table annotate, in one coordinate system."""
    library = _library()
    attributes = adata.uns["spatialdata_attrs"]
    region = adata.obs[attributes["region_key"]].astype(str)
    instance = adata.obs[attributes["instance_key"]]
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
