"""The tables of docs hold what the rows kept in docs/benchmark say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

from spatialgears.bench.tables import TABLE1
from spatialgears.cli import bench

DOCS = Path(__file__).parents[1] / "docs"


def printed() -> dict[tuple[str, str], list[list[float]]]:
    """Numbers of every line with the ten metrics in results.md and README.md, by task and method."""
    found: dict[tuple[str, str], list[list[float]]] = {}
    task, lines = (
        "",
        [
            line
            for path in (DOCS / "results.md", DOCS.parent / "README.md")
            for line in path.read_text(encoding="utf-8").splitlines()
        ],
    )
    for line in lines:
        cells = [cell.strip().strip("*") for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == 11:  # the table that opens both
            cells = ["Mouse Atlas", *cells]
        if line.startswith("|") and len(cells) >= 12:
            task = cells[0] or task
            if all(cell.lstrip("-").startswith(".") for cell in cells[2:12]):
                found.setdefault((task, cells[1]), []).append([float(cell) for cell in cells[2:12]])
    return found


def measured() -> dict[tuple[str, str], np.ndarray]:
    """Means over seeds of the ten metrics, by task and method."""
    rows: dict[tuple[str, str], list[list[float]]] = {}
    for path in sorted((DOCS / "benchmark" / "rows").glob("*.json")):
        row = json.loads(path.read_text())
        if set(TABLE1) <= set(row["metrics"]):
            rows.setdefault((row["task"], row["method"]), []).append([row["metrics"][m] for m in TABLE1])
    return {key: np.mean(values, axis=0) for key, values in rows.items()}


def test_printed_figures_are_those_measured():
    means, rounding, shared = measured(), 0.51 * np.array([1e-3] * 8 + [1e-4] * 2), 0
    for key, lines in printed().items():
        for line in lines if key in means else []:
            assert (np.abs(np.array(line) - means[key]) <= rounding).all(), (key, means[key].round(4))
            shared += 1
    assert shared >= 60


def test_tables_are_those_of_the_rows(tmp_path):
    shutil.copytree(DOCS / "benchmark" / "rows", tmp_path / "rows")
    bench._kept(tmp_path, as_json=False)
    assert (tmp_path / "tables.md").read_text() == (DOCS / "benchmark" / "tables.md").read_text()
