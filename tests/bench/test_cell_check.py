"""Whether the check on cells predicts accuracy: the runs, the rows that are kept, and what is said of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from spatialgears.bench import cell_check
from spatialgears.bench.request import Request


def row(true: float, r: float, spots: float, verdict: str = "fair", run: str = "simulated, shift 1"):
    figures = {"se": 0.01, "reference": 0.8, "shuffled": 0.0, "ceiling": 0.9, "n_genes": 50}
    return {
        "run": run, "true spearman": true, "r": r, "verdict": verdict, "spots": spots, "spots' verdict": "good",
        "error": 0.8 * (1 - r / (0.8 * 0.9) ** 0.5) if r == r else 0.5, "radius50": 0.2, "widened": 2.0,
        "error / radius50": list(2 * cell_check.QUANTILES), "error / radius90": list(cell_check.QUANTILES), **figures,
    }  # fmt: skip


def test_the_runs_range_from_easy_to_hopeless(monkeypatch):
    monkeypatch.setattr(cell_check, "SMALL", {"n_cells": 60, "n_genes": 60, "n_sections": 1, "spots": 60})
    families = list(cell_check.simulated(None, 0))
    tasks = {task.name: task for family in families for task in family}
    assert len(families) == 9 and len(tasks) == 12
    assert len({task.fingerprint() for task in tasks.values()}) == 12
    assert all(task.slides is family[0].slides for family in families for task in family)
    plain = tasks["simulated, shift 0"]
    random, places = tasks["simulated, random cells"], tasks["simulated, random places"]
    before, after = plain.cells.X.toarray(), random.cells.X.toarray()
    np.testing.assert_array_equal(
        np.sort(before, axis=0), np.sort(after, axis=0)
    )  # each gene keeps its values
    assert (before != after).mean() > 0.2
    assert (plain.slides[0].X != places.slides[0].X).nnz == 0
    assert not np.array_equal(plain.slides[0].obsm["spatial"], places.slides[0].obsm["spatial"])
    other = tasks["simulated, cells of another tissue"]
    assert list(other.cells.var_names) == list(plain.cells.var_names)
    assert not np.array_equal(other.truth, plain.truth)


def test_rank_correlation_and_hopeless_runs_are_counted():
    rows = [
        row(0.9, 0.7, 0.9, "good"),
        row(0.5, 0.4, 0.95, run="embryo"),
        row(0.2, 0.1, 0.92, "weak"),
        row(0.0, 0.0, 0.91, "none", run="simulated, random cells"),
        row(0.4, float("nan"), 0.9, "not checked"),
    ]
    found = cell_check.summary(rows, ["fair", "none", "weak", "none", "none"])
    assert found["runs"] == 5 and found["checked"] == 4
    ranks = found["rank correlation with truth"]
    assert ranks["all"]["r"] == pytest.approx(1)
    assert ranks["all"]["held-out spots"] == pytest.approx(-0.2)
    assert set(ranks) == {"all", "simulated", "all but random"}  # one public run is too few
    assert (found["hopeless"], found["hopeless that passed"], found["hopeless called weak"]) == (6, 1, 1)
    assert found["true spearman by verdict"]["good"] == [0.9, 0.9, 0.9]
    assert found["error by the check"] == pytest.approx(0.8)  # the law the errors were made by
    assert cell_check.covered(rows[0], 50, widened=False) == pytest.approx(0.5)
    assert cell_check.covered(rows[0], 50, widened=True) == pytest.approx(1.0)
    assert "that passed: 1 of 6 (and 1 called weak)" in cell_check.words(found)
    lines = {line["run"]: line for line in cell_check.by_run(rows[:3])}
    assert lines["simulated, shift 1"]["true spearman"] == "0.55" and lines["embryo"]["seeds"] == 1
    assert lines["embryo"]["within 50%"] == "50% → 100%"
    assert len(cell_check.drawn(rows).axes) == 2


def test_a_run_is_kept_and_not_repeated(small_config, tmp_path, monkeypatch):
    small = {"n_cells": 120, "n_genes": 60, "n_sections": 1, "spots": 80}
    monkeypatch.setattr(cell_check, "SMALL", small)
    monkeypatch.setattr(Request, "config", lambda self, preset: small_config)
    request = Request(out=tmp_path, simulated=True, task=["shift 0"], seeds=1)
    told = []
    outcome = cell_check.run(request, told.append)
    names = [found["run"] for found in outcome.found["rows"]]
    assert names[0] == "simulated, shift 0" and "simulated, random cells" in names and len(told) == len(names)
    assert outcome.found["summary"]["hopeless"] == 1 + cell_check.RANDOM
    assert outcome.found["summary"]["hopeless that passed"] == 0

    def refuse(*_, **__):
        raise RuntimeError("it was measured before")

    monkeypatch.setattr(cell_check, "measured", refuse)
    assert cell_check.run(request, told.append).found == outcome.found
    with pytest.raises(RuntimeError):
        cell_check.run(replace(request, task=["shift 1"]), told.append)
