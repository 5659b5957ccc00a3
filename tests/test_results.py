"""The tables of docs hold what the rows kept in docs/benchmark say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from spatialgears.bench import imputation, kept_out_genes, label_transfer
from spatialgears.bench.overview import run
from spatialgears.bench.request import Request
from spatialgears.bench.tables import TABLE1, behind, seeds_of, standing

DOCS = Path(__file__).parents[1] / "docs"
RESULTS = DOCS / "results.md"


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str], list[dict]]:
    """Rows by task and method."""
    found: dict[tuple[str, str], list[dict]] = {}
    for path in sorted((DOCS / "benchmark" / "rows").glob("*.json")):
        row = json.loads(path.read_text())
        if "method" in row and "experiment" not in row:
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
        for cells in lines_of(path, 11, 12, 15):
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
        if len(figures) == 13:
            seconds, memory = np.mean([row["seconds"] for row in done]), max(row["peak_gb"] for row in done)
            assert figures[10:] == [f"{seconds:.0f}", f"{memory:.1f}", seeds_of(done)], (task, method)


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


def test_genes_read_from_cells_of_peers_are_those_measured():
    rows = [json.loads(path.read_text()) for path in sorted((DOCS / "benchmark" / "rows").glob("*.json"))]
    found = kept_out_genes.peer_summary(
        [row for row in rows if row.get("experiment") == "kept-out-genes" and "method" in row]
    )
    assert len(found) >= 5
    page = RESULTS.read_text(encoding="utf-8")
    for one in found:
        if one["folds"]:
            assert one["folds"] == kept_out_genes.FOLDS
            mean, spread = (
                "" if one[name] is None else f"{one[name]:.3f}".removeprefix("0")
                for name in ("mean r", "sd over seeds")
            )
            cells = [
                one["cells placed by"],
                mean,
                spread,
                f"{one['seconds']:.0f}",
                f"{one['GB']:.1f}",
                one["seeds"],
            ]
            line = f"| {' | '.join(cells)} |"
        else:
            line = f"| {one['cells placed by']} | {one['note']} |  |  |  |  |"
        assert line in page, line


def test_where_ours_stands_is_told_by_the_rows(rows):
    everything = sorted(
        (row for group in rows.values() for row in group), key=lambda row: (row["protocol"], row["task"])
    )
    page = RESULTS.read_text(encoding="utf-8")
    assert standing(everything) in page and behind(everything) in page


def test_tables_are_those_of_the_rows():
    printed = run(Request(out=DOCS / "benchmark"), print).text
    assert printed == (DOCS / "benchmark" / "tables.md").read_text(encoding="utf-8")


#: Names of methods in the tables of answers where they differ from those in rows.
ANSWERS = {
    "`sg.tl.impute`": imputation.OURS,
    "kNN of expression": "kNN",
    "mean of all cells": "mean",
    "`sg.tl.transfer`": f"{label_transfer.OURS}: transfer",
    "`sg.tl.abundance`": f"{label_transfer.OURS}: abundance",
    "nearest spots by position": "nearest spots by place",
    "non-negative least squares of mean profiles": "NNLS of mean profiles",
    "composition of all cells, everywhere": "composition of all cells",
}


def check(line: list[str], values: list[float | None]) -> None:
    """Whether the figures of a table line are these values, rounded; a dash where there is none."""
    for figure, value in zip(line[1:], values, strict=True):
        digits = len(figure.partition(".")[2])
        expected = "–" if value is None else f"{value:.{digits}f}".replace("-0", "-").removeprefix("0")
        assert figure.strip("*") == (expected or "0"), (line, values)


def test_answers_are_those_measured():
    """Kept-out genes, labels, composition, and time and memory."""
    rows = [json.loads(path.read_text()) for path in sorted((DOCS / "benchmark" / "rows").glob("*.json"))]
    genes = imputation.summary([row for row in rows if "scores" in row])
    known = {(row["set"], row["method"]): row for row in genes}
    sets = [name for _, name, _, _ in imputation.SETS]
    methods = {row["method"] for row in genes}
    shown = [line for line in lines_of(RESULTS, 9) if ANSWERS.get(line[0], line[0]) in methods]
    assert len(shown) == len(methods) >= 11
    for line in shown:
        mine = [known.get((name, ANSWERS.get(line[0], line[0])), {}) for name in sets]
        check(line, [row.get(metric) for row in mine for metric in ("r", "ssim")])
    labelled = [row for part in rows for row in part.get("rows", ())]
    for metrics in (("accuracy", "ARI", "mean probability", "calibration error"), ("JSD", "RMSE")):
        of = {row["method"]: row for row in labelled if metrics[0] in row}
        shown = [line for line in lines_of(RESULTS, len(metrics) + 1) if ANSWERS.get(line[0], line[0]) in of]
        shown = [line for line in shown if line[1].strip("*")[0] in "-.01"]  # figures, not words
        assert len(shown) == len(of) >= 5
        for line in shown:
            check(line, [of[ANSWERS.get(line[0], line[0])][metric] for metric in metrics])
    timed = [row for row in rows if "function" in row]
    shown = [line for line in lines_of(RESULTS, 4) if line[0] in {row["function"] for row in timed}]
    assert len(shown) == len(timed) >= 8
    for line in shown:
        (row,) = [row for row in timed if [row["function"], f"{row['cells']:,}"] == line[:2]]
        check(line[1:], [row["seconds"], row["peak GB"]])
