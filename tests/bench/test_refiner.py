"""The table of the refiner: every run is scored, the generator first, and zero noise changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spatialgears.bench import protocols, refiner
from spatialgears.bench.fitted import over_seeds
from spatialgears.geometry.features import Features


@pytest.fixture(scope="module")
def task():
    return next(protocols.simulated(seed=0, n_cells=120, n_genes=60, n_sections=1, spots=80))


def test_a_row_for_every_run_and_the_mean_over_seeds(task, small_config, tmp_path, monkeypatch):
    monkeypatch.setattr(refiner, "RUNS", ((1.0, 2, 1), (1.0, 2, 3)))
    table, histories = over_seeds([task], refiner.scored, small_config, seeds=2, folder=tmp_path)
    refined = ["1 sigma, 2 steps", "1 sigma, 2 steps, mean of 3"]
    read = ["similar spots", "generators", "both", "as users get it"]
    assert [row["run"] for row in table] == [*read, *refined]
    assert all(np.isfinite(list(row.values())[2:]).all() for row in table)
    assert list(histories) == [task.name]
    figure = refiner.draw(table, histories)
    assert len(figure.axes) == 2 and figure.axes[1].lines, "the curves of training are drawn"


def test_a_table_that_was_stopped_goes_on(task, small_config, tmp_path, monkeypatch):
    monkeypatch.setattr(refiner, "RUNS", ((1.0, 2, 1),))
    first, _ = over_seeds([task], refiner.scored, small_config, seeds=1, folder=tmp_path)
    monkeypatch.setattr(refiner, "evaluate", lambda *_: pytest.fail("scored again"))
    assert over_seeds([task], refiner.scored, small_config, seeds=1, folder=tmp_path)[0] == first


def test_vanishing_noise_leaves_the_generator_as_it_is(small_model, monkeypatch):
    monkeypatch.setattr(refiner, "RUNS", ((1e-6, 1, 1),))
    network = small_model.fitted_.network
    features = Features(
        torch.randn(150, network.lead.n_features), torch.randn(150, network.nearest.bank.shape[1])
    )
    with torch.no_grad():
        found = {name: way() for name, way in refiner.ways(network, features, seed=0).items()}
        base = network(features[None])
    refined = found["1e-06 sigma, 1 steps"]
    torch.testing.assert_close(refined, base, atol=1e-3, rtol=0)
