"""Seurat's anchors between slide and cells with their defaults; coordinates are transferred like expression values."""

from __future__ import annotations

import sys
from pathlib import Path

import anndata as ad
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import run
from in_r import in_r

SCRIPT = """
suppressMessages(library(Seurat))
prepare <- function(x) {
  object <- NormalizeData(CreateSeuratObject(x), verbose = FALSE)
  FindVariableFeatures(object, nfeatures = min(2000, nrow(x)), verbose = FALSE)
}
slide <- prepare(spots)
singles <- prepare(cells)
anchors <- FindTransferAnchors(slide, singles, features = intersect(VariableFeatures(slide), rownames(cells)), verbose = FALSE)
places <- t(coords)
dimnames(places) <- list(c("x", "y"), colnames(spots))
k <- min(50, nrow(anchors@anchors))
moved <- TransferData(anchors, places, k.weight = k, verbose = FALSE)
result <- t(as.matrix(GetAssayData(moved, "data")))
"""


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> np.ndarray:
    """The transferred coordinates."""
    return in_r(SCRIPT, spots, cells, seed=seed).to_numpy()


if __name__ == "__main__":
    run(place)
