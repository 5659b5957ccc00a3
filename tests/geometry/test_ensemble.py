import pytest
import torch

from spatialgears.geometry.ensemble import Ensemble
from spatialgears.geometry.model import GeometryModel


@pytest.fixture
def members(tiny):
    lead = GeometryModel(10, 6, tiny(refiner_steps=5).geometry)
    others = [GeometryModel(10, 6, tiny(refiner="none").geometry) for _ in range(2)]
    return [member.eval() for member in (lead, *others)]


@torch.no_grad()
def test_the_mean_does_not_depend_on_the_members_frames(members, mask):
    x, turn = torch.randn(3, 20, 10), torch.linalg.qr(torch.randn(6, 6))[0]
    before = Ensemble(members)(x, mask)
    head = members[1].generate.head[-1]
    head.weight.copy_(turn.T @ head.weight)
    head.bias.copy_(turn.T @ head.bias)
    torch.testing.assert_close(Ensemble(members)(x, mask), before, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_equal_members_are_one_model(members, mask):
    x = torch.randn(3, 20, 10)
    torch.testing.assert_close(Ensemble([members[0]] * 3)(x, mask), members[0](x, mask), atol=1e-5, rtol=1e-4)


def test_samples_refine_the_mean_and_do_not_depend_on_the_batch(members, mask):
    ensemble, x, seeds = Ensemble(members), torch.randn(3, 20, 10), torch.tensor([4, 5, 6])
    options = {"sigma_start": 1.0, "seeds": seeds}
    with torch.no_grad():
        assert torch.equal(ensemble.sample(x, mask, steps=0, **options), ensemble(x, mask))
    together = ensemble.sample(x, mask, steps=2, **options)
    assert not torch.allclose(together, members[0].sample(x, mask, steps=2, **options), atol=1e-3)
    for row, size in enumerate([20, 15, 9]):
        alone = ensemble.sample(x[row : row + 1, :size], steps=2, sigma_start=1.0, seeds=seeds[row : row + 1])
        torch.testing.assert_close(together[row, :size], alone[0], atol=1e-4, rtol=1e-3)
