"""CeLEry's 95% region for each cell (``Fit_region``): of the peers, the only statement of uncertainty.

The region is an ellipse along the axes; its centre is taken as the cell's place, and ``region.npy`` holds
centre and half-axes in the slide's units.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import hundred, run, zscored


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> dict[str, np.ndarray]:
    """Centres, and centres with half-axes, brought back from the unit square."""
    import tempfile

    import CeLEry as cel
    import torch

    train, test = zscored(spots, cells)
    location, corner, size = hundred(spots)
    where = {"path": tempfile.mkdtemp(), "filename": "region"}
    model = cel.Fit_region(
        train,
        alpha=0.95,
        location_data=pd.DataFrame(location),
        hidden_dims=[30, 25, 15],
        num_epochs_max=500,
        num_workers=0,
        seednum=seed,
        **where,
    )
    with torch.no_grad():
        centre, radius, *_ = model([torch.tensor(test.X, dtype=torch.float32)])
    centre, radius = centre.numpy() * size + corner, radius.numpy() * size
    return {"coords": centre, "region": np.column_stack([centre, radius])}


if __name__ == "__main__":
    run(place)
