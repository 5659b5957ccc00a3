from __future__ import annotations

import numpy as np
import pytest

from spatialgears.pipeline.pose import Pose, fit_pose, known_poses


@pytest.fixture(scope="module")
def spots():
    grid = np.stack(np.meshgrid(np.arange(12.0), np.arange(9.0)), axis=-1).reshape(-1, 2)
    return 80 * grid[np.random.default_rng(0).permutation(len(grid))] + [1000, 200]


def moved(spots, *, angle=1.0, mirrored=False):
    """The spots in the frame of some cells: turned, perhaps mirrored, in units of their own."""
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return (spots - spots.mean(0)) / 300 @ (turn @ np.diag([1, -1 if mirrored else 1])) + [0.2, -0.1]


@pytest.mark.parametrize("mirrored", [False, True])
def test_cells_return_to_where_the_slide_has_them(spots, mirrored):
    pose = Pose.between(moved(spots, mirrored=mirrored), spots)
    np.testing.assert_allclose(pose(moved(spots, mirrored=mirrored)), spots, atol=1e-6)
    assert pose.mirrored == mirrored


def test_a_slide_is_known_by_its_spots_in_any_order(spots):
    other = spots * 1.3 + 40
    among = [moved(other), moved(spots, mirrored=True)[:60]]
    poses = known_poses(among, [other, spots[:60]], [spots, other, spots + 31])
    assert poses[0].mirrored and not poses[1].mirrored and poses[2] is None
    np.testing.assert_allclose(poses[0](moved(spots, mirrored=True)), spots, atol=1e-6)


def test_poses_are_told_apart_by_their_angle(spots):
    one, other = (Pose.between(moved(spots, angle=angle), spots) for angle in (0.3, 0.3 + np.pi / 4))
    assert one.turned(other) == pytest.approx(45) and one.turned(one) == pytest.approx(0, abs=1e-5)


def test_the_pose_of_a_registration():
    fit = {"scale": 2.0, "matrix": np.diag([1.0, -1.0]), "shift": np.array([5.0, 0.0])}
    assert fit_pose(fit)([[1.0, 1.0]]).tolist() == [[7.0, -2.0]] and fit_pose(fit).mirrored
