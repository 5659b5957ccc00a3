"""Each loss against a slow transcription of the paper's formula, point by point."""

import math

import pytest
import torch

from spatialgears.geometry import losses
from spatialgears.supervision import centre


@pytest.fixture
def sets(mask):
    """Prediction and truth (3, 20, 4) of unequal sets, centred, zero at padded places."""
    pred, truth = torch.randn(2, 3, 20, 4, dtype=torch.float64)
    return centre(pred, mask), centre(truth, mask)


def each(mask, *geometries):
    """The real points of one set after the other."""
    for row, size in enumerate(mask.sum(1).tolist()):
        yield tuple(g[row, :size] for g in geometries)


def check(values, expected):
    torch.testing.assert_close(values, torch.stack([torch.as_tensor(e).double() for e in expected]))


def nearest(points, i, k):
    distance = [(float((points[i] - points[j]).norm()), j) for j in range(len(points)) if j != i]
    return [j for _, j in sorted(distance)[:k]]


def test_neighbours_are_the_nearest_real_points(sets, mask):
    _, truth = sets
    near = losses.neighbours(truth, 4, mask)
    for row, (t,) in enumerate(each(mask, truth)):
        for i in range(len(t)):
            expected = nearest(t, i, 4)
            assert near.index[row, i].tolist() == expected and near.valid[row, i].all()
            torch.testing.assert_close(near.distance[row, i], (t[expected] - t[i]).norm(dim=1))


def test_neighbours_run_out_in_sets_that_are_too_small(mask):
    near = losses.neighbours(torch.randn(3, 20, 2), 12, mask)
    assert near.valid[0].all() and (near.valid[2, :9].sum(-1) == 8).all()


def test_temperature_is_the_squared_median_distance_to_the_last_neighbour(sets, mask):
    _, truth = sets
    heat = losses.nca_temperature(losses.neighbours(truth, 4, mask), mask)
    for row, (t,) in enumerate(each(mask, truth)):
        last = [float((t[nearest(t, i, 4)[-1]] - t[i]).norm()) for i in range(len(t))]
        assert float(heat[row]) == pytest.approx(sorted(last)[(len(last) - 1) // 2] ** 2)


def test_score(sets, mask):
    weight = torch.tensor([1.0, 5.0, 0.5], dtype=torch.float64)
    expected = [
        w * sum(float((p[i] - t[i]).square().sum()) for i in range(len(p))) / (len(p) * 4)
        for w, (p, t) in zip(weight, each(mask, *sets), strict=True)
    ]
    check(losses.score_loss(*sets, weight, mask), expected)


def test_gram_and_scale(sets, mask):
    gram, scale, radius = [], [], []
    for p, t in each(mask, *sets):
        g_pred, g_target = p @ p.T, t @ t.T
        gram.append((g_pred - g_target).norm() ** 2 / g_target.norm() ** 2)
        scale.append((g_pred.trace().log() - g_target.trace().log()) ** 2)
        rms = [v.square().sum(1).mean().sqrt().log() for v in (p, t)]
        radius.append((rms[0] - rms[1]) ** 2)
    check(losses.gram_loss(*sets), gram)
    check(losses.gram_scale_loss(*sets), scale)
    check(losses.gen_scale_loss(*sets), radius)


def test_nca(sets, mask):
    expected, temperature = [], torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)
    for tau, (p, t) in zip(temperature.tolist(), each(mask, *sets), strict=True):
        total = 0.0
        for i in range(len(p)):
            weight = [math.exp(-float((p[i] - p[j]).square().sum()) / tau) for j in range(len(p))]
            total -= math.log(sum(weight[j] for j in nearest(t, i, 4)) / (sum(weight) - weight[i]))
        expected.append(total / len(p))
    near = losses.neighbours(sets[1], 4, mask)
    check(losses.nca_loss(sets[0], near, temperature, mask), expected)


def test_local_scale(sets, mask):
    expected = []
    for p, t in each(mask, *sets):
        edges = [(i, j) for i in range(len(p)) for j in nearest(t, i, 4)]
        ratios = [math.log(float((p[i] - p[j]).norm() / (t[i] - t[j]).norm())) for i, j in edges]
        expected.append(sum(r**2 for r in ratios) / len(ratios))
    values = losses.local_scale_loss(sets[0], losses.neighbours(sets[1], 4, mask))
    torch.testing.assert_close(values, torch.tensor(expected, dtype=torch.float64), rtol=1e-4, atol=0)


def test_generator_alignment(sets, mask):
    expected = [(p - t).square().sum() / len(p) for p, t in each(mask, *sets)]
    check(losses.gen_align_loss(*sets, mask), expected)


def test_overlap(sets, mask):
    shape, scale, kl = [], [], []
    for views in each(mask, *(v + 3.0 for v in sets)):  # the losses centre over the shared points themselves
        one, two = (v - v.mean(0) for v in views)
        g_one, g_two = one @ one.T, two @ two.T
        shape.append((g_one / g_one.trace() - g_two / g_two.trace()).norm() ** 2)
        scale.append((g_one.trace().log() - g_two.trace().log()) ** 2)
        p, q = ((-torch.cdist(v, v).square() / 0.7).fill_diagonal_(-torch.inf).softmax(1) for v in (one, two))
        total = 0.0
        for i in range(len(one)):
            for j in range(len(one)):
                if i != j:
                    total += float((p[i, j] - q[i, j]) * (p[i, j] / q[i, j]).log()) / 2
        kl.append(total / len(one))
    first, second = (v + 3.0 for v in sets)
    check(losses.overlap_shape_loss(first, second, mask), shape)
    check(losses.overlap_scale_loss(first, second, mask), scale)
    check(losses.overlap_kl_loss(first, second, torch.full((3,), 0.7), mask), kl)


def every_loss(pred, truth, mask):
    near, temperature = losses.neighbours(truth, 4, mask), torch.full((len(pred),), 0.5)
    return {
        "gram": losses.gram_loss(pred, truth),
        "gram_scale": losses.gram_scale_loss(pred, truth),
        "gen_scale": losses.gen_scale_loss(pred, truth),
        "local_scale": losses.local_scale_loss(pred, near),
        "overlap_shape": losses.overlap_shape_loss(pred, truth, mask),
        "overlap_scale": losses.overlap_scale_loss(pred, truth, mask),
        "overlap_kl": losses.overlap_kl_loss(pred, truth, temperature, mask),
        "nca": losses.nca_loss(pred, near, temperature, mask),
    }


def test_losses_are_zero_at_the_truth_in_any_pose(sets, mask):
    _, truth = sets
    q = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64))[0]
    values = every_loss(truth @ q, truth, mask)
    values.pop("nca")  # its least value depends on the layout
    for name, value in values.items():
        torch.testing.assert_close(value, torch.zeros_like(value), atol=1e-10, rtol=0, msg=name)
    for loss in (
        losses.gen_align_loss(truth, truth, mask),
        losses.score_loss(truth, truth, torch.ones(3), mask),
    ):
        assert (loss == 0).all()


def test_losses_do_not_change_with_the_pose_of_either_side(sets, mask):
    pred, truth = sets
    turns = torch.linalg.qr(torch.randn(2, 4, 4, dtype=torch.float64))[0]
    moved = every_loss(pred @ turns[0], truth @ turns[1], mask)
    for name, value in every_loss(pred, truth, mask).items():
        torch.testing.assert_close(moved[name], value, msg=name)


def test_gradients_are_finite_even_where_points_coincide(sets, mask):
    pred = sets[0].clone()
    pred[:, 1] = pred[:, 0]
    pred = centre(pred, mask).requires_grad_()
    sum(value.sum() for value in every_loss(pred, sets[1], mask).values()).backward()
    assert torch.isfinite(pred.grad).all() and pred.grad[0].abs().sum() > 0
