from __future__ import annotations

import numpy as np
import pytest

from spatialgears.bench import fitted, patches, protocols, sets
from spatialgears.bench.request import Request
from spatialgears.model import GEARS

TINY = {"n_cells": 120, "n_genes": 60, "n_sections": 1, "spots": 80}


@pytest.fixture(scope="module")
def task():
    return next(protocols.simulated(seed=0, **TINY))


def test_one_fit_serves_every_assembly(tmp_path, monkeypatch):
    monkeypatch.setattr(sets, "SIMULATED", TINY)
    called = []

    def measure(features, geometry, truth, *, config, locality, seed):
        called.append(features)
        assert len(features) == len(truth) == 120 and config.coverage == 2.5 and locality is None
        names = ("spearman", "edge_auc", "trust", "cont", "stress1", "disagreement", "residual_mean")
        return [{"run": f"patches of {size}", "patches": 3.0} | dict.fromkeys(names, 0.5) for size in (8, 16)]

    experiment = patches.experiment("patch-size", "", measure)
    values = ["geometry.steps=2", "geometry.refiner_steps=2", "assembly.coverage=2.5"]
    request = Request(out=tmp_path, simulated=True, method=["quick"], values=values)
    outcome = experiment.run(request, print)
    assert "### patch-size: simulated, quick, assembly.coverage=2.5, geometry." in outcome.text
    ticks = outcome.figures["patch-size"].axes[0].get_xticklabels()
    assert [tick.get_text() for tick in ticks] == ["8", "16"]
    monkeypatch.setattr(GEARS, "fit", None)  # the second time there is nothing to fit
    assert experiment.run(request, print).found == outcome.found
    first, second = (features[np.arange(120)].seen for features in called)
    np.testing.assert_array_equal(first, second)


def test_a_changed_preset_is_another_model(task, small_config, tmp_path, monkeypatch):
    fitted.fitted(task, small_config, folder=tmp_path)
    monkeypatch.setattr(GEARS, "fit", lambda *_: pytest.fail("fitted again"))
    fitted.fitted(task, small_config, folder=tmp_path)
    with pytest.raises(pytest.fail.Exception):
        fitted.fitted(task, small_config.with_values(["assembly.steps=3"]), folder=tmp_path)
