from __future__ import annotations

import inspect
import json
import subprocess
import sys

import numpy as np
import pytest

import spatialgears.metrics as metrics
from spatialgears.errors import InputError
from spatialgears.metrics import evaluate

PERFECT = {"spearman", "pearson", "edge_auc", "bap", "shell_f1", "shell_f1_radius", "trust", "cont"}
COUNTS = {"n", "sampled"}


@pytest.fixture(scope="module")
def tissue() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    truth = rng.uniform(size=(400, 2)) * [2, 1]
    return truth + 0.1 * rng.normal(size=truth.shape), truth


def test_row_is_made_of_the_metrics_by_themselves(tissue):
    row = evaluate(*tissue)
    for name, function in {
        "spearman": metrics.spearman,
        "pearson": metrics.pearson,
        "stress1": metrics.stress1,
        "scale_error": metrics.scale_error,
        "edge_auc": metrics.edge_auc,
        "bap": metrics.balanced_ap,
        "shell_f1": metrics.shell_f1,
        "cal_error": metrics.cal_error,
        "local_stress": metrics.local_stress,
        "trust": metrics.trustworthiness,
        "cont": metrics.continuity,
        "swd": metrics.swd,
        "w1_knn": metrics.w1_knn,
    }.items():
        assert row.pop(name) == pytest.approx(function(*tissue), rel=1e-6), name
    assert row.pop("stress1_unscaled") == pytest.approx(metrics.stress1(*tissue, scale=1.0))
    assert row.pop("shell_f1_radius") == pytest.approx(metrics.shell_f1(*tissue, shells="radius"))
    for k in (10, 20, 50, 100):
        assert row.pop(f"lrmse_{k}") == pytest.approx(metrics.lrmse(*tissue, k=k))
    assert row == {"n": 400, "sampled": 0}


def test_truth_in_any_pose_is_perfect(tissue):
    _, truth = tissue
    turned = truth @ [[0.6, 0.8], [0.8, -0.6]] * 1000 + 5
    scores = evaluate(turned, truth)
    for name in scores.keys() - COUNTS:
        assert scores[name] == pytest.approx(float(name in PERFECT), abs=2e-4), name


def test_pose_of_the_prediction_and_order_of_the_cells_do_not_matter(tissue):
    coords, truth = tissue
    expected = evaluate(coords, truth)
    turned = coords @ [[0.6, 0.8], [0.8, -0.6]] * 1000 + 5
    assert evaluate(turned, truth) == pytest.approx(expected, abs=1e-5)
    shuffle = np.random.default_rng(0).permutation(400)
    assert evaluate(coords[shuffle], truth[shuffle]) == pytest.approx(expected, abs=1e-9)


def test_noise_makes_every_score_worse(tissue):
    coords, truth = tissue
    good = evaluate(coords, truth)
    bad = evaluate(coords + np.random.default_rng(2).normal(size=coords.shape), truth)
    for name in good.keys() - COUNTS - {"scale_error"}:
        assert (bad[name] < good[name]) == (name in PERFECT), name


def test_values_are_plain_numbers_and_inputs_stay_as_they_were(tissue):
    coords, truth = (points.astype(np.float32) for points in tissue)
    before = coords.copy(), truth.copy()
    scores = evaluate(coords, truth)
    assert {type(value) for value in scores.values()} == {float}
    assert json.loads(json.dumps(scores)) == scores
    np.testing.assert_array_equal((coords, truth), before)


def test_sample_estimates_the_exact_scores_and_depends_on_its_seed_alone(tissue):
    coords, truth = tissue
    exact = evaluate(coords, truth)
    draws = [evaluate(coords, truth, max_exact=250, seed=seed) for seed in range(8)]
    assert draws[3] == evaluate(coords, truth, max_exact=250, seed=3)
    assert draws[3]["spearman"] != draws[4]["spearman"]
    assert draws[0]["sampled"] == 1 and draws[0]["n"] == 400
    assert draws[0]["swd"] == exact["swd"]  # never sampled
    for name in exact.keys() - COUNTS - {"swd", "scale_error"}:  # scale_error near 0 is biased, as documented
        values = [draw[name] for draw in draws]
        standard_error = np.std(values, ddof=1) / np.sqrt(len(values))
        assert abs(np.mean(values) - exact[name]) < 4 * standard_error, name
        assert standard_error < 0.06 * exact[name], name


def test_fewest_points_give_a_full_row():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(22, 2))
    scores = evaluate(truth + 0.1 * rng.normal(size=truth.shape), truth)
    assert {name for name, value in scores.items() if np.isnan(value)} == {"lrmse_50", "lrmse_100"}


def test_points_on_a_lattice_are_scored(lattice):
    scores = evaluate(lattice[:, ::-1] * 2, lattice)
    for name in ("spearman", "trust", "cont", "edge_auc", "bap"):
        assert scores[name] == pytest.approx(1, abs=0.06), name


@pytest.mark.parametrize(
    ("coords", "truth", "options", "message"),
    [
        (np.zeros((30, 3)), np.zeros((30, 3)), {}, "shape"),
        (np.eye(30)[:, :2], np.eye(31)[:, :2], {}, "30 and 31 rows"),
        (np.full((30, 2), np.nan), np.eye(30)[:, :2], {}, "coords has NaN"),
        (np.eye(30)[:, :2], np.full((30, 2), np.inf), {}, "truth has NaN"),
        (np.zeros((30, 2)), np.eye(30)[:, :2], {}, "same place"),
        (np.eye(21)[:, :2], np.eye(21)[:, :2], {}, "k = 20"),
        (np.eye(30)[:, :2], np.eye(30)[:, :2], {"max_exact": 21}, "max_exact"),
        (np.eye(30)[:, :2], np.eye(30)[:, :2], {"max_exact": 10**6}, "max_exact"),
    ],
)
def test_bad_input_is_refused_with_a_reason(coords, truth, options, message):
    with pytest.raises(InputError, match=message):
        evaluate(coords, truth, **options)


def test_public_functions_take_at_most_three_arguments_by_position():
    for name in metrics.__all__:
        parameters = inspect.signature(getattr(metrics, name)).parameters.values()
        positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        assert len(positional) <= 3, name
        assert getattr(metrics, name).__doc__, name


def test_metrics_import_neither_torch_nor_sklearn():
    heavy = "{'torch', 'sklearn', 'anndata', 'scanpy', 'matplotlib'} & set(sys.modules)"
    code = f"import sys, spatialgears.metrics; sys.exit(str({heavy}) if {heavy} else 0)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_ten_thousand_points_exactly_within_4_gb():
    code = """
import resource
import numpy as np
from spatialgears.metrics import evaluate
rng = np.random.default_rng(0)
truth = rng.uniform(size=(10_150, 2))
scores = evaluate(truth + 0.05 * rng.normal(size=truth.shape), truth)
assert not scores["sampled"]
assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4e6  # kB
"""
    subprocess.run([sys.executable, "-c", code], check=True)
