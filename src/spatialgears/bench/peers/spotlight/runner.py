"""SPOTlight from its repository as in its vignette: markers by AUC, 100 cells of each type, seeded NMF; places types."""

from __future__ import annotations

import sys
from pathlib import Path

import anndata as ad
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from common import at_types, needs_counts, run
from in_r import in_r

SCRIPT = """
suppressMessages({library(NMF); library(nnls); library(SingleCellExperiment)})
library(sparseMatrixStats)
colMedians <- matrixStats::colMedians
for (name in c("utils", "trainNMF", "runDeconvolution", "SPOTlight")) source(file.path(args[3], "R", paste0(name, ".R")))
kept <- unlist(lapply(split(seq_along(types), types), function(i) i[sample.int(length(i), min(100, length(i)))]))
cells <- as.matrix(cells[, kept]); types <- types[kept]
level <- log1p(t(t(cells) / pmax(colSums(cells), 1)) * 1e4)
ranks <- t(apply(level, 1, rank))
markers <- do.call(rbind, lapply(unique(types), function(type) {
  n <- sum(types == type)
  auc <- (rowSums(ranks[, types == type, drop = FALSE]) - n * (n + 1) / 2) / (n * (length(types) - n))
  best <- order(-auc)[seq_len(max(10, sum(auc > 0.8)))]
  data.frame(gene = rownames(cells)[best], cluster = type, weight = auc[best])
}))
found <- SPOTlight(cells, as.matrix(spots), groups = types, mgs = markers, verbose = FALSE)
result <- as.data.frame(found$mat, check.names = FALSE)
"""


def place(spots: ad.AnnData, cells: ad.AnnData, seed: int) -> np.ndarray:
    """Each cell at its type's expected position under the estimated proportions."""
    needs_counts(spots, cells)
    named = cells.copy()
    codes = cells.obs["type"].astype("category").cat
    named.obs["type"] = [f"t{code}" for code in codes.codes]  # names that R does not change
    found = in_r(SCRIPT, spots, named, seed=seed, source=sys.path[0])
    return at_types(found + 1e-9, spots, named)


if __name__ == "__main__":
    run(place)
