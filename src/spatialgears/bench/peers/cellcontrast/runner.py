"""CellContrast from its repository, with its parameters for spots (20 positives, its most similar spot) but 500 epochs.

Its 3,000 epochs are made for a GPU. Its training waits a tenth of a second after every epoch, for a progress bar; it does
not wait here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anndata as ad
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import log_normalised, run

EPOCHS = 500


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> np.ndarray:
    """The coordinates of the spot with the most similar representation."""
    import tempfile
    from types import SimpleNamespace

    import torch
    from cellContrast import inference, train

    torch.manual_seed(seed)  # importing it sets another
    train.time = SimpleNamespace(sleep=lambda _: None)
    published = Path(train.__file__).parents[1] / "parameters" / "parameters_spot.json"
    folder = Path(tempfile.mkdtemp())
    parameters = folder / "parameters.json"
    parameters.write_text(json.dumps(json.loads(published.read_text()) | {"training_epoch": EPOCHS}))
    slide, singles = log_normalised(spots, 1e4), log_normalised(cells, 1e4)
    slide.obs[["x", "y"]] = spots.obsm["spatial"]
    slide.obs["embryo"] = spots.obs["slide"].astype(str)  # its name for a sample
    options = SimpleNamespace(parameter_file_path=parameters, save_folder=folder)
    model = train.train_model(options, slide)
    of_cells, of_spots = (inference.infer_representations(model, adata) for adata in (singles, slide))
    return inference.map_to_ST(of_cells, of_spots, spots.obsm["spatial"])


if __name__ == "__main__":
    run(place)
