"""COME from its repository: autoencoder, then mapping, with its values for STARmap.

Each cell goes to its expected coordinates under the positive part of its column of the mapping.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import expected, log_normalised, run


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> np.ndarray:
    """Pretrain, train and read the mapping (spots, cells)."""
    import torch

    work = tempfile.mkdtemp()
    for name in ("pretrain", "result"):
        os.mkdir(Path(work) / name)
    os.chdir(work)
    sys.argv = sys.argv[:1]  # its script parses the command line when imported
    import train_eval
    from configure import get_default_config
    from model import Model
    from sklearn.preprocessing import MinMaxScaler

    x1, x2 = (
        MinMaxScaler().fit_transform(log_normalised(adata, 1e4).X).astype(np.float32)
        for adata in (spots, cells)
    )
    config: dict[str, Any] = get_default_config("STARmap")
    config |= {"dims": [x1.shape[1], *config["dims"][1:]], "num_sample1": len(x1), "num_sample2": len(x2)}
    model = Model(config)
    first = torch.optim.Adam(model.ae.parameters(), lr=config["pre_lr"])
    train_eval.pretrain_ae(model.ae, first, np.concatenate([x1, x2]), config, "pretrain/ae.pkl")
    second = torch.optim.Adam(model.parameters(), lr=config["lr"])
    types = cells.obs["type"].astype(str).to_numpy()
    same = (types[:, None] == types[None]).astype(np.float32)
    train_eval.train(model, second, x1, x2, same, config, "result/model.pkl")
    mapping = model.map.Coefficient.detach().numpy().T.clip(min=0)  # (cells, spots)
    return expected(mapping + 1e-12, spots)


if __name__ == "__main__":
    run(place)
