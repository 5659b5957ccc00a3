"""DestVI in scvi-tools, as in its tutorial: 300 epochs on the cells, 2,500 on the slide; types are placed."""

from __future__ import annotations

import sys
from pathlib import Path

import anndata as ad
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import at_types, needs_counts, run


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> np.ndarray:
    """Each cell at its type's expected position under the estimated proportions."""
    import scvi
    from scvi.model import CondSCVI, DestVI

    needs_counts(spots, cells)
    scvi.settings.seed = seed
    quiet = {"accelerator": "cpu", "enable_progress_bar": False}
    CondSCVI.setup_anndata(cells, labels_key="type")
    reference = CondSCVI(cells, weight_obs=False, prior="mog")  # the prior its current tutorial takes
    reference.train(max_epochs=300, **quiet)
    DestVI.setup_anndata(spots)
    model = DestVI.from_rna_model(spots, reference)
    model.train(max_epochs=2500, **quiet)
    return at_types(model.get_proportions(), spots, cells)


if __name__ == "__main__":
    run(place)
