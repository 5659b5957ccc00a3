"""The files of a task that methods read; each is written when it is first needed.

Our methods and references read slides and cells as they are. Peers take one slide, so they get two files on the same
genes: all slides merged into one (see :func:`merge_slides`), and the cells with a cell type for each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scanpy as sc
import scipy.sparse as sp
from anndata import AnnData
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from spatialgears.bench.protocols import Task, donor
from spatialgears.bench.references import poses, shared_genes

#: Peers get at most this many genes: the most variable ones of the slides, as in their tutorials.
PEER_GENES = 2000


@dataclass(frozen=True, eq=False)
class TaskFiles:
    """The files of one task, in ``folder``."""

    task: Task
    folder: Path

    def write_job(self, job: Mapping[str, Any]) -> str:
        """Write what a process is to do; the path of the file."""
        path = self.folder / "job.json"
        path.write_text(json.dumps(job))
        return str(path)

    @cached_property
    def slides(self) -> list[Path]:
        """One file per slide."""
        paths = [self.folder / f"slide_{i}.h5ad" for i in range(len(self.task.slides))]
        for path, slide in zip(paths, self.task.slides, strict=True):
            spatial = np.asarray(slide.obsm["spatial"], dtype=np.float64)[:, :2]
            plain(slide, np.arange(slide.n_vars), obsm={"spatial": spatial}).write_h5ad(path)
        return paths

    @cached_property
    def cells(self) -> Path:
        """The cells: counts and names only."""
        path = self.folder / "cells.h5ad"
        plain(self.task.cells, np.arange(self.task.cells.n_vars)).write_h5ad(path)
        return path

    @cached_property
    def truth(self) -> Path | None:
        """True positions, for methods that may see them."""
        if self.task.truth is None:
            return None
        path = self.folder / "truth.npy"
        np.save(path, self.task.truth)
        return path

    @cached_property
    def peer_pair(self) -> tuple[Path, Path, str]:
        """Slide file, cell file, and the origin of the cell types."""
        cells = self.task.cells
        slide = merge_slides(self.task.slides, cells)
        genes = shared_genes([slide, cells])
        slide, cells = slide[:, genes].copy(), cells[:, genes].copy()
        columns = variable_genes(slide, PEER_GENES)
        types, origin = cell_types(cells, self.task.types)
        spots, singles = self.folder / "peer_st.h5ad", self.folder / "peer_sc.h5ad"
        labels = {"slide": slide.obs["slide"].to_numpy()}
        plain(slide, columns, obs=labels, obsm=dict(slide.obsm)).write_h5ad(spots)
        plain(cells, columns, obs={"type": types.astype(object)}).write_h5ad(singles)
        return spots, singles, origin


def merge_slides(slides: Sequence[AnnData], cells: AnnData) -> AnnData:
    """All slides as one: shared genes, and every slide in the frame of the first (see :func:`.references.poses`).

    So methods that take one slide get the spots of all slides, as the references do.
    """
    genes = shared_genes(slides)
    first = np.asarray(slides[0].obsm["spatial"], dtype=np.float64)[:, :2]
    radius = np.sqrt(((first - first.mean(0)) ** 2).sum(1).mean())
    label = np.repeat([f"slide {i}" for i in range(len(slides))], [slide.n_obs for slide in slides])
    return AnnData(
        X=sp.vstack([sp.csr_matrix(slide[:, genes].X) for slide in slides], format="csr"),
        obs=pd.DataFrame({"slide": label.astype(object)}, index=[f"o{i}" for i in range(len(label))]),
        var=pd.DataFrame(index=genes),
        obsm={"spatial": np.vstack(poses(slides, cells)) * radius + first.mean(0)},
    )


def variable_genes(adata: AnnData, n_genes: int) -> np.ndarray:
    """Columns of the ``n_genes`` most variable genes, in their order; all columns if there are fewer."""
    if adata.n_vars <= n_genes:
        return np.arange(adata.n_vars)
    work = AnnData(X=sp.csr_matrix(adata.X, dtype=np.float32))
    sc.pp.normalize_total(work, target_sum=1e4)
    sc.pp.log1p(work)
    chosen = sc.pp.highly_variable_genes(work, n_top_genes=n_genes, inplace=False)
    return np.flatnonzero(chosen["highly_variable"].to_numpy())


def cell_types(cells: AnnData, key: str | None, *, n_clusters: int = 15) -> tuple[np.ndarray, str]:
    """A type for every cell, given or a k-means cluster of 30 principal components; and which of the two."""
    if key is not None:
        return cells.obs[key].astype(str).to_numpy(), f"given types ({key})"
    work = AnnData(X=sp.csr_matrix(cells.X, dtype=np.float32))
    sc.pp.normalize_total(work, target_sum=1e4)
    sc.pp.log1p(work)
    work = work[:, variable_genes(cells, PEER_GENES)]
    dense = work.X.toarray()
    scores = PCA(min(30, *(n - 1 for n in dense.shape)), random_state=0).fit_transform(dense)
    n_clusters = max(2, min(n_clusters, len(dense) // 20))
    labels = KMeans(n_clusters, n_init=4, random_state=0).fit_predict(scores)
    return np.array([f"cluster {i}" for i in labels]), f"{n_clusters} k-means clusters"


def plain(
    adata: AnnData,
    columns: np.ndarray,
    *,
    obs: dict[str, np.ndarray] | None = None,
    obsm: dict[str, np.ndarray] | None = None,
) -> AnnData:
    """Counts (float32, CSR) that every version of anndata can read, with names that do not reveal positions; the donor."""
    return AnnData(
        X=sp.csr_matrix(adata.X, dtype=np.float32)[:, columns],
        obs=pd.DataFrame(obs, index=[f"o{i}" for i in range(adata.n_obs)]),
        var=pd.DataFrame(index=adata.var_names[columns].astype(object)),
        obsm=obsm,
        uns=donor(adata),
    )
