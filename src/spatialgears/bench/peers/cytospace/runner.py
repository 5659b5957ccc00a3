"""CytoSPACE from its repository, with its defaults; each cell goes to its assigned spot.

So that every cell is placed once, the number of cells per spot is given: all cells, shared out by the spots'
counts, with the cells' own type fractions. A cell it leaves out goes to the mean place of its type.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import dense, run


def cells_per_spot(spots: ad.AnnData, n_cells: int) -> np.ndarray:
    """Whole numbers that sum to ``n_cells``, in proportion to the spots' counts."""
    share = np.cumsum(np.asarray(spots.X.sum(1)).ravel())
    return np.diff(np.rint(n_cells * share / share[-1]).astype(int), prepend=0)


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> np.ndarray:
    """Write CytoSPACE's tables, run it, read its assignment."""
    from cytospace.cytospace import main_cytospace

    folder = Path(tempfile.mkdtemp())
    singles, names = [f"c{i}" for i in range(cells.n_obs)], [f"s{i}" for i in range(spots.n_obs)]
    types = cells.obs["type"].astype(str).to_numpy()
    fractions = pd.Series(types).value_counts(normalize=True).to_frame("fraction").T
    coords = spots.obsm["spatial"]
    written = {
        "scRNA_path": pd.DataFrame(dense(cells).T, index=cells.var_names, columns=singles),
        "cell_type_path": pd.DataFrame({"CellType": types}, index=singles),
        "st_path": pd.DataFrame(dense(spots).T, index=spots.var_names, columns=names),
        "coordinates_path": pd.DataFrame(coords, index=names, columns=["row", "col"]),
        "cell_type_fraction_estimation_path": fractions,
        "n_cells_per_spot_path": pd.DataFrame({"cells": cells_per_spot(spots, cells.n_obs)}, index=names),
    }
    paths = {name: str(folder / f"{name}.txt") for name in written}
    for name, frame in written.items():
        frame.to_csv(paths[name], sep="\t", index_label="id")
    options = {"output_folder": str(folder / "out"), "plot_off": True, "seed": seed, "delimiter": "\t"}
    known = inspect.signature(main_cytospace).parameters  # they differ between its versions
    main_cytospace(**paths, **{name: value for name, value in options.items() if name in known})
    assigned = pd.read_csv(folder / "out" / "assigned_locations.csv")
    chosen = assigned.groupby("OriginalCID")["SpotID"].first()
    place_of = pd.DataFrame(coords, index=names).reindex(chosen.reindex(singles).to_numpy()).to_numpy()
    frame = pd.DataFrame(place_of).assign(type=types)
    means = frame.groupby("type")[[0, 1]].transform("mean")
    return frame[[0, 1]].fillna(means).fillna(frame[[0, 1]].mean()).to_numpy()


if __name__ == "__main__":
    run(place)
