"""Coordinates of spots: there, two-dimensional, finite, spread over a plane, and enough of them."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING

import numpy as np

from spatialgears.errors import InputError
from spatialgears.validate import sections

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData

#: Columns known to hold coordinates, x first; tried in this order, whatever the case.
PAIRS = (
    ("pxl_col_in_fullres", "pxl_row_in_fullres"),
    ("x", "y"),
    ("x_centroid", "y_centroid"),
    ("center_x", "center_y"),
    ("pixel_x", "pixel_y"),
    ("imagecol", "imagerow"),
    ("coord_x", "coord_y"),
)  # not ("array_col", "array_row"): rows of an array of hexagons are nearer than its columns, which is no distance

#: A slide whose thin direction is below this share of its long one is a line.
FLATNESS = 1e-3
#: Spots of a slide below which a map of it is rough.
SMALL = 100
#: Slides of the same tissue do not differ more in width, in spots.
UNLIKE = 1.5


def named_pair(frame: pd.DataFrame) -> list[str] | None:
    """The columns that hold coordinates by their names, x first."""
    by_name = {str(name).lower(): name for name in frame.columns}
    return next(([by_name[x], by_name[y]] for x, y in PAIRS if x in by_name and y in by_name), None)


def coordinates_of(
    adata: AnnData, key: str, name: str, *, swapped: bool = False
) -> tuple[np.ndarray, list[str]]:
    """The coordinates (n, 2), float64, and warnings; refuses the missing, not finite and not planar.

    ``swapped``: the cells have coordinates, so that slides without any were perhaps given in their place.
    """
    if key not in adata.obsm:
        keys = f"has {', '.join(map(repr, adata.obsm))}" if len(adata.obsm) else "is empty"
        raise InputError(
            f"{name}: expected coordinates of spots in .obsm[{key!r}]; .obsm {keys}, "
            f".obs has {', '.join(map(str, adata.obs.columns[:12])) or 'no columns'}.",
            _cure(adata, swapped=swapped),
        )
    try:
        found = adata.obsm[key]
        if getattr(found, "dtype", None) is not None and found.dtype.kind == "c":
            raise TypeError("they are complex")
        if isinstance(found, np.ma.MaskedArray):
            found = np.ma.filled(found.astype(np.float64), np.nan)
        coords = np.array(found, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name}: .obsm[{key!r}] must hold numbers: {error}.",
            "Convert the coordinates to floating point.",
        ) from None
    coords, warnings = _planar(coords, key, name)
    bad = ~np.isfinite(coords).all(axis=1)
    if bad.any():
        raise InputError(
            f"{name}: {bad.sum():,} of {len(coords):,} spots have NaN or infinite coordinates, "
            f"e.g. {adata.obs_names[int(np.argmax(bad))]}.",
            "Leave these spots out, or give them coordinates.",
        )
    return coords, warnings


def _cure(adata: AnnData, *, swapped: bool) -> str:
    """Where coordinates can be found, the likeliest first."""
    advice = "Set spatial_key= (--spatial-key) to the right key, or give " if len(adata.obsm) else "Give "
    advice += (
        "read(path, coordinates=) (--coordinates): a table of barcode, x, y, or two columns of .obs. Of Space Ranger's "
        "output name the folder that holds spatial/; cells without places belong to cells= (--sc)."
    )
    if swapped:
        advice = f"{advice} The cells have coordinates: were slides and cells swapped?"
    pair = named_pair(adata.obs.select_dtypes("number"))
    if pair:
        x, y = pair
        cure = f"read(path, coordinates={pair}) (--coordinates {quote(f'{x},{y}')})"
        advice = f"If .obs[{x!r}] and .obs[{y!r}] are its places: {cure}. Otherwise: {advice}"
    return advice


def check_size(n_spots: int, min_spots: int, name: str) -> None:
    """Refuse a slide with too few spots to learn a geometry from."""
    if n_spots < min_spots:
        raise InputError(
            f"{name}: expected at least {min_spots} spots, found {n_spots}.",
            "Use a larger slide or leave this one out: it is too small to learn a geometry from.",
        )


def check_spread(coords: np.ndarray, name: str) -> None:
    """Refuse spots that all lie in one point or on one line, and numbers that cannot be computed with."""
    extent, largest = np.ptp(coords, axis=0).max(), abs(coords).max()
    if largest > 1e100 or 0 < extent < max(1e-100, 1e-9 * largest):
        raise InputError(
            f"{name}: spots span {extent:.3g} at coordinates up to {largest:.3g}, beyond what can be computed with.",
            "Give places in micrometres or pixels of the slide.",
        )
    spread = np.linalg.svd(coords - coords.mean(axis=0), compute_uv=False)  # (2,)
    if spread[0] == 0:
        raise InputError(f"{name}: all spots have the same coordinates.", "Give each spot its own place.")
    if spread[1] < FLATNESS * spread[0]:
        raise InputError(
            f"{name}: expected spots in a plane, found a line (width / length {spread[1] / spread[0]:.1e}).",
            "Check that x and y are two different columns, and not row numbers.",
        )


def warn_unlike_extents(coords: Sequence[np.ndarray], names: Sequence[str]) -> list[str]:
    """Warn of slides that show more of the tissue than others, judged by their widths in spot spacings."""
    from scipy.spatial import KDTree

    if len(coords) < 2:
        return []
    pitch = np.empty(len(coords))
    for i, distinct in enumerate(np.unique(places, axis=0) for places in coords):
        pitch[i] = np.median(KDTree(distinct).query(distinct, k=2)[0][:, 1])
    radius = np.array([np.sqrt(np.var(places, axis=0).sum()) for places in coords]) / pitch
    large, small = int(radius.argmax()), int(radius.argmin())
    if radius[large] < UNLIKE * radius[small] or pitch.max() > 1.1 * pitch.min():
        return []
    return [
        f"{names[large]} is {radius[large] / radius[small]:.1f} times as wide as {names[small]}, at the same spot spacing: "
        "each slide is scaled to its own size, so lengths on the two are not comparable. Crop them to the same region, or "
        "leave out the smaller one."
    ]


def check_distinct(coords: np.ndarray, name: str) -> list[str]:
    """Warn of spots that share a place; refuse a slide where most do."""
    repeated = len(coords) - len(np.unique(coords, axis=0))
    if not repeated:
        return []
    what = f"{name}: {repeated:,} of {len(coords):,} spots lie exactly on another"
    if repeated > 0.5 * len(coords):
        raise InputError(
            f"{what}; expected one place for each.",
            "If the file holds several sections or samples, split it by the column that names them: --split COLUMN.",
        )
    return [f"{what}; does the file hold several sections? If so: --split COLUMN, or --split auto."]


def check_one_section(adata: AnnData, coords: np.ndarray, name: str) -> list[str]:
    """Warn of a file that seems to hold several sections: distances between spots of two mean nothing."""
    found = sections.found_sections(adata, coords)
    if found is not None:
        labels, how = found
        parts = labels.value_counts().index
        column = sections.section_column(adata)
        listed = f": {', '.join(parts[:4])}{', ...' if len(parts) > 4 else ''}" if column else " parts"
        option = "auto" if column is None else quote(column)
        return [
            f"{name}: {how} ({len(parts)}{listed}). If they are sections, have each taken as a slide of its own: "
            f"--split {option} (in Python: sg.io.split_sections(adata{'' if column is None else f', {column!r}'}))."
        ]
    if sections.overlaid(coords):
        return [
            f"{name}: two lattices of spots seem to lie over each other. If the file holds two sections, have them taken "
            "apart by the column of .obs that names them: --split COLUMN "
            "(in Python: sg.io.split_sections(adata, column))."
        ]
    return []


def warn_small(n_spots: int, name: str) -> list[str]:
    """Warn of a slide too small to learn much from, or to hold out spots."""
    if n_spots >= SMALL:
        return []
    return [
        f"{name} has {n_spots} spots, fewer than {SMALL}: genes seem to vary in space by chance, the map will be rough, and "
        "few spots can be held out to check it. Add slides of the same tissue, or do not rely on the positions."
    ]


def at_one_height(coords: np.ndarray) -> bool:
    """Whether coordinates have a constant third dimension."""
    return coords.ndim == 2 and coords.shape[1] == 3 and len(coords) > 0 and bool(np.ptp(coords[:, 2]) == 0)


def _planar(coords: np.ndarray, key: str, name: str) -> tuple[np.ndarray, list[str]]:
    if coords.ndim == 2 and coords.shape[1] == 2:
        return coords, []
    if coords.ndim == 2 and coords.shape[1] == 3:
        if at_one_height(coords):
            return coords[:, :2], [
                f"{name}: the third coordinate is {coords[0, 2]:g} everywhere and left out."
            ]
        raise InputError(
            f"{name}: expected two coordinates in .obsm[{key!r}], found three, and the third varies.",
            "Give each section (each z) as its own slide with its x and y.",
        )
    raise InputError(
        f"{name}: expected .obsm[{key!r}] of shape (spots, 2), found {coords.shape}.", "Keep x and y only."
    )
