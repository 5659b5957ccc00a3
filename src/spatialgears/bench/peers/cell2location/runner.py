"""cell2location as in its tutorial: 250 epochs for signatures, 30,000 for the slide; types are placed."""

from __future__ import annotations

import sys
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import at_types, needs_counts, run


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> np.ndarray:
    """Each cell at its type's expected position under the 5% quantile of abundance."""
    import scvi
    from cell2location.models import Cell2location, RegressionModel

    needs_counts(spots, cells)
    scvi.settings.seed = seed
    quiet = {"accelerator": "cpu", "enable_progress_bar": False}
    RegressionModel.setup_anndata(cells, labels_key="type")
    reference = RegressionModel(cells)
    reference.train(max_epochs=250, batch_size=2500, **quiet)
    cells = reference.export_posterior(cells, sample_kwargs={"num_samples": 1000, "batch_size": 2500})
    names = list(cells.uns["mod"]["factor_names"])
    means = cells.varm["means_per_cluster_mu_fg"][[f"means_per_cluster_mu_fg_{name}" for name in names]]
    means.columns = names
    Cell2location.setup_anndata(spots, batch_key="slide")
    model = Cell2location(spots, cell_state_df=means, N_cells_per_location=8, detection_alpha=20)
    model.train(max_epochs=30_000, batch_size=None, train_size=1, **quiet)
    spots = model.export_posterior(spots, sample_kwargs={"num_samples": 1000, "batch_size": spots.n_obs})
    abundance = spots.obsm["q05_cell_abundance_w_sf"]
    return at_types(pd.DataFrame(abundance.to_numpy(), columns=names), spots, cells)


if __name__ == "__main__":
    run(place)
