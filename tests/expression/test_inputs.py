from __future__ import annotations

import numpy as np
import torch

from spatialgears.config import ExpressionConfig
from spatialgears.expression.inputs import Inputs, projected_inputs, random_rows
from spatialgears.expression.panel import build_panel
from spatialgears.expression.views import SpotViews
from spatialgears.runtime.seeds import torch_rng


def test_every_group_is_drawn_as_often_whatever_its_size():
    group = torch.repeat_interleave(torch.arange(3), torch.tensor([5, 500, 50]))
    inputs = Inputs(torch.zeros(555, 1), group, lambda index, generator: (index, index))
    drawn = inputs.draw(9000, torch_rng(0))
    share = torch.bincount(group[drawn]) / 9000
    torch.testing.assert_close(share, torch.full((3,), 1 / 3), atol=0.02, rtol=0)
    assert set(drawn.unique().tolist()) >= {0, 4, 5, 504, 505, 554}


def test_small_groups_are_kept_whole_and_large_ones_share_the_rest():
    groups = [np.zeros((n, 1)) for n in (10, 400, 300)]
    rows = random_rows(groups, rng=np.random.default_rng(0), limit=200)
    assert [len(r) for r in rows] == [10, 95, 95]
    assert all((np.diff(r) > 0).all() for r in rows)
    assert [len(r) for r in random_rows(groups, rng=np.random.default_rng(0))] == [10, 400, 300]


def test_groups_that_are_each_within_the_limit_share_it():
    groups = [np.zeros((150, 1))] * 4
    assert [len(r) for r in random_rows(groups, rng=np.random.default_rng(0), limit=200)] == [50] * 4
    assert [len(r) for r in random_rows(groups, rng=np.random.default_rng(0), limit=600)] == [150] * 4


def test_projected_views_are_views_in_the_basis(tiny, monkeypatch):
    for name in ("DROPOUT", "NOISE", "JITTER"):
        monkeypatch.setattr(f"spatialgears.expression.views.{name}", 0.0)
    config = ExpressionConfig(thinning=False)
    panel, columns = build_panel(tiny.slides, tiny.coords, tiny.cells, genes=tiny.genes, config=config)
    views = SpotViews([x[:, columns] for x in tiny.slides], np.ones(3), panel, config=config, seed=0)
    basis = torch.randn(len(panel), 4, generator=torch.Generator().manual_seed(0))
    inputs = projected_inputs(views, basis, seed=0)
    index = torch.tensor([0, 7, 169])
    first, second = inputs.pair(index, torch_rng(0))  # without augmentation a view is the profile itself
    torch.testing.assert_close(first, inputs.clean[index], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(first, second)
