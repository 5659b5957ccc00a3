"""Time and memory of what rests on weights of cells and spots, up to a hundred thousand cells and at five thousand spots."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from numpy.typing import NDArray
from scipy import sparse

from spatialgears import analysis
from spatialgears.bench.harness import Limits, launch
from spatialgears.bench.request import Outcome, Request, Tell
from spatialgears.bench.scaling import sizes_of, slopes
from spatialgears.bench.store import Row, Store
from spatialgears.bench.tables import plain_table
from spatialgears.errors import RunError
from spatialgears.runtime.files import temporary_folder
from spatialgears.runtime.seeds import numpy_rng

SIZES = (25_000, 100_000)  # cells
SIZE: dict[str, int] = {"n_spots": 5000, "n_genes": 2000}
FUNCTIONS: dict[str, Callable[[AnnData, AnnData], Any]] = {
    "spot_weights": analysis.spot_weights,
    "transfer": partial(analysis.transfer, key="region"),
    "impute, 500 genes": lambda cells, slide: analysis.impute(cells, slide, list(cells.var_names[:500])),
    "abundance": analysis.abundance,
}
_ONE = "import sys, spatialgears.bench.many_cells as m; m.time_one(*sys.argv[1:])"


def run(request: Request, tell: Tell) -> Outcome:
    """One row per function and number of cells, and how time and memory grow with it."""
    sizes, rows = sizes_of(request.sizes, SIZES), []
    for name in FUNCTIONS:
        for n_cells in sizes:
            size = {"n_cells": n_cells, **SIZE}
            made = partial(timed, name, size, request.limits)
            row = Store(request.out).once("many cells", name, size, request.threads, make=made)
            tell(f"{name}, {n_cells:,} cells: {row['seconds']:.0f} s, {row['peak GB']:.1f} GB")
            rows.append(row)
    words = "{n_spots:,} spots, {n_genes:,} genes".format(**SIZE)
    text = f"### many-cells: {words}, {request.threads} thread{'s' * (request.threads != 1)}\n\n{plain_table(rows)}\n"
    if len(sizes) > 1:
        of = {name: slopes([row for row in rows if row["function"] == name]) for name in FUNCTIONS}
        grown = [{"function": name, **slope} for name, slope in of.items()]
        text += f"\n### log-log slope against cells (1: linear)\n\n{plain_table(grown)}\n"
    return Outcome(text, rows)


def timed(name: str, size: dict[str, int], limits: Limits) -> Row:
    """Seconds of one function and peak memory of its process, which holds the data, too."""
    with temporary_folder("many-cells") as folder:
        found = Path(folder) / "seconds.json"
        used = launch([sys.executable, "-c", _ONE, name, json.dumps(size), str(found)], Path(folder), limits)
        if not found.exists():
            raise RunError(f"{name} did not finish: {(Path(folder) / 'log.txt').read_text()[-500:]}")
        measured = json.loads(found.read_text())
        return {"function": name, "cells": size["n_cells"], **measured, "peak GB": used["peak_gb"]}


def time_one(name: str, size: str, path: str) -> None:
    """Write how many seconds one function takes to a file."""
    cells, slide = many(**json.loads(size))
    start = time.perf_counter()
    FUNCTIONS[name](cells, slide)
    Path(path).write_text(json.dumps({"seconds": time.perf_counter() - start}))


def many(n_cells: int, n_spots: int, n_genes: int) -> tuple[AnnData, AnnData]:
    """Cells with places, types and radii, and a slide with regions: patterned counts, of which a tenth is not zero."""
    rng = numpy_rng(0, "many cells")
    waves = rng.normal(size=(2, n_genes)) * 3

    def profiles(coords: NDArray[np.float64], depth: float) -> sparse.csr_matrix:
        rows = [
            sparse.csr_matrix(rng.poisson(depth * np.exp(np.sin(part @ waves) - 2.8)).astype(np.float32))
            for part in np.array_split(coords, -(-len(coords) // 2000))
        ]
        return sparse.vstack(rows, format="csr")

    side = int(np.sqrt(n_spots))
    grid = np.stack(np.meshgrid(*[np.linspace(-1.5, 1.5, side)] * 2), -1).reshape(-1, 2)
    coords = rng.uniform(-1.5, 1.5, (n_cells, 2))
    genes = pd.DataFrame(index=[f"gene{i}" for i in range(n_genes)])
    cells = AnnData(
        profiles(coords, 1.0), obs=pd.DataFrame(index=[f"cell{i}" for i in range(n_cells)]), var=genes
    )
    cells.obsm["X_gears"] = coords + rng.normal(scale=0.1, size=coords.shape)
    cells.obs["gears_radius50"] = 0.12
    cells.obs["cell_type"] = [f"type {i}" for i in rng.integers(20, size=n_cells)]
    slide = AnnData(
        profiles(grid, 5.0), obs=pd.DataFrame(index=[f"spot{i}" for i in range(len(grid))]), var=genes
    )
    slide.obsm["spatial"] = grid * 1000
    slide.obs["region"] = [f"region {int(x * 3 + 4.5)}" for x in grid[:, 0]]
    return cells, slide
