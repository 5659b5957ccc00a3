import itertools

import numpy as np
import pytest
import torch

from spatialgears.config import SupervisionConfig
from spatialgears.errors import InputError
from spatialgears.supervision import MinisetSampler, canonicalise
from spatialgears.supervision import minisets as module
from spatialgears.supervision.minisets import _top

CONFIG = SupervisionConfig(n_min=10, n_max=30)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Sets that are as small as these have a smaller reach and share fewer spots."""
    monkeypatch.setattr(module, "TAU", (0.3, 0.3))
    monkeypatch.setattr(module, "MIN_OVERLAP", 8)


def slide(n, seed=0):
    return canonicalise(np.random.default_rng(seed).random((n, 2)))[0]


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def test_minisets_are_distinct_spots_of_one_slide_of_the_asked_size():
    slides = [slide(80), slide(50, seed=1), slide(120, seed=2)]
    owner = np.repeat([0, 1, 2], [80, 50, 120])
    sampler, sizes, seen = MinisetSampler(slides, CONFIG), set(), set()
    for seed in range(40):
        sets = sampler.draw(6, rng(seed))
        assert sets.mask.all()
        sizes.add(sets.index.shape[1])
        seen |= set(sets.slide.tolist())
        for row, number in zip(sets.index.numpy(), sets.slide.tolist(), strict=True):
            assert len(np.unique(row)) == len(row)
            assert (owner[row] == number).all()
    assert min(sizes) >= 10 and max(sizes) <= 30 and len(sizes) > 10
    assert seen == {0, 1, 2}


def test_draws_follow_the_stated_probabilities_without_replacement():
    p = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05])
    places, real = _top(p.log().expand(20_000, 5), 2, rng())
    assert real.all()
    frequency = torch.bincount(places.flatten(), minlength=5) / 20_000
    expected = torch.zeros(5)
    for i, j in itertools.permutations(range(5), 2):  # i first, then j among the rest
        chance = p[i] * p[j] / (1 - p[i])
        expected[i] += chance
        expected[j] += chance
    torch.testing.assert_close(frequency, expected, atol=0.015, rtol=0)


def test_the_centre_is_always_in_and_a_small_tau_keeps_sets_local(monkeypatch):
    coords = slide(400)

    def spread(tau):
        monkeypatch.setattr(module, "TAU", (tau, tau))
        sampler = MinisetSampler([coords], CONFIG)
        index = torch.cat([sampler.draw(8, rng(seed)).index[:, :10] for seed in range(10)])
        assert (index[:, 0].unique().numel()) > 40  # key order: the centre comes first
        return np.linalg.norm(coords[index] - coords[index[:, :1]], axis=-1).mean()

    assert spread(0.05) < 0.5 * spread(5.0)


def test_a_pool_keeps_minisets_near_their_centre():
    coords = slide(900)
    local = MinisetSampler([coords], CONFIG.model_copy(update={"pool": 2.0}))
    for seed in range(10):
        pair = local.draw_pairs(8, rng(seed))
        n = pair.first.index.shape[1]
        for index in (*pair.first.index, *pair.second.index):  # all within 2n nearest of one of them
            apart = np.linalg.norm(coords[index][:, None] - coords[None], axis=-1)
            rank = (apart[:, None] < apart[:, index][..., None]).sum(-1)  # of each spot, seen from each
            assert rank.max(1).min() < round(2 * n)
    everything = MinisetSampler([slide(12)], CONFIG.model_copy(update={"pool": 3.0, "n_min": 12}))
    assert all(len(row.unique()) == 12 for row in everything.draw(4, rng()).index)


def test_without_a_pool_draws_are_those_of_earlier_versions():
    """The default's minisets: one of them written down, drawn before there were pools."""
    sets = MinisetSampler([slide(100)], CONFIG).draw(2, rng(5))
    assert sets.index[:, :6].tolist() == [[85, 4, 72, 93, 54, 41], [6, 59, 30, 58, 56, 66]]


def test_spots_at_one_place_are_a_pool_too():
    coords = np.concatenate([np.zeros((40, 2)), slide(10)])
    sets = MinisetSampler([coords], CONFIG.model_copy(update={"pool": 1.0})).draw(16, rng())
    assert sets.mask.all() and all(len(row.unique()) == len(row) for row in sets.index)


def test_small_slides_are_padded():
    sampler = MinisetSampler([slide(12), slide(200, seed=1)], CONFIG.model_copy(update={"n_min": 30}))
    sets = sampler.draw(64, rng())
    small = sets.slide == 0
    assert small.any() and (sets.mask[small].sum(1) == 12).all() and sets.mask[~small].all()
    for row, mask in zip(sets.index[small], sets.mask[small], strict=True):
        assert sorted(row[mask].tolist()) == list(range(12))


def test_pairs_share_the_asked_number_of_spots_in_the_first_places():
    sampler = MinisetSampler([slide(300), slide(200, seed=1)], CONFIG)
    for seed in range(20):
        pair = sampler.draw_pairs(5, rng(seed))
        n, k = pair.first.index.shape[1], pair.shared.shape[1]
        assert k == max(8, n // 2) and pair.shared.all()
        assert torch.equal(pair.first.index[:, :k], pair.second.index[:, :k])
        assert torch.equal(pair.first.slide, pair.second.slide)
        for sets in (pair.first, pair.second):
            assert all(len(row.unique()) == n for row in sets.index)
        if n - k > 5:
            assert not torch.equal(
                pair.first.index[:, k:].sort().values, pair.second.index[:, k:].sort().values
            )


def test_pairs_on_small_slides_share_what_there_is(monkeypatch):
    monkeypatch.setattr(module, "MIN_OVERLAP", 15)
    config = CONFIG.model_copy(update={"n_min": 30})
    pair = MinisetSampler([slide(12), slide(200, seed=1)], config).draw_pairs(64, rng())
    small = pair.first.slide == 0
    assert (pair.shared[small].sum(1) == 12).all() and pair.shared[~small].all()
    same = pair.first.index[:, :15] == pair.second.index[:, :15]
    assert same[pair.shared].all()


def test_only_kept_spots_are_drawn():
    keep = np.random.default_rng(0).random(150) < 0.5
    sampler = MinisetSampler([slide(100), slide(50, seed=1)], CONFIG, keep=keep)
    for seed in range(10):
        sets = sampler.draw(8, rng(seed))
        assert keep[sets.index[sets.mask].numpy()].all()


def test_slides_with_too_few_spots_are_passed_over_and_none_left_is_refused():
    keep = np.repeat([True, False, True], [2, 28, 50])
    sets = MinisetSampler([slide(30), slide(50, seed=1)], CONFIG, keep=keep).draw(32, rng())
    assert (sets.slide == 1).all() and (sets.index >= 30).all() and sets.mask.all()
    with pytest.raises(InputError, match="more than 2 spots"):
        MinisetSampler([slide(30)], CONFIG, keep=np.arange(30) < 2)


def test_draws_are_a_function_of_the_generator():
    sampler = MinisetSampler([slide(100)], CONFIG)
    assert torch.equal(sampler.draw(4, rng(3)).index, sampler.draw(4, rng(3)).index)
    assert not torch.equal(sampler.draw(4, rng(3)).index, sampler.draw(4, rng(7)).index)


def test_a_hundred_thousand_spots_need_no_matrix_of_spots_by_spots():
    sets = MinisetSampler([slide(100_000)], CONFIG).draw(4, rng())
    assert sets.mask.all()
