"""gimVI in scvi-tools with its defaults (200 epochs).

It predicts genes of the cells that the slide lacks: those of the file that the job names as ``hidden``. It gives cells no place
of their own: each goes to the mean of its 5 nearest spots in the latent space.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import anndata as ad
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import expected, run


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> dict[str, np.ndarray]:
    """Expected coordinates, and hidden genes at the spots, as shares of all counts."""
    import scvi
    from scipy.spatial import cKDTree
    from scvi.external import GIMVI

    hidden = json.loads(Path(sys.argv[1]).read_text()).get("hidden")
    singles = ad.concat([cells, ad.read_h5ad(hidden)], axis=1) if hidden else cells
    scvi.settings.seed = seed
    for adata in (singles, spots):
        GIMVI.setup_anndata(adata)
    model = GIMVI(singles, spots)
    model.train(max_epochs=200, accelerator="cpu", enable_progress_bar=False)
    latent = model.get_latent_representation()
    near = cKDTree(latent[1]).query(latent[0], 5)[1]
    mapping = np.zeros((cells.n_obs, spots.n_obs))
    np.put_along_axis(mapping, near, 1, 1)
    values = model.get_imputed_values(normalized=True)[1]
    return {"coords": expected(mapping, spots), "imputed": values[:, cells.n_vars :]}


if __name__ == "__main__":
    run(place)
