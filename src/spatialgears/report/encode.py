"""Arrays as compact text that a browser decodes quickly: base64 of typed arrays inside JSON.

Coordinates are float32, numbers are quantised to 16 bits (the largest code means missing), labels are integer codes
with their names apart, and genes are packed as :mod:`spatialgears.report.expression` says.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from spatialgears.metrics.points import spot_pitch
from spatialgears.plotting import palette
from spatialgears.plotting.tissue import Tissue
from spatialgears.plotting.training import Curve, axis_name, phases
from spatialgears.report.content import ReportContent, ReportSlide
from spatialgears.report.expression import BUDGET, pack, quantise

DOMAIN = "domain"
UNCERTAINTY = "uncertainty, 90% radius"


def payload(content: ReportContent, *, max_cells: int) -> dict[str, Any]:
    """All that the page's script draws.

    Cells are put in a random order, the same each time, so that no group is drawn over another; above
    ``max_cells`` the first of that order stand for all.
    """
    n = len(content.coords)
    order = drawn(n, max_cells)
    cells: dict[str, Any] = _places(np.asarray(content.coords)[order])
    if content.names is not None:
        cells["names"] = "\n".join(
            str(name).replace("\n", " ") for name in np.asarray(content.names, object)[order]
        )
    else:
        cells["rows"] = _base64(order.astype("<u4"))
    return {
        "total": n,
        "drawn": len(order),
        "unit": content.unit,
        "cells": cells,
        "fields": _fields(content, order),
        "genes": _genes(content, order),
        "slides": [_slide(slide) for slide in content.slides],
        "scale": palette_stops(),
        "missing": palette.MISSING,
        "history": [
            _training(f"{stage}, {phase}" if phase else stage, curves, axis_name(history))
            for stage, history in content.history.items()
            for phase, curves in phases(history).items()
        ],
    }


def drawn(n: int, most: int) -> np.ndarray:
    """Rows of the cells that the map draws, in the order in which it draws them."""
    return np.random.default_rng(0).permutation(n)[:most]


def as_script(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it ends the element or opens a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def palette_stops(n: int = 128) -> list[str]:
    """Evenly spaced colours of the continuous palette."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(color) for color in colormaps[palette.CONTINUOUS](np.linspace(0, 1, n))]


def _slide(slide: ReportSlide) -> dict[str, Any]:
    coords = np.asarray(slide.coords, dtype=np.float64)
    distinct = len(np.unique(coords, axis=0)) > 1
    pose = None
    if slide.pose is not None:
        pose = [*map(float, slide.pose.matrix.ravel()), *map(float, slide.pose.shift)]
    return {
        "name": slide.name,
        **_places(coords),
        "pitch": spot_pitch(coords) if distinct else None,
        "pose": pose,
        "yDown": slide.y_down,
        "microns": None if slide.tissue is None else slide.tissue.microns,
        "image": _image(slide.tissue),
    }


def _image(tissue: Tissue | None) -> dict[str, Any] | None:
    """The tissue image with its place in coordinates of the slide."""
    if tissue is None or tissue.image is None:
        return None
    left, right, bottom, top = tissue.extent
    source = f"data:image/jpeg;base64,{b64encode(tissue.jpeg()).decode('ascii')}"
    return {"source": source, "x": left, "y": top, "width": right - left, "height": abs(top - bottom)}


def _genes(content: ReportContent, order: np.ndarray) -> dict[str, Any]:
    """All genes that can be searched for, and what to say where that is not all of them."""
    pictures = sum(len(one.png) * 4 // 3 for one in (*content.checks, *content.sections))  # in base64
    room = max(BUDGET - pictures, BUDGET // 2)
    packed = pack(content.genes, order, [slide.genes for slide in content.slides], budget=room)
    total, note = content.n_genes or len(content.genes), ""
    if len(packed.names) < total:
        note = (
            f"The search covers {len(packed.names):,} of {total:,} genes, those that vary most over the slides, to keep "
            "this file small. Name others with --genes."
        )
    if packed.bits < 8:
        note += f"{' ' if note else ''}Values of genes are rounded to {2**packed.bits - 1} steps."
    return {
        "names": packed.names,
        "cells": packed.cells,
        "slides": packed.slides,
        "ends": [[_short(end) for end in ends] for ends in packed.ends],
        "slideEnds": [[_short(end) for end in ends] for ends in packed.slide_ends],
        "note": note,
    }


def _fields(content: ReportContent, order: np.ndarray) -> list[dict[str, Any]]:
    def field(name: str, values: Any, on_slides: Sequence[Any], resembled: bool = False) -> dict[str, Any]:
        cells = _series(values).iloc[order]
        labels = palette.is_categorical(cells)
        parts = [None if spots is None else _series(spots) for spots in on_slides]
        # labels go with labels, numbers with numbers
        slides = [None if part is None or palette.is_categorical(part) != labels else part for part in parts]
        coded = _labels(cells, slides) if labels else _numbers(cells, slides)
        return {"name": name, "resembled": resembled, **coded}

    def on_slides(name: str, measured: bool = True) -> tuple[list[Any], bool]:
        found = [slide.obs.get(name) if measured else None for slide in content.slides]
        if any(one is not None for one in found):
            return found, False
        taken = measured and name == DOMAIN and content.domains is not None
        return [None if taken else slide.resembled.get(name) for slide in content.slides], True

    columns: dict[str, tuple[Any, ...]] = {
        f"{name} (obs)" if name == DOMAIN and content.domains is not None else name: (
            values,
            *on_slides(name),
        )
        for name, values in content.obs.items()
    }
    if content.domains is not None:
        columns[DOMAIN] = content.domains, *on_slides(DOMAIN, measured=False)
    # the map begins with the first
    names = sorted(columns, key=lambda name: _series(columns[name][0]).dtype == bool)
    fields = [field(name, *columns[name]) for name in names]
    if content.uncertainty is not None:
        fields.append(field(UNCERTAINTY, content.uncertainty, []) | {"unit": content.unit})
    return fields


def _labels(cells: pd.Series, slides: list[pd.Series | None]) -> dict[str, Any]:
    """One coding for cells and slides, so that a label has one colour everywhere."""
    found = [part for part in slides if part is not None]
    together = palette.encode(pd.concat([cells, *found], ignore_index=True) if found else cells)
    codes = np.where(together.codes < 0, 255, together.codes).astype(np.uint8)
    ends = np.cumsum([len(cells), *(len(part) for part in found)])
    pieces = iter(np.split(codes, ends)[1:])
    return {
        "kind": "labels",
        "names": together.names,
        "colors": together.colors,
        "codes": _base64(codes[: ends[0]]),
        "slides": [None if part is None else _base64(next(pieces)) for part in slides],
    }


def _numbers(cells: pd.Series, slides: list[pd.Series | None]) -> dict[str, Any]:
    """Cells and slides differ in depth, so each has its own scale; the slides share theirs."""
    coded, ends = _coded([cells])
    on_slides, slide_ends = _coded(slides)
    return {
        "kind": "numbers",
        "codes": coded[0],
        **ends,
        "slides": on_slides,
        "slideEnds": slide_ends,
    }


def _coded(parts: Sequence[pd.Series | None]) -> tuple[list[str | None], dict[str, float]]:
    numbers = [None if part is None else part.to_numpy(np.float64, na_value=np.nan) for part in parts]
    codes, ends = quantise(numbers, 16, missing=65535)
    named = dict(zip(("low", "step", "first", "last"), ends, strict=True))
    return [None if part is None else _base64(part) for part in codes], named


def _training(title: str, curves: Sequence[Curve], axis: str) -> dict[str, Any]:
    return {
        "title": title,
        "axis": axis,
        "log": all(np.nanmin(curve.values, initial=np.inf) > 0 for curve in curves),
        "curves": [{"name": c.name, "x": _rounded(c.steps), "y": _rounded(c.values)} for c in curves],
    }


def _series(values: Any) -> pd.Series:
    return values.reset_index(drop=True) if isinstance(values, pd.Series) else pd.Series(values)


def _places(coords: np.ndarray) -> dict[str, str]:
    x, y = np.ascontiguousarray(coords.T, dtype="<f4")
    return {"x": _base64(x), "y": _base64(y)}


def _rounded(values: np.ndarray) -> list[float | None]:
    """Five significant digits; None where the browser should leave a gap."""
    return [_short(v) if np.isfinite(v) else None for v in values]


def _short(value: float) -> float:
    return float(f"{value:.5g}")


def _base64(array: np.ndarray) -> str:
    return b64encode(array.tobytes()).decode("ascii")
