from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from scipy.stats import entropy

from spatialgears.errors import InputError
from spatialgears.metrics import ilisi, mixing, neighbour_entropy


@pytest.fixture
def embedding() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.array(["a"] * 40 + ["b"] * 25 + ["c"] * 15)
    return rng.normal(size=(80, 5)) + (labels == "c")[:, None], labels


@pytest.mark.parametrize("balanced", [False, True])
def test_mixing_is_its_formula(embedding, balanced):
    points, labels = embedding
    names, sizes = np.unique(labels, return_counts=True)
    entropies, simpsons = [], []
    for row, self_ in zip(cdist(points, points), range(80), strict=True):
        nearest = [j for j in np.argsort(row) if j != self_][:20]
        counts = np.array([(labels[nearest] == name).sum() for name in names]) / (sizes if balanced else 1)
        share = counts / counts.sum()
        entropies.append(entropy(share) / np.log(3))
        simpsons.append((1 / (share**2).sum() - 1) / 2)
    assert neighbour_entropy(points, labels, balanced=balanced) == pytest.approx(np.mean(entropies))
    assert ilisi(points, labels, balanced=balanced) == pytest.approx(np.mean(simpsons))
    both = mixing(points, labels, balanced=balanced)
    assert both == pytest.approx({"neighbour_entropy": np.mean(entropies), "ilisi": np.mean(simpsons)})


def test_apart_is_zero_and_unequal_groups_reach_one_only_when_balanced():
    rng = np.random.default_rng(1)
    labels = np.repeat([0, 1], [300, 900])
    assert mixing(rng.normal(size=(1200, 3)) + 100 * labels[:, None], labels) == {
        "neighbour_entropy": 0,
        "ilisi": 0,
    }
    points = rng.normal(size=(1200, 3))
    assert mixing(points, labels, k=200, balanced=True)["ilisi"] > 0.97
    assert mixing(points, labels, k=200)["ilisi"] < 0.65


@pytest.mark.parametrize(
    ("points", "labels", "k", "message"),
    [
        (np.zeros((30, 3)), np.zeros(29), 20, "one label per row"),
        (np.zeros((30, 3)), np.zeros(30), 20, "2 labels"),
        (np.zeros((20, 3)), np.arange(20) % 2, 20, "k = 20"),
        (np.full((30, 3), np.nan), np.arange(30) % 2, 20, "NaN"),
    ],
)
def test_bad_input_is_refused(points, labels, k, message):
    with pytest.raises(InputError, match=message):
        mixing(points, labels, k=k)
