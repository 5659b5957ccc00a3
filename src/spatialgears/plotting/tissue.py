"""The tissue image of a slide, as Space Ranger, scanpy and squidpy keep it in ``uns["spatial"]``, drawn under points."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from spatialgears.metrics.points import spot_pitch

if TYPE_CHECKING:
    from anndata import AnnData
    from matplotlib.axes import Axes

MOST_PIXELS = 1200  # of a side of an image that is drawn
VISIUM = 100.0  # micrometres between the centres of neighbouring Visium spots
FADED = 0.55  # opacity of the image, so that points stand out
ROUND = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)  # micrometres of a scale bar


@dataclass(frozen=True, eq=False)
class Tissue:
    """What is known of the tissue behind the spots."""

    image: np.ndarray | None  # (height, width, 3) uint8, or None
    scale: float  # pixels of the image to one unit of the spots' coordinates
    microns: float | None  # micrometres to one unit of the coordinates; None where that is unknown

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Left, right, bottom and top of the image in coordinates of the spots, whose y axis points down."""
        assert self.image is not None
        height, width = self.image.shape[:2]
        return 0.0, width / self.scale, height / self.scale, 0.0

    def jpeg(self) -> bytes:
        """The image as a file."""
        from PIL import Image

        assert self.image is not None
        stream = BytesIO()
        Image.fromarray(self.image).save(stream, "JPEG", quality=80)
        return stream.getvalue()


def tissue_of(slide: AnnData, *, spatial_key: str = "spatial") -> Tissue:
    """The image and the units of a slide, as far as its ``uns["spatial"]`` tells them."""
    library = _library(slide)
    factors = dict(library.get("scalefactors", {}))
    microns = factors.get("microns_per_pixel")
    if microns is None and factors and {"array_row", "array_col"} <= set(slide.obs):
        microns = VISIUM / spot_pitch(np.asarray(slide.obsm[spatial_key], dtype=np.float64)[:, :2])
    microns = None if microns is None else float(microns)
    images = dict(library.get("images", {}))
    for name in ("hires", "lowres"):
        scale = factors.get(f"tissue_{name}_scalef")
        if images.get(name) is not None and scale:
            image, step = _small(np.asarray(images[name]))
            return Tissue(image, float(scale) / step, microns)
    return Tissue(None, 1.0, microns)


def underlay(ax: Axes, tissue: Tissue) -> None:
    """Draw the image under what is on the axes, whose y axis then points down, and a scale bar where units are known."""
    limits = ax.get_xlim(), ax.get_ylim()
    if tissue.image is not None:
        ax.set_aspect("equal", adjustable="box")
        ax.imshow(
            tissue.image,
            extent=tissue.extent,
            alpha=FADED,
            zorder=-1,
            interpolation="bilinear",
            aspect="equal",
        )
        ax.set(xlim=limits[0], ylim=sorted(limits[1], reverse=True))
    if tissue.microns:
        _scale_bar(ax, tissue.microns)


def _scale_bar(ax: Axes, microns: float) -> None:
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    span = abs(right - left) * microns
    length = max([one for one in ROUND if one <= 0.3 * span] or [ROUND[0]])
    bottom -= 0.1 * (top - bottom)  # below the points, whichever way the axis runs
    ax.set_ylim(bottom, top)
    y = bottom + 0.02 * (top - bottom)
    x = left + 0.04 * (right - left)
    ax.plot([x, x + length / microns], [y, y], color="black", linewidth=2, solid_capstyle="butt")
    text = f"{length / 1000:g} mm" if length >= 1000 else f"{length:g} µm"
    ax.text(x, y + 0.02 * (top - bottom), text, ha="left", va="bottom", fontsize="small")


def _library(slide: AnnData) -> Mapping[str, Any]:
    """The entry of ``uns["spatial"]`` that belongs to the slide: its only one, or that of ``obs["library_id"]``."""
    libraries = slide.uns.get("spatial", {})
    if not isinstance(libraries, Mapping) or not libraries:
        return {}
    if "library_id" in slide.obs and slide.obs["library_id"].nunique() == 1:
        return dict(libraries.get(str(slide.obs["library_id"].iloc[0]), {}))
    return dict(next(iter(libraries.values()))) if len(libraries) == 1 else {}


def _small(image: np.ndarray) -> tuple[np.ndarray, int]:
    """The image as (height, width, 3) uint8 with every ``step``-th pixel, and the step."""
    step = max(1, -(-max(image.shape[:2]) // MOST_PIXELS))
    image = image[::step, ::step]
    image = np.repeat(image[..., None], 3, -1) if image.ndim == 2 else image[..., :3]
    if image.dtype != np.uint8:
        image = np.clip(image * (255 if image.max() <= 1 else 1), 0, 255).astype(np.uint8)
    return np.ascontiguousarray(image), step
