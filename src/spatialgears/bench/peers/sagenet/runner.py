"""SageNet from its repository as in its README: graphical lasso, five partitions of the slide, 20 epochs each.

It places cells relative to each other; each goes to one of the 10 spots with the most similar probabilities, which it
draws (``map2ref``).
"""

from __future__ import annotations

import sys
from pathlib import Path

import anndata as ad
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import log_normalised, run


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> np.ndarray:
    """The coordinates of the spot that it draws."""
    import scanpy as sc
    import torch_geometric.data
    from sklearn.neighbors import kneighbors_graph
    from torch_geometric.loader import DataLoader

    torch_geometric.data.DataLoader = DataLoader
    package = sys.modules["sagenet"] = type(sys)("sagenet")
    package.__path__ = [str(Path(sys.path[0]) / "sagenet")]  # without the data sets that it would load
    from sagenet.sage import sage
    from sagenet.utils import glasso, map2ref

    varies = spots.X.toarray().std(0) > 0
    slide, singles = log_normalised(spots[:, varies], 1e4), log_normalised(cells[:, varies], 1e4)
    glasso(slide)
    graph = kneighbors_graph(spots.obsm["spatial"], 6)
    graph = graph.maximum(graph.T)  # as squidpy draws it
    names = []
    for resolution in (0.01, 0.05, 0.1, 0.5, 1.0):
        names.append(f"leiden_{resolution:g}")
        sc.tl.leiden(
            slide,
            resolution=resolution,
            random_state=seed,
            key_added=names[-1],
            adjacency=graph,
            flavor="igraph",
            n_iterations=2,
            directed=False,
        )
        slide.obs[names[-1]] = slide.obs[names[-1]].astype(int)
    model = sage(device="cpu")
    model.add_ref(slide, comm_columns=names, tag="slide", epochs=20)
    for adata in (slide, singles):
        model.map_query(adata, save_pred=False, save_ent=False, save_prob=True)
    return spots.obsm["spatial"][map2ref(slide, singles)[0]]


if __name__ == "__main__":
    run(place)
