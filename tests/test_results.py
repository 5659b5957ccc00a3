"""The tables of docs hold what the rows kept in docs/benchmark say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from spatialgears.bench.overview import run
from spatialgears.bench.request import Request
from spatialgears.bench.tables import TABLE1, behind, standing

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = DOCS / "results.md"


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str], list[dict]]:
    """Rows by task and method."""
    found: dict[tuple[str, str], list[dict]] = {}
    for path in sorted((DOCS / "benchmark" / "rows").glob("*.json")):
        row = json.loads(path.read_text())
        if "method" in row:
            found.setdefault((row["task"], row["method"]), []).append(row)
    return found


def lines_of(path: Path, *columns: int) -> list[list[str]]:
    """The cells of table lines with so many columns."""
    lines = (line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("|"))
    cells = ([cell.strip().strip("*") for cell in line.strip().strip("|").split("|")] for line in lines)
    return [line for line in cells if len(line) in columns]


def printed() -> list[tuple[str, str, list[str]]]:
    """Task, method, and the figures of every line with the ten metrics in results.md and README.md."""
    found, task = [], ""
    for path in (RESULTS, DOCS.parent / "README.md"):
        for cells in lines_of(path, 11, 12, 14):
            if len(cells) == 11:  # the table that opens both
                cells = ["Mouse Atlas", *cells]
            task = cells[0] or task
            if all(re.fullmatch(r"-?\.\d+", cell) for cell in cells[2:12]):
                found.append((task, cells[1], cells[2:]))
    return found


def test_printed_figures_are_those_measured(rows):
    assert len(printed()) >= 70
    for task, method, figures in printed():
        done = [row for row in rows[task, method] if row["status"] == "ok"]
        for name, figure in zip(TABLE1, figures, strict=False):
            mean = np.mean([row["metrics"][name] for row in done])
            digits = len(figure.split(".")[1])
            assert abs(mean - float(figure)) <= 0.51 * 10**-digits, (task, method, name, mean)
        if len(figures) == 12:
            seconds, memory = np.mean([row["seconds"] for row in done]), max(row["peak_gb"] for row in done)
            assert figures[10:] == [f"{seconds:.0f}", f"{memory:.1f}"], (task, method)


def test_radii_are_those_measured(rows):
    found = [
        cells for cells in lines_of(RESULTS, 4) if re.fullmatch(r"\d+%", cells[1]) and "older" not in cells[0]
    ]
    assert len(found) >= 8
    for task, *figures in found:
        metrics = [row["metrics"] for row in rows[task, "GEARS default"]]
        means = [np.mean([one[name] for one in metrics]) for name in ("cover50", "cover90", "least_sure")]
        assert figures == [f"{100 * means[0]:.0f}%", f"{100 * means[1]:.0f}%", f"{means[2]:.1f}"], task


@pytest.mark.parametrize(
    ("page", "words", "tasks"),
    [
        (
            DOCS.parent / "README.md",
            r"true position of (\d+)% of the cells at a nominal 50%[^.]*? of (\d+)% at a nominal 90%",
            [("Mouse Atlas", "cover50"), ("Mouse Atlas", "cover90")],
        ),
    ],
)
def test_radii_in_words_are_those_measured(rows, page, words, tasks):
    found = re.search(words, " ".join(page.read_text(encoding="utf-8").split()))
    means = [np.mean([row["metrics"][name] for row in rows[task, "GEARS default"]]) for task, name in tasks]
    assert found is not None and list(found.groups()) == [f"{100 * mean:.0f}" for mean in means]


def test_where_ours_stands_is_told_by_the_rows(rows):
    everything = sorted(
        (row for group in rows.values() for row in group), key=lambda row: (row["protocol"], row["task"])
    )
    page = RESULTS.read_text(encoding="utf-8")
    assert standing(everything) in page and behind(everything) in page


def test_tables_are_those_of_the_rows():
    printed = run(Request(out=DOCS / "benchmark"), print).text
    assert printed == (DOCS / "benchmark" / "tables.md").read_text(encoding="utf-8")
