"""Radii that cover what they say, and marks on cells that no spot is like."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from spatialgears.assembly.confidence import Confidence, error_of_mean


def synthetic(n: int, seed: int, *, views: int = 1):
    """Features (n, 6), errors, and a spread that the errors' scale follows."""
    rng = np.random.default_rng(seed)
    x = np.repeat(rng.normal(size=(n, 6)) * [1, 0.3, 0.3, 0.3, 0.3, 0.3], views, axis=0)
    x = x + 0.05 * rng.normal(size=x.shape) * (views > 1)
    spread = np.exp(0.7 * x[:, 0])
    error = spread * np.abs(rng.normal(size=len(x)))
    spot = np.repeat(np.arange(n), views)
    return (*(torch.from_numpy(a).float() for a in (x, error, spread)), torch.from_numpy(spot))


def learnt(n: int = 1500, seed: int = 0, *, views: int = 1) -> Confidence:
    x, error, spread, spot = synthetic(n, seed, views=views)
    return Confidence.fit(x, error, spread, spot=spot)


def test_radii_cover_what_they_say_in_easy_and_in_hard_places():
    confidence = learnt()
    _, error, spread, _ = synthetic(6000, 1)
    hard, easy = (spread > 1.6).numpy(), (spread < 0.6).numpy()
    for level in (0.5, 0.9):
        covered = error.numpy() <= confidence.radii(spread, level)
        for part in (hard, easy, hard | ~hard):
            assert covered[part].mean() == pytest.approx(level, abs=0.04)


def test_larger_spread_and_level_give_larger_radii():
    confidence = learnt(300)
    radii = confidence.radii(torch.tensor([0.1, 0.2, 0.4]), 0.5)
    np.testing.assert_allclose(radii[1:] / radii[:-1], 2, rtol=1e-5)
    assert (confidence.radii(torch.tensor([0.1, 0.2, 0.4]), 0.9) > radii).all()


def test_far_cells_are_marked():
    confidence = learnt(800)
    near = synthetic(500, 1)[0]
    assert confidence.outside(near).mean() < 0.03
    assert confidence.outside(near + 20).all()


def test_a_spot_does_not_vouch_for_itself():
    """Views of one spot lie together: were they each other's neighbours, every other cell would seem far."""
    confidence = learnt(200, views=4)
    assert confidence.outside(synthetic(500, 5)[0]).mean() < 0.05


def test_the_quantile_is_that_of_a_finite_sample():
    confidence = learnt(9)
    ratios = confidence.ratios.tolist()
    assert ratios == sorted(ratios)
    assert confidence.quantile(0.5) == ratios[4]  # ceil(0.5 * 10) = 5 of 9
    assert confidence.quantile(0.9) == ratios[8]
    assert confidence.quantile(0.99) == ratios[8]


def test_very_few_spots_and_exact_places_stay_finite():
    x, error, spread, spot = synthetic(3, 0, views=4)
    for wrong in (error, torch.zeros_like(error)):
        confidence = Confidence.fit(x, wrong, spread, spot=spot)
        assert np.isfinite(confidence.radii(spread, 0.9)).all()


def test_blocks_do_not_change_the_answer(monkeypatch):
    from spatialgears.assembly import confidence as module

    confidence = learnt(300)
    x = synthetic(100, 1)[0] * 2
    whole = confidence.outside(x)
    monkeypatch.setattr(module, "BLOCK", 7 * 300)
    np.testing.assert_array_equal(whole, confidence.outside(x))


def test_there_and_back_through_tensors():
    confidence = learnt(100)
    again = Confidence.from_tensors(confidence.tensors())
    x, _, spread, _ = synthetic(20, 1)
    np.testing.assert_array_equal(confidence.radii(spread, 0.9), again.radii(spread, 0.9))
    np.testing.assert_array_equal(confidence.outside(x), again.outside(x))


def test_the_mean_of_models_errs_less_by_what_they_differ():
    """Three models with a common error and noise of their own: the errors of their mean, from those of one."""
    rng = torch.Generator().manual_seed(0)
    common, noise = torch.randn(20_000, 2, generator=rng), 0.6 * torch.randn(3, 20_000, 2, generator=rng)
    one, mean = (common + noise[0]).norm(dim=1), (common + noise.mean(0)).norm(dim=1)
    differ = float((noise - noise.mean(0)).square().sum(-1).mean())
    found = error_of_mean(one, torch.ones(len(one)), noise=differ, members=3)
    assert (one.median() - mean.median()) > 0.1
    assert found.median() == pytest.approx(float(mean.median()), rel=0.1)
    assert float(found.quantile(0.9)) == pytest.approx(float(mean.quantile(0.9)), rel=0.1)


def test_one_model_errs_as_it_does():
    error, spread = torch.rand(50), torch.rand(50)
    torch.testing.assert_close(error_of_mean(error, spread, noise=0.0, members=1), error)
    least = error_of_mean(error, spread, noise=1e6, members=4)
    torch.testing.assert_close(least, error / 2)  # as of four independent ones
