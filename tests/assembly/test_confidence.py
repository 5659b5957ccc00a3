from __future__ import annotations

import numpy as np
import pytest
import torch

from spatialgears.assembly.confidence import Confidence


def synthetic(n: int, seed: int, *, views: int = 1, spread: float = 0.0):
    """Features (n, 6), the first the widest, and errors whose scale is ``exp(spread * first feature)``."""
    rng = np.random.default_rng(seed)
    x = np.repeat(rng.normal(size=(n, 6)) * [1, 0.3, 0.3, 0.3, 0.3, 0.3], views, axis=0)
    x = x + 0.05 * rng.normal(size=x.shape) * (views > 1)
    error = np.exp(spread * x[:, 0]) * np.abs(rng.normal(size=len(x)))
    spot = np.repeat(np.arange(n), views)
    return torch.from_numpy(x).float(), torch.from_numpy(error).float(), torch.from_numpy(spot)


@pytest.mark.parametrize("spread", [0.0, 0.7])
def test_radii_cover_what_they_say(spread):
    confidence = Confidence.fit(*synthetic(1500, 0, spread=spread))
    x, error, _ = synthetic(4000, 1, spread=spread)
    for level in (0.5, 0.9):
        covered = (error.numpy() <= confidence.radii(x, level)).mean()
        assert covered == pytest.approx(level, abs=0.03)


def test_radii_cover_in_easy_and_in_hard_places():
    confidence = Confidence.fit(*synthetic(1500, 0, spread=0.7))
    x, error, _ = synthetic(6000, 1, spread=0.7)
    radius50, radius90, _ = confidence.judge(x)
    hard, easy = (x[:, 0] > 0.7).numpy(), (x[:, 0] < -0.7).numpy()
    assert np.median(radius90[hard]) > 1.5 * np.median(radius90[easy])
    for part in (hard, easy):
        assert (error.numpy()[part] <= radius90[part]).mean() == pytest.approx(0.9, abs=0.08)
        assert (error.numpy()[part] <= radius50[part]).mean() == pytest.approx(0.5, abs=0.15)


def test_judge_agrees_with_radii_and_orders_them():
    confidence = Confidence.fit(*synthetic(300, 0, spread=0.5))
    x, _, _ = synthetic(50, 1)
    radius50, radius90, _ = confidence.judge(x)
    np.testing.assert_array_equal(radius50, confidence.radii(x, 0.5))
    np.testing.assert_array_equal(radius90, confidence.radii(x.numpy(), 0.9))
    assert (radius50 < radius90).all() and (radius50 > 0).all()


def test_far_cells_are_marked():
    confidence = Confidence.fit(*synthetic(800, 0))
    near, _, _ = synthetic(500, 1)
    assert confidence.judge(near)[2].mean() < 0.03
    far = near + 20
    assert confidence.judge(far)[2].all()
    assert np.isfinite(confidence.judge(far)[1]).all()


def test_a_spot_does_not_vouch_for_itself():
    """Views of one spot share its error: were they each other's neighbours, all ratios would be one."""
    rng = np.random.default_rng(0)
    x, _, spot = synthetic(200, 0, views=4)
    error = torch.from_numpy(np.repeat(np.exp(rng.normal(size=200)), 4)).float()
    confidence = Confidence.fit(x, error, spot)
    assert confidence.quantile(0.9) / confidence.quantile(0.5) > 2
    new = torch.from_numpy(np.exp(rng.normal(size=2000))).float().numpy()
    covered = new <= confidence.radii(synthetic(2000, 5)[0], 0.9)
    assert covered.mean() == pytest.approx(0.9, abs=0.05)


def test_the_quantile_is_that_of_a_finite_sample():
    x, error, spot = synthetic(9, 0)
    confidence = Confidence.fit(x, error, spot)
    ratios = confidence.ratios.tolist()
    assert ratios == sorted(ratios)
    assert confidence.quantile(0.5) == ratios[4]  # ceil(0.5 * 10) = 5 of 9
    assert confidence.quantile(0.9) == ratios[8]
    assert confidence.quantile(0.99) == ratios[8]


def test_very_few_spots_and_exact_places_stay_finite():
    x, error, spot = synthetic(3, 0, views=4)
    confidence = Confidence.fit(x, error, spot)
    assert np.isfinite(confidence.radii(x, 0.9)).all()
    exact = Confidence.fit(x, torch.zeros_like(error), spot)
    assert np.isfinite(exact.radii(x, 0.9)).all()


def test_blocks_do_not_change_the_answer(monkeypatch):
    from spatialgears.assembly import confidence as module

    confidence = Confidence.fit(*synthetic(300, 0, spread=0.5))
    x, _, _ = synthetic(100, 1)
    whole = confidence.judge(x)
    monkeypatch.setattr(module, "BLOCK", 7 * 300)
    for one, two in zip(whole, confidence.judge(x), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5)


def test_there_and_back_through_tensors():
    confidence = Confidence.fit(*synthetic(100, 0, spread=0.5))
    again = Confidence.from_tensors(confidence.tensors())
    x, _, _ = synthetic(20, 1)
    for one, two in zip(confidence.judge(x), again.judge(x), strict=True):
        np.testing.assert_array_equal(one, two)
