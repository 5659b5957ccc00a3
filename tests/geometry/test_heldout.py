import numpy as np
import pytest
import torch

from spatialgears.geometry.heldout import HeldOutScore, plane


@pytest.fixture
def heldout(tissue):
    """A fifth of the spots."""
    return np.random.default_rng(0).random(sum(map(len, tissue.slides))) < 0.2


class Oracle(torch.nn.Linear):
    """Places spots by features that are their coordinates, turned and stretched, in more dimensions."""

    def forward(self, x):
        turned = torch.nn.functional.pad(x, (0, 3)) @ torch.linalg.qr(torch.randn(5, 5))[0]
        return 3.0 * (turned - turned.mean(1, keepdim=True))


def test_a_perfect_layout_scores_one_in_any_pose_and_a_random_one_nothing(tissue, heldout):
    coords = torch.from_numpy(np.concatenate(tissue.slides)).float()
    true = HeldOutScore(lambda index, _: coords[index], tissue.slides, heldout, seed=0)(Oracle(1, 1))
    assert set(true) == {"heldout", "heldout_0", "heldout_1"}
    assert true["heldout"] == pytest.approx(1, abs=1e-6)
    shuffled = coords[torch.randperm(110)]
    assert (
        abs(HeldOutScore(lambda i, _: shuffled[i], tissue.slides, heldout, seed=0)(Oracle(1, 1))["heldout"])
        < 0.3
    )


def test_a_collapsed_layout_scores_worst(tissue, heldout):
    score = HeldOutScore(lambda index, _: torch.zeros(*index.shape, 2), tissue.slides, heldout, seed=0)
    assert score(Oracle(1, 1))["heldout"] == -1


def test_the_score_is_the_same_every_time(tissue, tiny, heldout):
    from spatialgears.geometry import GeometryModel

    model = GeometryModel(10, 6, tiny().geometry).eval()
    score = HeldOutScore(tissue.draw, tissue.slides, heldout, seed=0)
    assert score(model) == score(model)


def test_plane_keeps_the_distances_of_a_planar_layout():
    points = torch.randn(30, 2, dtype=torch.float64)
    lifted = (
        torch.nn.functional.pad(points - points.mean(0), (0, 4))
        @ torch.linalg.qr(torch.randn(6, 6).double())[0]
    )
    torch.testing.assert_close(torch.cdist(plane(lifted), plane(lifted)), torch.cdist(points, points))
