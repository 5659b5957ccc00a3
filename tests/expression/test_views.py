from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

from spatialgears.config import ExpressionConfig
from spatialgears.expression.normalise import log_normalise
from spatialgears.expression.panel import build_panel
from spatialgears.expression.views import CellViews, SpotViews, cell_features, thin
from spatialgears.runtime.seeds import torch_rng


@pytest.fixture(scope="module")
def panel(tiny):
    return build_panel(tiny.slides, tiny.coords, tiny.cells, genes=tiny.genes, config=ExpressionConfig())


def _spots(tiny, panel, *, raw=True, bank_bytes=2**24, seed=3, **values):
    genes, columns = panel
    depths = np.asarray(tiny.cells[:, columns].sum(1)).ravel()
    slides = [s[:, columns] if raw else log_normalise(s[:, columns], genes.target) for s in tiny.slides]
    config = ExpressionConfig(**values)
    return SpotViews(slides, depths, genes, config=config, seed=seed, raw=raw, bank_bytes=bank_bytes)


def test_thin_has_the_moments_of_a_binomial():
    rng = np.random.default_rng(0)
    counts, keep = np.repeat([0, 1, 3, 9, 40], 20_000), np.full(100_000, 0.3, dtype=np.float32)
    out = thin(counts, keep, rng).reshape(5, -1)
    n = np.array([0, 1, 3, 9, 40])
    np.testing.assert_allclose(out.mean(1), 0.3 * n, atol=0.08)
    np.testing.assert_allclose(out.var(1), 0.21 * n, rtol=0.05)
    assert (out.max(1) <= n).all()


@pytest.mark.parametrize("bank_bytes", [0, 2**24])
def test_views_have_the_depth_of_cells_and_are_standardised_per_slide(tiny, panel, bank_bytes):
    views = _spots(tiny, panel, bank_bytes=bank_bytes)
    index = torch.arange(views.n_spots).repeat(40)
    x = views.draw(index, torch_rng(0)).view(40, views.n_spots, -1)
    assert (views.bank is None) == (bank_bytes == 0)
    weights = torch.from_numpy(panel[0].weights)
    for rows in views.rows:
        part = x[:, rows].flatten(0, 1) / weights
        assert part.mean(0).abs().max() < 0.35
        torch.testing.assert_close(part.std(0), torch.ones(views.n_genes), atol=0.2, rtol=0)
    silent = views.mean[0].neg() * views.scale[0]  # what a gene without a count looks like
    zeros = ((x[:, :90] - silent).abs() < 1e-4).float().mean()
    cells = (tiny.cells[:, panel[1]].toarray() == 0).mean()
    assert abs(float(zeros) - cells) < 0.05
    assert (tiny.slides[0][:, panel[1]].toarray() == 0).mean() < 0.01


@pytest.mark.parametrize("bank_bytes", [0, 2**24])
def test_draw_depends_on_the_generator_alone(tiny, panel, bank_bytes):
    views = _spots(tiny, panel, bank_bytes=bank_bytes)
    index = torch.arange(12).view(3, 4)
    first = views.draw(index, torch_rng(1))
    views.draw(index, torch_rng(9))
    assert first.shape == (3, 4, views.n_genes)
    assert torch.equal(first, views.draw(index, torch_rng(1)))
    assert not torch.equal(first, views.draw(index, torch_rng(2)))
    assert torch.equal(first, _spots(tiny, panel, bank_bytes=bank_bytes).draw(index, torch_rng(1)))


def test_a_bank_changes_nothing_but_time(tiny, panel):
    index = torch.arange(60).repeat(200)
    mean = [
        _spots(tiny, panel, bank_bytes=b).draw(index, torch_rng(5)).view(200, 60, -1).mean(0)
        for b in (0, 2**24)
    ]
    assert float(torch.corrcoef(torch.stack([m.flatten() for m in mean]))[0, 1]) > 0.97


def test_dropout_leaves_the_value_of_a_silent_gene(tiny, panel, monkeypatch):
    for name, value in {"DROPOUT": 1.0, "NOISE": 0.0, "JITTER": 0.0}.items():
        monkeypatch.setattr(f"spatialgears.expression.views.{name}", value)
    views = _spots(tiny, panel, thinning=False)
    first, second = views.draw_pair(torch.tensor([0, 100]), torch_rng(0))
    torch.testing.assert_close(first, -views.mean * views.scale)
    assert torch.equal(first, second)


def test_clean_is_the_measured_profile(tiny, panel):
    views = _spots(tiny, panel)
    x = log_normalise(tiny.slides[1][:, panel[1]].toarray(), panel[0].target)
    expected = (x - x.mean(0)) / (x.std(0) + 1e-2) * panel[0].weights
    np.testing.assert_allclose(views.clean()[90:], expected, atol=1e-3)
    some = torch.tensor([3, 50, 95, 111])
    assert torch.equal(views.clean(some), views.clean()[some])


@pytest.mark.parametrize("bank_bytes", [0, 2**29])
def test_normalised_values_are_seen_as_cells_are_and_say_so(tiny, panel, caplog, bank_bytes):
    """Views that hide a gene as nought would be shifted from cells, whose genes are all there."""
    with caplog.at_level(logging.WARNING):
        views = _spots(tiny, panel, raw=False, bank_bytes=bank_bytes)
    assert "cannot be thinned" in caplog.text
    index = torch.arange(views.n_spots)
    torch.testing.assert_close(views.draw(index, torch_rng(0)), views.clean(), atol=1e-4, rtol=1e-4)
    first, second = views.draw_pair(index, torch_rng(0))
    assert not torch.equal(first, second)
    away = (first.mean(0) - views.clean().mean(0)).abs() / views.clean().std(0).clamp_min(1e-6)
    assert away.max() < 0.5


def test_without_thinning_stage_c_sees_profiles_as_measured_and_the_encoder_augmented_pairs(tiny, panel):
    views = _spots(tiny, panel, thinning=False)
    index = torch.arange(20)
    torch.testing.assert_close(views.draw(index, torch_rng(0)), views.clean()[:20])
    first, second = views.draw_pair(index, torch_rng(0))
    assert not torch.equal(first, second) and not torch.allclose(first, views.clean()[:20], atol=0.1)


def test_cell_views_are_thinned_mildly(tiny, panel):
    cells = tiny.cells[:, panel[1]]
    views = CellViews([cells[:70], cells[70:]], panel[0], config=ExpressionConfig(), seed=0)
    keep = views._keep(views.depths, np.random.default_rng(0))
    assert 0.7 <= keep.min() < 0.75 and 0.95 < keep.max() <= 1


def test_cell_features_in_parts_are_the_whole(tiny, panel):
    cells = tiny.cells[:, panel[1]]
    config = ExpressionConfig()
    whole, standardiser = cell_features(cells, panel[0], config)
    part, _ = cell_features(cells[50:80], panel[0], config, standardiser=standardiser)
    assert torch.equal(whole[50:80], part)
    torch.testing.assert_close(
        (whole / torch.from_numpy(panel[0].weights)).mean(0), torch.zeros(len(panel[0])), atol=1e-4, rtol=0
    )
    plain, _ = cell_features(cells, panel[0], ExpressionConfig(standardise=False, gene_weights="none"))
    np.testing.assert_allclose(
        plain, log_normalise(cells, panel[0].target).toarray() * panel[0].weights, rtol=1e-5
    )
