import numpy as np
import pytest
import torch
from scipy.linalg import orthogonal_procrustes

from spatialgears.supervision import Pose, centre, procrustes


@pytest.fixture
def points():
    return torch.randn(3, 20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture
def mask():
    return torch.arange(20) < torch.tensor([[20], [13], [9]])


def orthogonal(d, seed=0):
    return torch.linalg.qr(
        torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    )[0]


@pytest.mark.parametrize("sign", [1, -1])
def test_procrustes_recovers_a_known_rotation_or_reflection_under_padding(sign, mask):
    source = centre(
        torch.randn(3, 20, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64), mask
    )
    q = orthogonal(6)
    q[0] *= sign * torch.linalg.det(q).sign()
    target = source @ q + 100 * ~mask.unsqueeze(-1)  # what stands at padded places must not matter
    torch.testing.assert_close(procrustes(source, target, mask), q.expand(3, 6, 6))


def test_procrustes_is_optimal_for_noisy_sets():
    source, target = (torch.randn(40, 5, generator=torch.Generator().manual_seed(s)).double() for s in (3, 4))
    expected, _ = orthogonal_procrustes(source.numpy(), target.numpy())
    np.testing.assert_allclose(procrustes(source[None], target[None])[0].numpy(), expected, atol=1e-10)


def test_a_planar_source_aligns_as_its_padded_self(points):
    target = torch.randn(3, 20, 32, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    source = centre(points)
    padded = torch.nn.functional.pad(source, (0, 30))
    full = procrustes(padded, target)
    torch.testing.assert_close(full @ full.mT, torch.eye(32, dtype=torch.float64).expand(3, 32, 32))
    torch.testing.assert_close(source @ procrustes(source, target), padded @ full)


@pytest.mark.parametrize("batched", [False, True])
def test_a_pose_is_found_and_undone(points, mask, batched):
    """Two dimensions laid into five, turned and moved; padding does not count."""
    places, real = (points.float(), mask) if batched else (points[0].float(), None)
    elsewhere = (places - 3.0) @ orthogonal(5)[:2].float() + 7.0
    pose = Pose.between(places, elsewhere, real)
    torch.testing.assert_close(
        pose(places, torch.ones(*places.shape[:-1], 1)), elsewhere, atol=1e-4, rtol=1e-4
    )
    torch.testing.assert_close(pose.inverse(elsewhere), places, atol=1e-4, rtol=1e-4)
