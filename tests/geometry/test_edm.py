import itertools
import math

import pytest
import torch

from spatialgears.geometry.edm import (
    heun,
    karras_schedule,
    loss_weight,
    noise_levels,
    precondition,
    sigma_cap,
)


def test_coefficients_give_unit_variance_in_and_out():
    sigma, sigma_data = torch.tensor([0.01, 0.3, 4.0], dtype=torch.float64), torch.tensor(0.3)
    c = precondition(sigma, sigma_data)
    generator = torch.Generator().manual_seed(0)
    clean = sigma_data * torch.randn(3, 200_000, generator=generator)
    noisy = clean + sigma[:, None] * torch.randn(3, 200_000, generator=generator)
    assert (c.scale_in[:, None] * noisy).std(1) == pytest.approx([1, 1, 1], abs=0.01)
    target = (clean - c.skip[:, None] * noisy) / c.out[:, None]  # what the network has to say
    assert target.std(1) == pytest.approx([1, 1, 1], abs=0.01)
    torch.testing.assert_close(loss_weight(sigma, sigma_data) * c.out**2, torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(c.noise, sigma.log() / 4)


def test_limits_of_the_noise_level():
    c = precondition(torch.tensor([1e-6, 1e6]), torch.tensor(1.0))
    assert c.skip.tolist() == pytest.approx([1, 0], abs=1e-9)
    assert c.out.tolist() == pytest.approx([0, 1], abs=1e-5)


def test_noise_levels_are_stratified_log_uniform():
    levels = noise_levels(50, 0.02, 5.0, torch.Generator().manual_seed(0))
    place = (levels / 0.02).log() / math.log(5.0 / 0.02)
    assert sorted((place * 50).floor().int().tolist()) == list(range(50))
    assert levels.tolist() != sorted(levels.tolist())


def test_the_cap_rises_in_equal_stages():
    assert [sigma_cap(p) for p in (0, 0.33, 0.34, 0.66, 0.67, 1.0)] == [1, 1, 3, 3, 5, 5]


def test_karras_schedule():
    sigmas = karras_schedule(18, 3.0, 0.02)
    assert sigmas[0] == pytest.approx(3.0) and sigmas[-2] == pytest.approx(0.02) and sigmas[-1] == 0
    assert (sigmas.diff() < 0).all() and len(sigmas) == 19
    steps = sigmas[:-1] ** (1 / 7)
    torch.testing.assert_close(steps.diff(), steps.diff()[:1].expand(17))
    assert karras_schedule(1, 3.0, 0.02).tolist() == pytest.approx([3.0, 0.0])


def gaussian(u, sigma, sigma_data=0.5):
    """The exact denoiser of a Gaussian of scale sigma_data."""
    return u * sigma_data**2 / (sigma_data**2 + sigma**2)


def test_heun_converges_at_second_order_on_a_gaussian():
    u = torch.tensor([1.7, -0.4], dtype=torch.float64)
    exact = u * math.sqrt(
        (0.25 + 0.01**2) / (0.25 + 3.0**2)
    )  # the flow keeps U / sqrt(sigma^2 + sigma_data^2)
    errors = []
    for steps in (16, 32, 64, 128):
        sigmas = karras_schedule(steps + 1, 3.0, 0.01)[:-1]  # stops at sigma_min, without the last Euler step
        errors.append(float((heun(gaussian, u, sigmas) - exact).abs().max()))
    orders = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert orders[-2:] == pytest.approx([2, 2], abs=0.15)


def test_sampling_a_gaussian_to_zero_noise_recovers_its_scale():
    noise = torch.randn(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    out = heun(gaussian, 40.0 * noise, karras_schedule(40, 40.0, 0.002))
    assert float(out.std()) == pytest.approx(0.5, rel=0.02)
