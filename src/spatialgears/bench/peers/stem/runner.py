"""STEM as in its README: dropout by the gap in detected genes, sigma half the pitch, 400 epochs.

Its MMD materialises all pairwise differences, gigabytes of them; the same kernel is computed here from
squared norms.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anndata as ad
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import expected, log_normalised, pitch, run


def cheap_kernel(
    self: Any, source: Any, target: Any, kernel_mul: float, kernel_num: int, fix_sigma: float | None
) -> Any:
    """The sum of Gaussian kernels of STEM's MMD, with squared distances from |a|^2 + |b|^2 - 2ab."""
    import torch

    total = torch.cat([source, target])  # (n, d)
    norms = (total**2).sum(1)
    squared = (norms[:, None] + norms[None] - 2 * total @ total.T).clamp_min(0)  # (n, n)
    n = len(total)
    bandwidth = fix_sigma or squared.data.sum() / (n**2 - n)
    bandwidth = bandwidth / kernel_mul ** (kernel_num // 2)
    return sum(torch.exp(-squared / (bandwidth * kernel_mul**i)) for i in range(kernel_num))


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> np.ndarray:
    """Expected coordinates under the softmax of similarities; several slides are trained on as a list."""
    import tempfile

    import torch
    from STEM.model import SOmodel
    from STEM.utils import MMDLoss, seed_all

    MMDLoss.guassian_kernel = cheap_kernel  # the authors' spelling
    seed_all(seed)
    detected = [np.median(adata.X.getnnz(1)) for adata in (cells, spots)]
    options = SimpleNamespace(
        device="cpu",
        outf=tempfile.mkdtemp(),
        n_genes=spots.n_vars,
        no_bn=False,
        lr=0.002,
        sigma=pitch(spots) / 2,
        alpha=0.8,
        verbose=False,
        mmdbatch=1000,
        dp=max(0.0, float(1 - detected[0] / detected[1])),
    )
    singles = torch.tensor(log_normalised(cells).X)
    mixed = torch.tensor(log_normalised(spots).X)
    coords = torch.tensor(spots.obsm["spatial"]).float()
    slides = [torch.tensor(index) for index in spots.obs.groupby("slide", observed=True).indices.values()]
    model = SOmodel(options)
    if len(slides) == 1:
        model.train_wholedata(400, singles, mixed, coords)
    else:
        model.train_wholedata(400, singles, [mixed[i] for i in slides], [coords[i] for i in slides])
    model.modeleval()
    with torch.no_grad():
        similarity = model.netE(singles) @ model.netE(mixed).T  # (cells, spots)
    return expected(similarity.softmax(1).numpy(), spots)


if __name__ == "__main__":
    run(place)
