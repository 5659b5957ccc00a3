"""The process of one run of our methods: ``python -m spatialgears.bench.worker JOB.json``.

Peers have runners of their own, in environments without spatialgears. Both write the same files to the job's folder:
``coords.npy``, other arrays, and ``info.json``.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def resolve(entry: str) -> Callable[..., Any]:
    """The function that ``module:function`` or ``path/to/file.py:function`` names."""
    module_name, _, function = entry.rpartition(":")
    if not module_name.endswith(".py"):
        return getattr(importlib.import_module(module_name), function)
    spec = importlib.util.spec_from_file_location(Path(module_name).stem, module_name)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {module_name}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)


def main(job_file: str) -> None:
    """Place the cells of the job and write the result to its folder.

    The method is called as ``place(slides, cells, seed=..., **options)``, with ``truth=...`` if it may see the true
    positions. It returns coordinates (n, 2), or a dict with ``coords``, other arrays and ``info`` for the row.
    """
    from anndata import read_h5ad

    from spatialgears.storage.model_folder import versions

    job = json.loads(Path(job_file).read_text())
    options = dict(job["options"])
    if job["truth"]:
        options["truth"] = np.load(job["truth"])
    place = resolve(job["entry"])
    result = place(
        [read_h5ad(path) for path in job["slides"]], read_h5ad(job["cells"]), seed=job["seed"], **options
    )
    arrays = dict(result) if isinstance(result, dict) else {"coords": result}
    info = {"versions": versions(), **arrays.pop("info", {})}
    out = Path(job["out"])
    for name, array in arrays.items():
        np.save(out / f"{name}.npy", np.asarray(array))
    (out / "info.json").write_text(json.dumps(info, default=float))


if __name__ == "__main__":
    main(sys.argv[1])
