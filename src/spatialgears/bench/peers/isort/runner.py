"""iSORT as in its tutorial: density ratios (sigma 22), a network for each slide (500 epochs), then one for all (3,000).

Its package imports scTour, which only its velocities need.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anndata as ad
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import log_normalised, run


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> np.ndarray:
    """The output of the network; of a single slide, that of its network."""
    import torch

    sys.modules["sctour"] = type(sys)("sctour")
    from iSORTlib import iSORT, network

    network.seed_everything(seed)
    singles, slide = log_normalised(cells, 1e4), log_normalised(spots, 1e4)
    coords = spots.obsm["spatial"]
    coords = (coords - coords.mean(0)) / coords.std(0)
    ratio = iSORT.KLIEP(sigma=22)
    ratio.fit(singles)
    parts = list(spots.obs.groupby("slide", observed=True).indices.values())
    weights = [ratio.calculate_weights(slide[index]) for index in parts]
    x = torch.tensor(singles.X, dtype=torch.float32)
    placed = []
    for index, weight in zip(parts, weights, strict=True):
        model, criterion, optimizer = network.initialize_model(slide.n_vars, [256, 128, 64], 2)
        loaders = network.prepare_data(slide.X[index], coords[index], weight)
        network.train_and_validate(model, *loaders, optimizer, criterion, 500)
        placed.append(model.eval()(x).detach().numpy())
    if len(parts) > 1:
        betas = iSORT.optimize_prediction_weights(singles, *placed)
        model = network.NeuralNet(slide.n_vars, [256, 128, 64], 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, weight_decay=1e-4)
        slides, targets = [slide[index] for index in parts], [coords[index] for index in parts]
        network.train_model(model, optimizer, 3000, slides, targets, weights, betas)
        placed = [model.eval()(x).detach().numpy()]
    return placed[0] * spots.obsm["spatial"].std(0) + spots.obsm["spatial"].mean(0)


if __name__ == "__main__":
    run(place)
