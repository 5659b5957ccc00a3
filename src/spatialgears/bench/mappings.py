"""Mappings of cells to spots by peers, from which genes, labels and types are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from anndata import AnnData
from numpy.typing import NDArray

from spatialgears.bench.files import TaskFiles
from spatialgears.bench.harness import Limits, judge, launch
from spatialgears.bench.methods import PeerMethod
from spatialgears.bench.peers import HERE
from spatialgears.bench.protocols import Task
from spatialgears.bench.store import Row
from spatialgears.errors import InputError, RunError
from spatialgears.runtime.files import temporary_folder


def mapped(
    method: PeerMethod, slides: Sequence[AnnData], cells: AnnData, limits: Limits
) -> tuple[NDArray[np.float32], Row]:
    """Weights (cells, spots of all slides) that a peer gives, and what it used; no weights, and the reason, if it failed."""
    none = np.empty((0, 0), np.float32)
    task = Task("mapping", "", list(slides), cells, lambda _: {})
    with temporary_folder("mapping") as folder:
        out = folder / "out"
        out.mkdir()
        try:
            python, runner, job = method.command(TaskFiles(task, folder), seed=0, out=out)
        except InputError as error:
            return none, {"status": "unavailable", "reason": error.problem}
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
    return arrays.get("mapping", none), row


def shares(weights: NDArray[Any], axis: int) -> NDArray[Any]:
    """Weights whose sums over an axis are one."""
    found: NDArray[Any] = weights / np.maximum(weights.sum(axis, keepdims=True), 1e-30)
    return found
