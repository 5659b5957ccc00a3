"""LUNA from its repository with the settings of its example (8 layers of 256, batches of 6 sections, rate 5e-4), on the CPU.

Its example trains for 1,000 epochs and samples in 1,000 denoising steps, on a GPU. Here training stops after the last of
``EPOCHS``, and a sample takes every 20th of these steps. Samples after fewer epochs, and one of all steps if there are
few cells, have rows of their own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import log_normalised, run

EPOCHS = (30, 100, 300)
EVERY = 20
FEW = 600


def frame(adata: ad.AnnData, coords: np.ndarray, section: np.ndarray) -> Any:
    """The table that LUNA reads: genes (log2), then coordinates, section and class."""
    table = (log_normalised(adata, 1e4).to_df() / np.log(2)).reset_index(drop=True)
    return table.assign(coord_X=coords[:, 0], coord_Y=coords[:, 1], cell_section=section, cell_class="cell")


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> dict[str, np.ndarray]:
    """A sample after each number of epochs; the last is the result."""
    import tempfile

    import diffusion_model
    import pytorch_lightning as pl
    import torch
    from datasets.data_module import DataModule, Infos
    from omegaconf import OmegaConf
    from utils.data.misc import to_batch
    from utils.diffusion_model.sample.sample import sample_noise, sample_zs_from_zt

    configs = Path(diffusion_model.__file__).parent / "configs"
    parts = {
        name: OmegaConf.load(configs / name / "default.yaml")
        for name in ("general", "train", "test", "model")
    }
    cfg = OmegaConf.merge(
        OmegaConf.create(parts), OmegaConf.load(configs / "experiment" / "MERFISH_mouse_cortex.yaml")
    )
    folder = Path(tempfile.mkdtemp())
    frame(spots, spots.obsm["spatial"], spots.obs["slide"].astype(str).to_numpy()).to_csv(
        folder / "train.csv"
    )
    frame(cells, np.random.default_rng(0).random((cells.n_obs, 2)), np.full(cells.n_obs, "cells")).to_csv(
        folder / "test.csv"
    )
    cfg.dataset |= {"gene_columns_end": spots.n_vars, "train_data_path": str(folder / "train.csv")}
    cfg.dataset.test_data_path = str(folder / "test.csv")
    pl.seed_everything(seed)
    data = DataModule(cfg)
    model = diffusion_model.FullDenoisingDiffusion(cfg=cfg, dataset_infos=Infos(data, cfg))
    model.on_fit_start = lambda: None  # it would call wandb
    (batch,) = data.test_dataloader()
    found = {}

    @torch.no_grad()
    def sampled(every: int) -> np.ndarray:
        state = sample_noise(model.eval(), to_batch(batch))
        for step in reversed(range(0, model.max_diffusion_steps, every)):
            state = sample_zs_from_zt(model, state, torch.full((1, 1), step))
        coords = np.empty((cells.n_obs, 2))
        coords[batch.cell_ID.numpy().ravel()] = state.positions[0].numpy()
        return coords

    def after_epoch(trainer: Any, _: Any) -> None:
        if trainer.current_epoch + 1 in EPOCHS:
            found[f"after {trainer.current_epoch + 1}"] = sampled(EVERY)

    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=EPOCHS[-1],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[pl.callbacks.LambdaCallback(on_train_epoch_end=after_epoch)],
    )
    # its loader starts 32 processes in every epoch; all sections of these slides fit into one batch
    batches: Any = list(data.train_dataloader())
    trainer.fit(model, torch.utils.data.DataLoader(batches, batch_size=None))
    found["coords"] = found.pop(f"after {EPOCHS[-1]}")
    if cells.n_obs <= FEW:
        found["in 1,000 steps"] = sampled(1)
    return found


if __name__ == "__main__":
    run(place)
