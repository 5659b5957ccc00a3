from __future__ import annotations

import numpy as np
import pytest

from spatialgears.assembly.canonical import canonical, principal_plane
from spatialgears.metrics.points import lay_on


def motion(seed: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return np.linalg.qr(rng.normal(size=(dim, dim)))[0], rng.normal(size=dim)


@pytest.mark.parametrize("seed", range(4))
def test_canonical_does_not_depend_on_pose(tissue, seed):
    turn, shift = motion(seed, 2)
    places = tissue(300).astype(np.float64)
    first, moved = canonical(places), canonical(places @ turn + shift)
    assert np.allclose(first.coords, moved.coords, atol=1e-6) and np.isclose(first.rms, moved.rms)
    assert np.allclose(first.coords.mean(0), 0, atol=1e-9)
    cross = first.coords.T @ first.coords
    assert abs(cross[0, 1]) < 1e-6 * cross[0, 0] and cross[0, 0] > cross[1, 1]


def test_canonical_keeps_the_scale_and_tells_it(tissue):
    places = tissue(200) * 3
    found = canonical(places)
    assert np.isclose(found.rms, 3, rtol=1e-5)
    assert np.isclose(
        np.linalg.norm(found.coords[0] - found.coords[1]), np.linalg.norm(places[0] - places[1])
    )


def test_principal_plane_of_planar_points_is_exact(tissue):
    places = tissue(100).astype(np.float64)
    turn, shift = motion(1, 7)
    plane, share = principal_plane(np.pad(places, ((0, 0), (0, 5))) @ turn + shift)
    assert np.isclose(share, 1)
    assert np.allclose(canonical(plane).coords, canonical(places).coords, atol=1e-9)


@pytest.mark.parametrize("points", [np.zeros((4, 3)), np.ones((1, 2)), np.arange(5.0)[:, None]])
def test_degenerate_points_are_finite(points):
    plane, share = principal_plane(points)
    assert plane.shape == (len(points), 2) and np.isfinite(plane).all() and share == pytest.approx(1)
    assert np.isfinite(canonical(plane).coords).all()


def test_lay_on_undoes_motions_in_batches_and_projects(tissue):
    target = np.stack([tissue(50, seed=s) for s in range(3)]).astype(np.float64)
    target -= target.mean(1, keepdims=True)
    turns = np.stack([motion(s, 5)[0] for s in range(3)])
    source = np.pad(target, ((0, 0), (0, 0), (0, 3))) @ turns
    turn = lay_on(source, target)
    assert np.allclose(source @ turn, target)
    assert np.allclose(np.swapaxes(turn, 1, 2) @ turn, np.eye(2))
