"""Seconds of each analysis of ``sg.tl`` on many simulated cells. Run with ``gears bench analyses``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from anndata import AnnData
from matplotlib.figure import Figure

from spatialgears import analysis, metrics
from spatialgears.datasets import simulate_tissue
from spatialgears.plotting.canvas import plain

CELLS = 100_000
TYPES = "cell_type"


def rows(n_cells: int = CELLS, *, seed: int = 0) -> Iterator[dict[str, Any]]:
    """One row per function: what it did, and how long it took."""
    tissue = simulate_tissue(n_cells=n_cells, n_genes=200, n_sections=1, spots=500, seed=seed)
    cells, slide = tissue.cells, tissue.slides[0]
    cells.obsm["X_gears"] = metrics.canonical(tissue.truth.obsm["spatial"]).astype(np.float32)
    cells.obs["gears_radius50"], cells.obs["gears_outside"] = np.float32(0.05), False
    wanted = cells.obs[TYPES].mode()[0]
    calls: dict[str, Callable[[AnnData], object]] = {
        "spatial_domains": lambda x: analysis.spatial_domains(x, labels=TYPES),
        "register": lambda x: analysis.register(x, slide),
        "marker_enrichment": lambda x: analysis.marker_enrichment(x, slide, wanted, labels=TYPES),
        "spatial_expression": lambda x: analysis.spatial_expression(x, list(x.var_names[:10]), slide=slide),
        "neighbors_by_type": lambda x: analysis.neighbors_by_type(x, TYPES),
        "mixing": lambda x: analysis.mixing(x, TYPES, basis="X_gears"),
    }
    for name, call in calls.items():
        start = time.perf_counter()
        call(cells)
        yield {"function": f"tl.{name}", "cells": n_cells, "seconds": time.perf_counter() - start}


def draw(found: list[dict[str, Any]]) -> Figure:
    """A bar per function."""
    figure = Figure(figsize=(6, 2.8), layout="constrained")
    ax = figure.subplots()
    ax.barh([row["function"] for row in found], [row["seconds"] for row in found])
    ax.invert_yaxis()
    ax.set(xlabel=f"seconds, {found[0]['cells']:,} cells")
    plain(ax)
    return figure
