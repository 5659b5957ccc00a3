from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from spatialgears.bench.patches import agreement, patch_size, stitching
from spatialgears.bench.tables import plain_table
from spatialgears.config import AssemblyConfig
from spatialgears.geometry.features import Features

CONFIG = AssemblyConfig(solve_steps=300)


def noisy(features: Features, mask: Tensor, seeds: Tensor) -> Tensor:
    """True places with noise that is smaller in larger patches."""
    x = features.seen
    noise = [torch.randn(x.shape[1], 2, generator=torch.Generator().manual_seed(int(s))) for s in seeds]
    return x[:, :, :2] + torch.stack(noise) / x.shape[1] ** 0.75


def places() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(500, 2)).astype(np.float32) * [1.0, 0.5]


def test_larger_patches_agree_better_and_one_pass_ends_the_table():
    rows = patch_size(
        Features(torch.from_numpy(places())),
        noisy,
        places(),
        config=CONFIG,
        sizes=(64, 128, 400),
        n_cells=400,
    )
    assert [row["run"] for row in rows] == ["patches of 64", "patches of 128", "patches of 400", "one pass"]
    disagreement = [row["disagreement"] for row in rows]
    assert disagreement[0] > disagreement[1] > disagreement[2] > 0 == disagreement[3]
    assert rows[0]["residual_mean"] > rows[1]["residual_mean"]
    assert all(row["agreement"] > 0.98 and row["spearman"] > 0.98 for row in rows)


def test_weighted_against_uniform_says_the_change():
    rows = stitching(
        Features(torch.from_numpy(places())), noisy, places(), config=CONFIG, size=64, n_cells=400
    )
    assert [row["run"] for row in rows] == ["weighted", "uniform", "change, %"]
    change = 100 * (rows[1]["stress1"] / rows[0]["stress1"] - 1)
    assert np.isclose(rows[2]["stress1"], change)
    text = plain_table(rows)
    assert text.count("\n") == 4 and text.startswith("| run | spearman |")


def test_agreement_is_one_for_moved_layouts():
    layout = places()
    assert agreement(layout, -3 * layout + 1) > 0.9999
    assert abs(agreement(layout, np.random.default_rng(1).normal(size=layout.shape))) < 0.05
