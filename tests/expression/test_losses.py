import numpy as np
import pytest
import torch

from spatialgears.expression.adversary import Discriminator, grl_coefficient, reverse_gradient
from spatialgears.expression.losses import BANDWIDTHS, coral, local_alignment, mmd, vicreg
from spatialgears.expression.probe import balanced_probe


@pytest.fixture
def pair():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(12, 3, generator=generator), 0.5 * torch.randn(9, 3, generator=generator) + 1


def test_vicreg_is_its_slow_transcription():
    z1, z2 = torch.randn(10, 4), 0.2 * torch.randn(10, 4)
    terms = vicreg(z1, z2)
    variance = covariance = 0.0
    for z in (z1.numpy(), z2.numpy()):
        cov = np.cov(z.T)
        variance += sum(max(0.0, 1.0 - np.sqrt(cov[j, j] + 1e-4)) for j in range(4)) / 4
        covariance += sum(cov[i, j] ** 2 for i in range(4) for j in range(4) if i != j) / 4
    assert float(terms["invariance"]) == pytest.approx(float(((z1 - z2) ** 2).mean()))
    assert float(terms["variance"]) == pytest.approx(variance, rel=1e-5)
    assert float(terms["covariance"]) == pytest.approx(covariance, rel=1e-5)


def test_mmd_is_its_slow_transcription_and_zero_for_equal_samples(pair):
    a, b = pair
    joint = torch.cat([a, b]).double().numpy()
    squared = ((joint[:, None] - joint[None]) ** 2).sum(-1)
    kernel = np.mean([np.exp(-squared / (w * squared.mean())) for w in BANDWIDTHS], axis=0)
    slow = kernel[:12, :12].mean() + kernel[12:, 12:].mean() - 2 * kernel[:12, 12:].mean()
    assert float(mmd(a, b)) == pytest.approx(slow, rel=1e-4)
    assert float(mmd(a, a)) == pytest.approx(0, abs=1e-6)


def test_coral_and_local_alignment_vanish_on_equal_samples_and_see_differences(pair):
    a, b = pair
    assert float(coral(a, a)) == 0 and float(local_alignment(a, a, k=1)) == pytest.approx(0, abs=1e-10)
    gap = np.cov(a.numpy().T) - np.cov(b.numpy().T)
    assert float(coral(a, b)) == pytest.approx((gap**2).sum() / 36, rel=1e-5)
    assert float(local_alignment(a, b)) > float(local_alignment(a, a + 0.01))


def test_reversal_leaves_values_and_turns_gradients():
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    y = reverse_gradient(x, 0.5)
    (3 * y).sum().backward()
    assert torch.equal(y, x) and torch.equal(x.grad, torch.tensor([-1.5, -1.5]))


def test_the_adversary_helps_itself_and_hinders_the_encoder():
    torch.manual_seed(0)
    net, z = Discriminator(2, 2).eval(), torch.randn(20, 2, requires_grad=True)
    labels = (torch.arange(20) % 2).long()
    loss = net(z, labels, 1.0)
    loss.backward()
    with torch.no_grad():
        assert float(net(z - 0.05 * z.grad, labels, 1.0)) > float(
            loss
        )  # descent for the encoder raises the loss


def test_the_coefficient_warms_up_and_ramps():
    values = [grl_coefficient(e, warmup=50, ramp=200) for e in (0, 50, 150, 250, 999)]
    assert values == [0, 0, 0.5, 1, 1]


def test_the_probe_knows_a_mixture_from_two_clouds():
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(200, 3, generator=generator), torch.randn(60, 3, generator=generator)
    assert balanced_probe(a, b, k=20) == pytest.approx(0.5, abs=0.08)
    assert balanced_probe(a, b + 50, k=20) > 0.99
