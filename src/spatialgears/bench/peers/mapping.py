"""Runs a peer's runner and keeps the mapping (cells, spots) whose expected coordinates it returns.

``python mapping.py RUNNER.py JOB.json`` runs in the peer's environment and writes ``mapping.npy`` beside the coordinates.
From that matrix come genes at the spots, types per spot and labels of the cells, as the peers' own functions compute them.
Where types are placed, all cells of a type share the abundance of their type.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import common

runner, job = sys.argv[1:]
expected, at_types = common.expected, common.at_types
kept: list[np.ndarray] = []


def keep(mapping: Any, spots: Any) -> Any:
    """What ``common.expected`` returns; the mapping is kept."""
    kept.append(np.asarray(mapping, dtype=np.float32))
    return expected(mapping, spots)


def keep_types(abundance: Any, spots: Any, cells: Any) -> Any:
    """What ``common.at_types`` returns; a mapping of the cells is kept whose sums by type are the abundance (spots, types)."""
    places = at_types(abundance, spots, cells)
    kinds = abundance.columns.get_indexer(cells.obs["type"].astype(str))
    shared = abundance.to_numpy().T / np.bincount(kinds, minlength=abundance.shape[1])[:, None]
    kept.append(shared[kinds].astype(np.float32))
    return places


common.expected, common.at_types = keep, keep_types  # runners import them from there
sys.argv = [runner, job]
runpy.run_path(runner, run_name="__main__")
if not kept:
    raise SystemExit("it places cells without a mapping to spots")
np.save(Path(json.loads(Path(job).read_text())["out"]) / "mapping.npy", kept[-1])
