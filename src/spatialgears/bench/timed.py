"""Fit and place once, and write how long each took: one run of ``gears bench speed``.

Runs as ``python -P timed.py JOB.json`` with one version of the source on the path, which may be an earlier one. So it
uses the public interface of spatialgears only.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from anndata import read_h5ad


def main(job_file: str) -> None:
    """Place the cells of the job; write ``coords.npy`` and ``info.json`` to its folder."""
    import spatialgears as sg

    job = json.loads(Path(job_file).read_text())
    if Path(job["source"]) not in Path(sg.__file__).parents:
        raise SystemExit(f"spatialgears was imported from {sg.__file__}, not from {job['source']}")
    slides, cells = [read_h5ad(path) for path in job["slides"]], read_h5ad(job["cells"])
    model = sg.GEARS(sg.Config.preset(job["preset"]).with_values([*job["values"], f"seed={job['seed']}"]))
    start = time.perf_counter()
    model.fit(slides=slides, cells=cells)
    fitted = time.perf_counter()
    placed = model.reconstruct(cells)
    done = time.perf_counter()
    out = Path(job["out"])
    np.save(out / "coords.npy", np.asarray(placed.coords))
    info = {"fit_seconds": fitted - start, "place_seconds": done - fitted}
    (out / "info.json").write_text(json.dumps(info))


if __name__ == "__main__":
    main(sys.argv[1])
