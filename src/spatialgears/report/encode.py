"""Arrays as compact text that a browser decodes in no time: base64 of typed arrays inside JSON.

Coordinates are float32, genes are quantised to 8 bits and other numbers to 16 (the largest code means
missing), labels are integer codes with their names apart.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from spatialgears.plotting import palette
from spatialgears.plotting.training import Curve, axis_name, phases
from spatialgears.report.content import ReportContent

DOMAIN = "domain"
UNCERTAINTY = "uncertainty, 90% radius"


def payload(content: ReportContent, *, max_cells: int) -> dict[str, Any]:
    """All that the page's script draws.

    Cells are put in a random order, the same each time, so that no group is drawn over another; above
    ``max_cells`` the first of that order stand for all.
    """
    n = len(content.coords)
    order = np.random.default_rng(0).permutation(n)[:max_cells]
    cells: dict[str, Any] = _places(np.asarray(content.coords)[order])
    if content.names is not None:
        cells["names"] = "\n".join(
            str(name).replace("\n", " ") for name in np.asarray(content.names, object)[order]
        )
    else:
        cells["rows"] = _base64(order.astype("<u4"))
    return {
        "total": n,
        "unit": content.unit,
        "cells": cells,
        "fields": _fields(content, order),
        "slides": [{"name": slide.name, **_places(np.asarray(slide.coords))} for slide in content.slides],
        "scale": palette_stops(),
        "missing": palette.MISSING,
        "history": [
            _training(f"{stage}, {phase}" if phase else stage, curves, axis_name(history))
            for stage, history in content.history.items()
            for phase, curves in phases(history).items()
        ],
    }


def as_script(value: Any) -> str:
    """JSON that can stand inside a script element: nothing in it ends the element or opens a comment."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def palette_stops(n: int = 128) -> list[str]:
    """Evenly spaced colours of the continuous palette."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return [to_hex(color) for color in colormaps[palette.CONTINUOUS](np.linspace(0, 1, n))]


def _fields(content: ReportContent, order: np.ndarray) -> list[dict[str, Any]]:
    def field(group: str, name: str, values: Any, on_slides: Sequence[Any], bits: int = 16) -> dict[str, Any]:
        cells = _series(values).iloc[order]
        labels = palette.is_categorical(cells)
        parts = [None if spots is None else _series(spots) for spots in on_slides]
        # labels go with labels, numbers with numbers
        slides = [None if part is None or palette.is_categorical(part) != labels else part for part in parts]
        coded = _labels(cells, slides) if labels else _numbers(cells, slides, bits)
        return {"group": group, "name": name, **coded}

    columns: dict[str, tuple[Any, list[Any]]] = {
        f"{name} (obs)" if name == DOMAIN and content.domains is not None else name: (
            values,
            [slide.obs.get(name) for slide in content.slides],
        )
        for name, values in content.obs.items()
    }
    if content.domains is not None:
        columns[DOMAIN] = content.domains, []
    # the map begins with the first
    names = sorted(columns, key=lambda name: _series(columns[name][0]).dtype == bool)
    fields = [field("Cells", name, *columns[name]) for name in names]
    if content.uncertainty is not None:
        fields.append(field("Cells", UNCERTAINTY, content.uncertainty, []) | {"unit": content.unit})
    return fields + [
        field("Genes", name, values, [s.genes.get(name) for s in content.slides], bits=8)
        for name, values in content.genes.items()
    ]


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


def _numbers(cells: pd.Series, slides: list[pd.Series | None], bits: int) -> dict[str, Any]:
    """Cells and slides differ in depth, so each has its own scale; the slides share theirs."""
    coded, ends = _quantise([cells], bits)
    on_slides, slide_ends = _quantise(slides, bits)
    return {
        "kind": "numbers",
        "bits": bits,
        "codes": coded[0],
        **ends,
        "slides": on_slides,
        "slideEnds": slide_ends,
    }


def _quantise(parts: Sequence[pd.Series | None], bits: int) -> tuple[list[str | None], dict[str, float]]:
    numbers = [None if part is None else part.to_numpy(np.float64, na_value=np.nan) for part in parts]
    pooled = np.concatenate([part for part in numbers if part is not None] or [np.empty(0)])
    finite = pooled[np.isfinite(pooled)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    missing, step = 2**bits - 1, (high - low) / (2**bits - 2) or 1.0

    def code(part: np.ndarray) -> str:
        steps = np.where(np.isfinite(part), (part - low) / step, missing)
        return _base64(np.rint(steps).astype("<u1" if bits == 8 else "<u2"))

    first, last = palette.limits(pooled)
    ends = {"low": low, "step": step, "first": first, "last": last}
    return [None if part is None else code(part) for part in numbers], ends


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
    return [float(f"{v:.5g}") if np.isfinite(v) else None for v in values]


def _base64(array: np.ndarray) -> str:
    return b64encode(array.tobytes()).decode("ascii")
