"""What every runner shares. Runs in the peers' environments: scanpy is there, spatialgears is not.

A runner is ``python runner.py JOB.json``. The job names a slide (counts in ``.X``, ``obsm["spatial"]``,
``obs["slide"]``) and cells on the same genes (counts, ``obs["type"]``); the runner writes ``coords.npy`` and
``info.json`` into the job's folder.
"""

from __future__ import annotations

import json
import platform
import random
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import scanpy as sc
from scipy.spatial import cKDTree

Place = Callable[[ad.AnnData, ad.AnnData, int], Any]


def run(place: Place) -> None:
    """Read the job, place its cells, write the result: (n, 2), or a dict with ``coords`` in it."""
    job = json.loads(Path(sys.argv[1]).read_text())
    if job["source"]:
        sys.path.insert(0, job["source"])
    _seed(job["seed"])
    result = place(ad.read_h5ad(job["spots"]), ad.read_h5ad(job["cells"]), job["seed"])
    out = Path(job["out"])
    for name, array in (result if isinstance(result, dict) else {"coords": result}).items():
        np.save(out / f"{name}.npy", np.asarray(array, dtype=np.float64))
    info = {"versions": {"python": platform.python_version()}, "types": job["types"]}
    for package in job["packages"]:
        try:
            info["versions"][package] = version(package)
        except PackageNotFoundError:
            continue
    (out / "info.json").write_text(json.dumps(info))


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  the peers draw from the global generator
    try:
        import torch
    except ImportError:
        return
    torch.manual_seed(seed)


def dense(adata: ad.AnnData) -> np.ndarray:
    """The matrix, dense."""
    return adata.X.toarray() if hasattr(adata.X, "toarray") else np.asarray(adata.X)


def log_normalised(adata: ad.AnnData, target: float | None = None) -> ad.AnnData:
    """A dense copy, normalised to ``target`` (None: the median) and log1p."""
    copy = ad.AnnData(X=dense(adata).astype(np.float32), obs=adata.obs.copy(), var=adata.var.copy())
    copy.obsm.update(adata.obsm)
    sc.pp.normalize_total(copy, target_sum=target)
    sc.pp.log1p(copy)
    return copy


def expected(mapping: np.ndarray, spots: ad.AnnData) -> np.ndarray:
    """Expected coordinates (cells, 2) under a mapping (cells, spots) of non-negative weights."""
    mapping = np.asarray(mapping, dtype=np.float64)
    return mapping @ spots.obsm["spatial"] / mapping.sum(1, keepdims=True)


def at_types(abundance: Any, spots: ad.AnnData, cells: ad.AnnData) -> np.ndarray:
    """Each cell at its type's expected position, from a data frame of abundances (spots, types)."""
    places = dict(zip(abundance.columns, expected(abundance.to_numpy().T, spots), strict=True))
    return np.stack([places[name] for name in cells.obs["type"].astype(str)])


def pitch(spots: ad.AnnData) -> float:
    """Median distance of a spot to its nearest neighbour on the same slide."""
    nearest = []
    for _, index in spots.obs.groupby("slide", observed=True).indices.items():
        coords = spots.obsm["spatial"][index]
        nearest.append(cKDTree(coords).query(coords, 2)[0][:, 1])
    return float(np.median(np.concatenate(nearest)))


def needs_counts(*adatas: ad.AnnData) -> None:
    """Stop, with a sentence, if values are not counts."""
    if any(not np.array_equal(adata.X.data, np.rint(adata.X.data)) for adata in adatas):
        raise SystemExit("it models counts, and these data hold normalised values")


def zscored(spots: ad.AnnData, cells: ad.AnnData) -> tuple[ad.AnnData, ad.AnnData]:
    """Both sides log-normalised and z-scored, without the genes that are constant on one side."""
    both = [log_normalised(adata, 1e4) for adata in (spots, cells)]
    varies = np.all([adata.X.std(0) > 0 for adata in both], axis=0)
    scored = [ad.AnnData(X=(x - x.mean(0)) / x.std(0)) for x in (adata.X[:, varies] for adata in both)]
    return scored[0], scored[1]


def hundred(spots: ad.AnnData) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coordinates from 0 to 100, and corner and size, in the slide's units, of the box one unit larger.

    CeLEry maps that box to the unit square; on this scale its margin of one unit is small.
    """
    coords = spots.obsm["spatial"]
    low, high = coords.min(0), coords.max(0)
    unit = (high - low).max() / 100
    return (coords - low) / unit, low - unit, high - low + 2 * unit
