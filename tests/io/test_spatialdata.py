"""SpatialData in and out, and what viewers ask of the files we write."""

from __future__ import annotations

import sys

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from spatialgears.errors import InputError
from spatialgears.io import from_spatialdata, read, to_spatialdata, write_h5ad

LIBRARIES = pytest.mark.filterwarnings("ignore")  # theirs, among themselves


@pytest.fixture(scope="module")
def spots(small_tissue):
    slide = small_tissue.slides[0].copy()
    slide.obs["region"] = "cortex"
    return slide


@LIBRARIES
def test_there_and_back_keeps_places_counts_and_columns(spots):
    before = spots.copy()
    sdata = to_spatialdata(spots, key="spatial", name="spots")
    back = from_spatialdata(sdata, coordinate_system="gears")
    np.testing.assert_allclose(back.obsm["spatial"], spots.obsm["spatial"])
    assert (back.X != spots.X).nnz == 0
    assert back.obs["region"].eq("cortex").all()
    assert list(spots.obs) == list(before.obs) and not spots.uns


@LIBRARIES
def test_places_are_those_of_the_shapes_whatever_their_order(spots, tmp_path):
    import spatialdata
    from spatialdata.transformations import Scale, set_transformation

    sdata = to_spatialdata(spots, key="spatial", name="spots")
    order = np.random.default_rng(0).permutation(spots.n_obs)
    shapes = sdata["spots"].iloc[order]
    set_transformation(shapes, Scale([2.0, 3.0], axes=("x", "y")), "global")
    table = sdata["spots_table"]
    del table.obsm["spatial"]
    again = spatialdata.SpatialData(shapes={"spots": shapes}, tables={"table": table})
    again.write(tmp_path / "slide.zarr")
    out = read(tmp_path / "slide.zarr")
    np.testing.assert_allclose(out.obsm["spatial"], spots.obsm["spatial"] * [2, 3], rtol=1e-6)
    with pytest.raises(InputError, match="no coordinate system 'mars'"):
        from_spatialdata(again, coordinate_system="mars")
    with pytest.raises(InputError, match="none called 'other'"):
        from_spatialdata(again, table="other")
    again.shapes["spots"] = shapes.iloc[5:]
    with pytest.raises(InputError, match=r"5 of .* annotate nothing"):
        from_spatialdata(again)


@LIBRARIES
@pytest.mark.parametrize("scales", [None, [2]], ids=["one resolution", "two resolutions"])
def test_the_image_under_the_spots_comes_along_in_their_axes(spots, tmp_path, scales):
    """Whatever its transformation: here a quarter turn, scaled and shifted. A table with places of its own gets it, too."""
    import spatialdata
    from spatialdata.models import Image2DModel
    from spatialdata.transformations import Affine, Identity, set_transformation

    from spatialgears.plotting.tissue import tissue_of

    slide = spots[:40].copy()
    slide.obsm["spatial"] = np.random.default_rng(0).uniform(20, 180, (40, 2))
    slide.obsm["spatial"][0] = 50, 120
    sdata = to_spatialdata(slide, key="spatial", name="spots")
    set_transformation(sdata["spots"], Identity(), "global")
    pixels = np.full((3, 100, 110), 200, np.uint8)
    turned = np.array([[0, -2.0, 200], [2.0, 0, -10], [0, 0, 1]])  # x = 200 - 2 row, y = 2 column - 10
    pixels[:, 75, 65] = 10, 20, 30
    pixels[:, 74:77, 64:67] = pixels[:, 75:76, 65:66]
    image = Image2DModel.parse(
        pixels,
        dims=("c", "y", "x"),
        scale_factors=scales,
        transformations={"global": Affine(turned, ("x", "y"), ("x", "y"))},
    )
    whole = spatialdata.SpatialData(
        images={"he": image}, shapes={"spots": sdata["spots"]}, tables={"table": sdata["spots_table"]}
    )
    whole.write(tmp_path / "slide.zarr")
    behind = tissue_of(read(tmp_path / "slide.zarr"))
    x, y = 200 - 2 * 75.5, 2 * 65.5 - 10
    row, column = int(y * behind.scale), int(x * behind.scale)
    np.testing.assert_array_equal(behind.image[row, column], [10, 20, 30])
    assert (behind.image[row - 12, column] == 200).all()
    moved = whole["table"].copy()
    moved.obsm["spatial"] = moved.obsm["spatial"] * 3  # places in other units: the image does not fit them
    whole.tables["table"] = moved
    whole.write(tmp_path / "moved.zarr")
    assert tissue_of(read(tmp_path / "moved.zarr")).image is None


@LIBRARIES
def test_result_as_spatialdata(small_result, small_tissue):
    sdata = to_spatialdata(small_result.to_adata(small_tissue.cells, copy=True))
    assert sdata.coordinate_systems == ["gears"]
    circles = sdata["cells"]
    np.testing.assert_allclose(np.column_stack([circles.geometry.x, circles.geometry.y]), small_result.coords)
    assert sdata["cells_table"].obsm["X_gears"].shape == (small_tissue.cells.n_obs, 2)


def test_errors_name_the_slot_and_the_extra(spots, monkeypatch):
    with pytest.raises(InputError, match=r"no obsm\['X_gears'\]; there is 'spatial'"):
        to_spatialdata(spots)
    monkeypatch.setitem(sys.modules, "spatialdata", None)
    with pytest.raises(InputError, match=r"pip install 'spatialgears\[spatialdata\]'"):
        to_spatialdata(spots, key="spatial")


def test_file_opens_in_viewers_as_it_is(small_result, small_tissue, tmp_path):
    """cellxgene and Vitessce: finite ``X_*`` of two columns, unique names, columns of plain kinds, no truth invented."""
    write_h5ad(small_result.to_adata(small_tissue.cells, copy=True), tmp_path / "cells.h5ad")
    out = ad.read_h5ad(tmp_path / "cells.h5ad")
    places = out.obsm["X_gears"]
    assert places.shape == (out.n_obs, 2) and places.dtype.kind == "f" and np.isfinite(places).all()
    assert out.obs_names.is_unique and out.var_names.is_unique
    assert "spatial" not in out.obsm
    for column in out.obs:
        kind = out.obs[column].dtype
        assert (
            isinstance(kind, pd.CategoricalDtype) or kind.kind in "biuf" or pd.api.types.is_string_dtype(kind)
        )
