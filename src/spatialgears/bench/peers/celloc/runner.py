"""Celloc from its repository, greedy mapping as in its tutorial: each cell at the spot with its largest weight.

It asks for a GPU and for torch-cluster; here it runs on the CPU, with the same nearest neighbours from scipy. Its
structural term has weight zero in the tutorial, so it is not computed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import log_normalised, run


class OnCPU:
    """The module ``torch`` whose devices are all the CPU."""

    def __getattr__(self, name: str) -> Any:
        import torch

        return (lambda _: torch.device("cpu")) if name == "device" else getattr(torch, name)


def nearest(x: Any, k: int, **_: Any) -> Any:
    """The edges (2, n * k) of every point to its k nearest, itself among them."""
    import torch
    from scipy.spatial import cKDTree

    found = cKDTree(x.numpy()).query(x.numpy(), k)[1]  # (n, k)
    return torch.tensor(np.stack([np.repeat(np.arange(len(found)), k), found.ravel()]))


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> np.ndarray:
    """The coordinates of the spot with the largest weight; cells per spot by its estimate from counts."""
    import scanpy as sc
    import torch

    sys.modules["datatable"] = type(sys)("datatable")  # reads tables faster; none are read here
    from Celloc import CELLOC, mapping_optimizer
    from Celloc.common import estimate_cell_number_RNA_reads

    torch.manual_seed(seed)
    CELLOC.torch, CELLOC.knn_graph = OnCPU(), nearest
    mapping_optimizer.space_loss2 = lambda *_: torch.zeros(())
    per_spot = estimate_cell_number_RNA_reads(spots.to_df().T, max(1, round(cells.n_obs / spots.n_obs)))
    singles, slide = log_normalised(cells, 1e6), log_normalised(spots, 1e6)
    sc.tl.pca(singles, n_comps=min(50, *(n - 1 for n in singles.shape)))
    mapping = CELLOC.paired_align(
        singles, slide, b_init=per_spot, use_gpu=False, task="location_recovery"
    )  # (cells, spots)
    return spots.obsm["spatial"][mapping.argmax(1)]


if __name__ == "__main__":
    run(place)
