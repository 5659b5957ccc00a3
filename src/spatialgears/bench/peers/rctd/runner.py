"""RCTD (rctd-py) in full mode with its defaults; places types."""

from __future__ import annotations

import sys
from pathlib import Path

import anndata as ad
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import at_types, needs_counts, run


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> np.ndarray:
    """Each cell at its type's expected position under the estimated weights; types that it drops, at the mean."""
    import pandas as pd
    from rctd import Reference, run_rctd

    needs_counts(spots, cells)
    reference = Reference(cells, cell_type_col="type")
    result = run_rctd(spots, reference, mode="full")
    kept = spots if result.pixel_mask is None else spots[np.asarray(result.pixel_mask)]
    weights = pd.DataFrame(np.asarray(result.weights), columns=result.cell_type_names)
    for name in set(cells.obs["type"].astype(str)) - set(weights):
        weights[name] = 1.0
    return at_types(weights, kept, cells)


if __name__ == "__main__":
    run(place)
