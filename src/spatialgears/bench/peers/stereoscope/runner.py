"""Stereoscope in scvi-tools as in its tutorial: 100 epochs on cells, 10,000 on the slide; places types."""

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
    from scvi.external import RNAStereoscope, SpatialStereoscope

    needs_counts(spots, cells)
    scvi.settings.seed = seed
    quiet = {"accelerator": "cpu", "enable_progress_bar": False}
    RNAStereoscope.setup_anndata(cells, labels_key="type")
    reference = RNAStereoscope(cells)
    reference.train(max_epochs=100, **quiet)
    SpatialStereoscope.setup_anndata(spots)
    model = SpatialStereoscope.from_rna_model(spots, reference)
    model.train(max_epochs=10_000, **quiet)
    return at_types(model.get_proportions(), spots, cells)


if __name__ == "__main__":
    run(place)
