"""CeLEry as in its tutorial: z-scored genes, hidden layers 30, 25, 15, at most 500 epochs."""

from __future__ import annotations

import sys
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import hundred, run, zscored


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> np.ndarray:
    """Predicted coordinates, brought back from the unit square."""
    import tempfile

    import CeLEry as cel

    train, test = zscored(spots, cells)
    location, corner, size = hundred(spots)
    where = {"path": tempfile.mkdtemp(), "filename": "model"}
    cel.Fit_cord(
        train,
        location_data=pd.DataFrame(location),
        hidden_dims=[30, 25, 15],
        num_epochs_max=500,
        num_workers=0,
        seednum=seed,
        **where,
    )
    return cel.Predict_cord(data_test=test, **where) * size + corner


if __name__ == "__main__":
    run(place)
