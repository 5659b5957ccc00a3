"""What runners of R packages share: both matrices as files, a script that Rscript runs on them, and a table back."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
from scipy.io import mmwrite

READ = """
args <- commandArgs(trailingOnly = TRUE)
set.seed(as.integer(args[2]))
suppressMessages(library(Matrix))
read <- function(name) {
  x <- as(readMM(file.path(args[1], paste0(name, ".mtx"))), "CsparseMatrix")
  dimnames(x) <- list(readLines(file.path(args[1], "genes.txt")), paste0(name, seq_len(ncol(x))))
  x
}
spots <- read("spots")
cells <- read("cells")
coords <- as.matrix(read.csv(file.path(args[1], "coords.csv")))
types <- readLines(file.path(args[1], "types.txt"))
"""
WRITE = '\nwrite.csv(result, file.path(args[1], "result.csv"), row.names = FALSE)\n'


def in_r(script: str, spots: ad.AnnData, cells: ad.AnnData, *, seed: int, source: str = "") -> pd.DataFrame:
    """The table ``result`` of a script that finds ``spots`` and ``cells`` (genes in rows), ``coords`` and ``types``."""
    folder = Path(tempfile.mkdtemp())
    for name, adata in (("spots", spots), ("cells", cells)):
        mmwrite(folder / f"{name}.mtx", adata.X.T.tocoo())
    (folder / "genes.txt").write_text("\n".join(f"gene{i}" for i in range(spots.n_vars)) + "\n")
    (folder / "types.txt").write_text("\n".join(cells.obs["type"].astype(str)) + "\n")
    np.savetxt(folder / "coords.csv", spots.obsm["spatial"], delimiter=",", header="x,y", comments="")
    (folder / "script.R").write_text(READ + script + WRITE)
    command = ["Rscript", "--vanilla", str(folder / "script.R"), str(folder), str(seed), source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(" ".join(done.stderr.split())[-300:])
    return pd.read_csv(folder / "result.csv", keep_default_na=False)
