from __future__ import annotations

import numpy as np

from spatialgears.runtime.hashing import hashed, mix, shuffled, uniform


def test_numbers_depend_on_seed_and_counters_alone():
    whole = uniform(3, np.arange(10)[:, None], np.arange(7))
    assert whole.shape == (10, 7)
    assert np.array_equal(whole[4:6, 2:3], uniform(3, np.array([[4], [5]]), 2))
    assert not np.isclose(whole, uniform(4, np.arange(10)[:, None], np.arange(7))).any()


def test_uniform_is_uniform_and_uncorrelated_between_neighbouring_counters():
    x = uniform(0, np.arange(200_000))
    assert x.min() >= 0 and x.max() < 1
    assert np.abs(np.histogram(x, 20, (0, 1))[0] / 10_000 - 1).max() < 0.05
    assert abs(np.corrcoef(x[1:], x[:-1])[0, 1]) < 0.01


def test_mix_has_no_collisions_and_known_value():
    assert len(np.unique(mix(np.arange(100_000, dtype=np.uint64)))) == 100_000
    assert mix(np.zeros(1, np.uint64))[0] == 0xE220A8397B1DCDAF  # SplitMix64's first output for seed 0
    assert hashed(-1).shape == (1,)


def test_shuffled_sorts_by_keys_and_shuffles_ties():
    key = np.array([2, 0, 1, 0, 1, 2, 0] * 50)
    order = shuffled(1, len(key), key)
    assert (np.diff(key[order]) >= 0).all() and np.array_equal(np.sort(order), np.arange(len(key)))
    ties = order[key[order] == 0]
    assert (np.diff(ties) < 0).any() and not np.array_equal(order, shuffled(2, len(key), key))
