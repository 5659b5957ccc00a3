from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from matplotlib.figure import Figure

from spatialgears.bench import figures, protocols, sets
from spatialgears.bench.comparisons import COMPARISONS
from spatialgears.bench.experiments import EXPERIMENTS
from spatialgears.bench.methods import choose
from spatialgears.bench.peers import PeerOptions
from spatialgears.bench.request import Request
from spatialgears.bench.store import Store
from spatialgears.bench.tables import METRICS
from spatialgears.errors import InputError

BY_NAME = {comparison.name: comparison for comparison in COMPARISONS}


def row(method, *, seed=0, task="t", setting=None, key="", kind="peer", **metrics):
    return {
        "protocol": "p",
        "task": task,
        "setting": setting or {},
        "method": method,
        "kind": kind,
        "seed": seed,
        "metrics": metrics,
        "key": key,
        "sees_truth": False,
    }


@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda one: one.name)
def test_every_comparison_names_methods_and_metrics_that_exist(comparison):
    assert choose(comparison.methods, PeerOptions())
    assert set(comparison.columns or ()) <= set(METRICS)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_says_what_it_answers_and_uses_options_that_exist(name):
    experiment = EXPERIMENTS[name]
    assert len(experiment.answers) > 20
    assert experiment.options <= {field.name for field in dataclasses.fields(Request)}


def tasks(name: str, seed: int = 0, **options) -> list[protocols.Task]:
    return list(BY_NAME[name].tasks_of(Request(**options))(seed))


def test_experiments_on_data_files_run_on_simulated_tissue_if_asked(monkeypatch):
    monkeypatch.setattr(sets, "SIMULATED", {"n_cells": 60, "n_genes": 60, "n_sections": 1, "spots": 60})
    (task,) = tasks("table1", 3, simulated=True)
    assert task.protocol == "simulated" and task.cells.n_obs == 60
    (other,) = tasks("quick", 4)
    assert other.fingerprint() != task.fingerprint()
    names = [one.name for one in tasks("unpaired", simulated=True)]
    assert names == ["simulated, other individual", "simulated, other individual, shift 3"]
    (sections,) = tasks("leave-section-out", simulated=True)
    assert sections.name == "section 1 + section 2 → section 3" and sections.seeded


def test_without_data_files_the_advice_is_clear(monkeypatch):
    monkeypatch.delenv("SPATIALGEARS_DATA", raising=False)
    with pytest.raises(InputError, match="SPATIALGEARS_DATA"):
        tasks("table1")


def test_figures_of_comparisons_and_sweeps():
    rows = [
        row(m, seed=s, task=t, spearman=0.5 + 0.1 * s, swd=0.1) for m in "ab" for s in (0, 1) for t in "xy"
    ]
    figure = figures.comparison(rows)
    assert isinstance(figure, Figure) and len(figure.axes) == 4  # two tasks, two metrics
    rows = [row("a", setting={"shift": x}, spearman=1 - x, trust=1 - x) for x in (0.0, 0.5)]
    lines = figures.sweep(rows, "shift", columns=("spearman", "trust")).axes[0].lines
    np.testing.assert_allclose(lines[0].get_xydata(), [[0, 1], [0.5, 0.5]])


def test_the_figures_of_diagnostics_use_the_layouts_kept(plane, tmp_path):
    (task,) = protocols.unpaired([plane(40, seed=1)], plane(130), name="t", types="kind")
    store = Store(tmp_path)
    rows = [row("a", key="one", edge_auc=0.9), row("b", key="two", edge_auc=0.8)]
    for one in rows:
        store.save(one | {"started": ""}, {"coords": task.truth + len(one["key"])})
    made = BY_NAME["diagnostics"].figures(rows, store, [task])
    assert set(made) == {"diagnostics", "diagnostics-curves", "diagnostics-layouts"}
    for name, figure in made.items():
        figure.savefig(tmp_path / f"{name}.png")


def test_the_curve_of_calibration_uses_all_levels(plane, tmp_path):
    (task,) = protocols.unpaired([plane(40, seed=1)], plane(130), name="t", types="kind")
    store, one = Store(tmp_path), row("a", key="one", task=task.name, cover90=0.9)
    radii = {
        "radius50": np.full(130, 0.5),
        "radius90": np.ones(130),
        "levels": np.array([[0.1, 0.2], [0.7, 0.8]]),
    }
    store.save(one | {"started": ""}, {"coords": task.truth, **radii})
    axes = BY_NAME["uncertainty"].figures([one], store, [task])["uncertainty-curves"].axes
    levels = [line.get_xdata() for line in axes[0].lines]
    assert any(np.allclose(x, [10, 50, 70, 90]) for x in levels if len(x) == 4)


def test_nothing_is_drawn_of_failures():
    assert BY_NAME["quick"].figures([row("a")], Store("nowhere"), []) == {}
