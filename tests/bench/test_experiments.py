from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from spatialgears.bench import experiments, figures, protocols
from spatialgears.bench.experiments import EXPERIMENTS, tasks_of
from spatialgears.bench.methods import choose
from spatialgears.bench.peers import PeerOptions
from spatialgears.bench.store import Store
from spatialgears.bench.tables import METRICS
from spatialgears.errors import InputError


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


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_names_methods_and_metrics_that_exist(name):
    experiment = EXPERIMENTS[name]
    assert choose(experiment.methods, PeerOptions())
    assert set(experiment.columns or ()) <= set(METRICS)


def test_experiments_on_data_files_run_on_simulated_tissue_if_asked(monkeypatch):
    small = {"n_cells": 60, "n_genes": 60, "n_sections": 1, "spots": 60}
    monkeypatch.setattr(experiments, "SIMULATED", small)
    (task,) = tasks_of("table1", simulated=True)(3)
    assert task.protocol == "simulated" and task.cells.n_obs == 60
    (other,) = tasks_of("quick")(4)
    assert other.fingerprint() != task.fingerprint()
    names = {
        name: [one.name for one in tasks_of(name, simulated=True)(0)]
        for name in ("unpaired", "leave-section-out")
    }
    assert names["unpaired"] == ["simulated, other individual", "simulated, other individual, shift 3"]
    assert names["leave-section-out"] == ["section 1 + section 2 → section 3"]
    (sections,) = tasks_of("leave-section-out", simulated=True)(0)
    assert sections.seeded


def test_without_data_files_the_advice_is_clear(monkeypatch):
    monkeypatch.delenv("SPATIALGEARS_DATA", raising=False)
    with pytest.raises(InputError, match="SPATIALGEARS_DATA"):
        next(iter(tasks_of("table1")(0)))
    with pytest.raises(InputError, match="no experiment"):
        tasks_of("table9")


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
    made = experiments.draw("diagnostics", rows, store, [task])
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
    axes = experiments.draw("uncertainty", [one], store, [task])["uncertainty-curves"].axes
    levels = [line.get_xdata() for line in axes[0].lines]
    assert any(np.allclose(x, [10, 50, 70, 90]) for x in levels if len(x) == 4)


def test_nothing_is_drawn_of_failures():
    assert experiments.draw("quick", [row("a")], Store("nowhere"), []) == {}
