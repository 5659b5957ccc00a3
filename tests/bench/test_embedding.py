from __future__ import annotations

import pytest

from spatialgears.bench import embedding
from spatialgears.config import Config
from spatialgears.datasets import simulate_tissue


def test_one_row_per_set_and_variant_with_means_over_seeds(monkeypatch, tmp_path):
    tissue = simulate_tissue(n_cells=150, n_genes=60, spots=80, seed=0)
    monkeypatch.setattr(embedding, "tissue_of", lambda name, root, seed: tissue)
    variants = {"default": ("max_steps=5",), "start alone": ("max_steps=1",)}
    found = list(embedding.rows(["simulated"], variants, root=None, seeds=2, folder=tmp_path))
    assert [row["variant"] for row in found] == ["default", "start alone"]
    assert all(0.2 < row["spearman"] <= 1 and 0.2 < row["reference"] <= 1 for row in found)
    assert found[0]["entropy"] > found[0]["entropy_before"]
    monkeypatch.setattr(embedding, "measure", lambda *_, **__: pytest.fail("measured again"))
    assert list(embedding.rows(["simulated"], variants, root=None, seeds=2, folder=tmp_path)) == found


def test_every_row_of_the_ablation_is_a_valid_configuration():
    for values in embedding.ABLATION.values():
        Config().with_values([f"expression.{value}" for value in values])
