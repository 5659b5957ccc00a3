"""Tissue images: found, drawn in the frame of the spots, with a scale bar where units are known."""

from __future__ import annotations

import json

import matplotlib.pyplot as plt
import numpy as np
import pytest

import spatialgears as sg
from spatialgears.plotting.tissue import MOST_PIXELS, tissue_of


@pytest.fixture
def slide(small_tissue):
    made = small_tissue.slides[0].copy()
    made.obsm["spatial"] = made.obsm["spatial"] - made.obsm["spatial"].min(0) + 100
    width, height = (0.5 * (made.obsm["spatial"].max(0) + 100)).astype(int)
    image = np.linspace(0, 1, height * width * 3).reshape(height, width, 3).astype(np.float32)
    factors = {"tissue_hires_scalef": 0.5, "microns_per_pixel": 2.0}
    made.uns["spatial"] = {"lib": {"images": {"hires": image}, "scalefactors": factors}}
    return made


def test_the_image_lies_under_the_spots_in_their_frame(slide):
    ax = sg.pl.spots(slide, "domain")
    (image,) = ax.images
    left, right, bottom, top = image.get_extent()
    low, high = slide.obsm["spatial"].min(0), slide.obsm["spatial"].max(0)
    assert left <= low[0] and high[0] <= right and top <= low[1] and high[1] <= bottom
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # y points down, as in the image
    assert image.get_array().dtype == np.uint8
    (bar,) = ax.lines
    length = np.ptp(bar.get_xdata()) * 2.0
    assert ax.texts[0].get_text() in (f"{length:g} µm", f"{length / 1000:g} mm")
    plt.close("all")


def test_large_images_are_drawn_smaller_in_the_same_place(slide):
    whole = tissue_of(slide)
    library = slide.uns["spatial"]["lib"]
    library["images"]["hires"] = np.repeat(np.repeat(library["images"]["hires"], 8, 0), 8, 1)
    library["scalefactors"]["tissue_hires_scalef"] *= 8
    again = tissue_of(slide)
    assert max(again.image.shape) <= MOST_PIXELS
    np.testing.assert_allclose(again.extent, whole.extent, rtol=0.02, atol=5)


def test_without_an_image_nothing_changes(small_tissue):
    ax = sg.pl.spots(small_tissue.slides[0], "domain")
    assert not ax.images and not ax.texts and ax.get_ylim()[0] < ax.get_ylim()[1]
    plt.close("all")


def test_visium_arrays_have_a_known_pitch(slide):
    del slide.uns["spatial"]["lib"]["scalefactors"]["microns_per_pixel"]
    assert tissue_of(slide).microns is None
    slide.obs["array_row"] = slide.obs["array_col"] = 0
    pitch = sg.metrics.points.spot_pitch(slide.obsm["spatial"])
    assert tissue_of(slide).microns == pytest.approx(100 / pitch)


def test_space_rangers_images_are_read(tmp_path):
    from PIL import Image

    from spatialgears.io.tenx import _tissue

    assert _tissue(tmp_path) == {}
    Image.new("RGB", (30, 20), "pink").save(tmp_path / "tissue_lowres_image.png")
    (tmp_path / "scalefactors_json.json").write_text(json.dumps({"tissue_lowres_scalef": 0.1}))
    found = _tissue(tmp_path)
    assert found["images"]["lowres"].shape == (20, 30, 3) and found["scalefactors"] == {
        "tissue_lowres_scalef": 0.1
    }
    (tmp_path / "tissue_lowres_image.png").write_bytes(b"no picture")
    assert _tissue(tmp_path) == {}  # left out with a warning
