import pytest
import torch

from spatialgears.geometry import attention
from spatialgears.geometry import local as module
from spatialgears.geometry.local import Reference, describe, random_reference
from spatialgears.supervision import centre


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    """As suits sets of 9 to 20 points."""
    for name, value in {"NEIGHBORS": 5, "LANDMARKS": 4}.items():
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def layout(mask):
    return centre(torch.randn(3, 20, 6), mask)


def test_neighbours_and_landmarks_are_real_and_ignore_padding(layout, mask):
    local = describe(layout, mask)
    for row, size in enumerate([20, 15, 9]):
        alone = describe(layout[row : row + 1, :size])
        assert (local.neighbour[row, :size] < size).all() and (local.landmark[row] < size).all()
        for name in ("neighbour", "valid", "points", "distance_bin", "angles", "landmark_bin"):
            torch.testing.assert_close(getattr(local, name)[row, :size], getattr(alone, name)[0], msg=name)
        assert torch.equal(local.landmark[row], alone.landmark[0])


def test_neighbours_are_the_nearest_others(layout):
    layout = layout[:1]
    local = describe(layout)
    distance = torch.cdist(layout, layout)
    distance.diagonal(dim1=1, dim2=2).fill_(torch.inf)
    assert torch.equal(local.neighbour, distance.topk(5, largest=False).indices)
    assert local.valid.all()


def test_description_follows_permutations(layout, mask):
    order = torch.randperm(20)
    moved, local = describe(layout[:, order], mask[:, order]), describe(layout, mask)
    torch.testing.assert_close(moved.angles, local.angles[:, order])
    torch.testing.assert_close(moved.landmark_bin, local.landmark_bin[:, order])
    torch.testing.assert_close(order[moved.landmark], local.landmark)
    real = mask[:, order]
    torch.testing.assert_close(moved.distance_bin[real], local.distance_bin[:, order][real])
    assert torch.equal(order[moved.neighbour[moved.valid]], local.neighbour[:, order][local.valid[:, order]])


def test_bins_and_angles_do_not_depend_on_pose_or_scale(layout, mask):
    turn = torch.linalg.qr(torch.randn(6, 6))[0]
    moved, local = describe(7.0 * layout @ turn, mask), describe(layout, mask)
    for name in ("neighbour", "distance_bin", "landmark", "landmark_bin"):
        assert torch.equal(getattr(moved, name)[mask.any(1)], getattr(local, name)), name
    torch.testing.assert_close(moved.angles, local.angles)


def test_angles_tell_the_rim_from_the_inside(monkeypatch):
    monkeypatch.setattr(module, "NEIGHBORS", 8)
    monkeypatch.setattr(module, "ANGLE_BINS", 2)  # towards the centre, away from it
    side = torch.linspace(-1, 1, 9)
    grid = torch.stack(torch.meshgrid(side, side, indexing="ij"), -1).reshape(1, 81, 2)
    angles = describe(grid).angles[0]
    assert angles.sum(-1).tolist() == pytest.approx([1] * 81)
    corner, inside = angles[0], angles[30]
    assert corner[0] > 0.9 and inside[0] < 0.7


def test_landmarks_spread_over_the_set():
    clusters = torch.tensor([[-1.0, -1], [1, 1], [-1, 1], [1, -1]]).repeat_interleave(10, 0)
    points = centre(clusters + 0.01 * torch.randn(40, 2))[None]
    assert sorted((describe(points).landmark[0] // 10).tolist()) == [0, 1, 2, 3]


def test_a_degenerate_set_has_at_least_one_landmark():
    local = describe(torch.zeros(1, 20, 6))
    assert local.landmark_mask.sum() == 1 and torch.isfinite(local.angles).all()


def test_large_sets_refer_to_a_random_subset_decided_by_the_seed(mask):
    seeds = torch.tensor([5, 6, 7])
    reference = random_reference(20, mask, 12, seeds)
    assert reference.mask.sum(1).tolist() == [12, 12, 9]
    for row, size in enumerate([20, 15, 9]):
        chosen = reference.index[row][reference.mask[row]]
        assert len(chosen.unique()) == len(chosen) and (chosen < size).all()
        alone = random_reference(size, None, 12, seeds[row : row + 1])
        if alone is not None:
            assert torch.equal(alone.index[0], chosen)
    assert random_reference(12, None, 12, seeds) is None


def test_neighbours_come_from_the_reference_alone_in_pieces_or_not(layout, monkeypatch):
    reference = Reference(torch.arange(0, 20, 2).expand(3, 10), torch.ones(3, 10, dtype=torch.bool))
    local = describe(layout, None, reference)
    assert (local.neighbour % 2 == 0).all() and (local.landmark % 2 == 0).all()
    assert (local.neighbour != torch.arange(20)[:, None]).all()
    monkeypatch.setattr(attention, "CHUNK", 6)
    pieces = describe(layout, None, reference)
    assert torch.equal(pieces.neighbour, local.neighbour)
    torch.testing.assert_close(pieces.angles, local.angles)
