"""Mappings of cells to spots by peers, from which genes, labels and types are read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from anndata import AnnData
from numpy.typing import NDArray

from spatialgears.bench.files import TaskFiles, plain
from spatialgears.bench.harness import Limits, judge, launch
from spatialgears.bench.methods import PeerMethod
from spatialgears.bench.peers import HERE
from spatialgears.bench.protocols import Task
from spatialgears.bench.store import Row
from spatialgears.errors import InputError, RunError
from spatialgears.runtime.files import temporary_folder


def mapped(
    method: PeerMethod,
    slides: Sequence[AnnData],
    cells: AnnData,
    limits: Limits,
    *,
    types: str | None = None,
    hidden: Sequence[str] = (),
) -> tuple[dict[str, NDArray[Any]], Row]:
    """What a peer gives, and what it used; nothing, and the reason, if it failed.

    ``mapping`` (cells, spots of all slides), and from peers that predict genes without one ``imputed`` (spots, genes): those of
    the cells that are ``hidden`` from the slide. ``types`` is the column of ``cells.obs`` for peers that need cell types.
    """
    task = Task("mapping", "", list(slides), cells, lambda _: {}, types=types)
    with temporary_folder("mapping") as folder:
        out, files = folder / "out", TaskFiles(task, folder)
        out.mkdir()
        try:
            python, runner, job = method.command(files, seed=0, out=out)
        except InputError as error:
            return {}, {"status": "unavailable", "reason": error.problem}
        if hidden:
            plain(cells, cells.var_names.get_indexer(hidden)).write_h5ad(folder / "hidden.h5ad")
            files.write_job(json.loads(Path(job).read_text()) | {"hidden": str(folder / "hidden.h5ad")})
        usage = launch([python, str(HERE / "mapping.py"), runner, job], folder, limits)
        status, reason, arrays = judge(usage, out, task, folder / "log.txt")
    if status == "killed":  # that says nothing about the method
        raise RunError(f"{method.name} {reason}.")
    row: Row = {
        "status": status,
        "reason": reason,
        "seconds": round(usage["seconds"], 1),
        "GB": round(usage["peak_gb"], 2),
    }
    return arrays, row


def shares(weights: NDArray[Any], axis: int) -> NDArray[Any]:
    """Weights whose sums over an axis are one."""
    found: NDArray[Any] = weights / np.maximum(weights.sum(axis, keepdims=True), 1e-30)
    return found
