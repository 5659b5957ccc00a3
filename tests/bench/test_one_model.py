from __future__ import annotations

import numpy as np
import pytest

from spatialgears.bench import one_model, protocols
from spatialgears.config import Config
from spatialgears.errors import InputError
from spatialgears.model import GEARS


@pytest.fixture(scope="module")
def task():
    return next(protocols.simulated(seed=0, n_cells=120, n_genes=60, n_sections=1, spots=80))


def test_one_fit_serves_every_assembly(task, tmp_path, monkeypatch):
    config = Config.preset("quick").with_values(["geometry.steps=2", "geometry.refiner_steps=2", "threads=1"])
    called = []

    def stand_in(features, geometry, truth, *, config, seed):
        called.append(features)
        assert len(features) == len(truth) == 120
        row = dict.fromkeys(
            ("spearman", "edge_auc", "trust", "cont", "stress1", "disagreement", "residual_mean"), 0.5
        )
        return [{"run": f"patches of {size}"} | row for size in (8, 16)]

    monkeypatch.setitem(one_model.EXPERIMENTS, "patch-size", stand_in)
    rows, figure = one_model.run("patch-size", task, config, folder=tmp_path)
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["8", "16"]
    monkeypatch.setattr(GEARS, "fit", None)  # the second time there is nothing to fit
    assert one_model.run("patch-size", task, config, folder=tmp_path)[0] == rows
    rows = np.arange(120)
    np.testing.assert_array_equal(called[0][rows].seen, called[1][rows].seen)


def test_cells_without_truth_are_refused(plane, tmp_path):
    cells = plane(40)
    cells.obs["layer"] = np.where(cells.obs["kind"] == "left", "L1", "L4")
    (task,) = protocols.real_unpaired([plane(30)], cells, known="layer")
    with pytest.raises(InputError, match="known places"):
        one_model.run("stitching", task, Config(), folder=tmp_path)
