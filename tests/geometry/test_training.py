import contextlib
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from spatialgears.errors import ConfigError, InputError, RunError, TrainingError
from spatialgears.geometry import train_geometry
from spatialgears.geometry.heldout import HeldOutScore
from spatialgears.geometry.training import _Minisets, _Phases, one_cycle
from spatialgears.runtime.files import load_state
from spatialgears.runtime.seeds import torch_rng
from spatialgears.supervision.folds import Folds, models_left_out


def train(tissue, config, **options):
    return train_geometry(
        tissue.draw,
        tissue.slides,
        10,
        folds=folds_of(tissue.slides, config),
        config=config,
        **{"seed": 1, **options},
    )


def folds_of(slides, config):
    g = config.geometry
    return Folds.draw(
        [len(one) for one in slides],
        crossfit=g.crossfit,
        left_out=models_left_out(len(slides)) if g.slide_steps else 0,
        seed=1,
    )


def same(a, b):
    return all(
        torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


class Interrupted(Exception):
    pass


MODES = {
    "generator": {"refiner": "none"},
    "joint": {"overlap_shape": 1.0},
    "two phases": {"refiner_steps": 6, "crossfit": 2},
    "rehearsed": {"refiner": "none", "crossfit": 1, "slide_steps": 6},
}


@pytest.mark.parametrize("mode", MODES)
def test_an_interrupted_run_goes_on_bit_for_bit(tissue, tiny, tmp_path, mode):
    config = tiny(eval_every=3, **MODES[mode])
    whole = train(tissue, config)
    for stop in (5, 11):  # in the first phase; in a later one, where there is one
        left = itertools.count(stop - 1, -1)

        def interrupt(*_, left=left):
            if next(left) == 0:
                raise Interrupted

        with (
            pytest.raises(Interrupted)
            if stop == 5 or mode in ("two phases", "rehearsed")
            else contextlib.nullcontext()
        ):
            train(tissue, config, checkpoint=tmp_path, progress=interrupt)
    resumed = train(tissue, config, checkpoint=tmp_path)
    assert same(whole.model, resumed.model)
    assert whole.history == resumed.history and whole.sigma_data == resumed.sigma_data


def test_the_seed_decides_everything_and_the_callers_generator_is_left_alone(tissue, tiny):
    config = tiny(refiner="none", steps=3)
    before = torch.random.get_rng_state()
    first = train(tissue, config)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(7)
    assert same(first.model, train(tissue, config).model)
    assert not same(first.model, train(tissue, config, seed=2).model)


def test_training_learns_and_the_best_weights_are_returned(tissue, tiny):
    config = tiny(refiner="none", crossfit=1, steps=120, eval_every=20, batch_size=4, lr=3e-3, ema=0.9)
    fit = train(tissue, config)
    history, heldout = fit.history, fit.folds.fold == 0
    assert history["fold-0/gen_gram"][-1] < 0.5 * history["fold-0/gen_gram"][0]
    score = HeldOutScore(tissue.draw, tissue.slides, heldout, seed=1)(fit.model)
    assert score["heldout"] == pytest.approx(max(history["fold-0/heldout"])) and score["heldout"] > 0.8
    assert set(score) == {"heldout", "heldout_0", "heldout_1"}
    assert history["fold-0/heldout_step"] == [20, 40, 60, 80, 100, 120]
    assert len(history["fold-0/step"]) == len(history["fold-0/loss"]) == 120
    assert not fit.model.training


def test_held_out_spots_are_never_trained_on(tissue, tiny):
    fit = train(tissue, tiny(steps=4, crossfit=1, refiner="none", eval_every=4, overlap_shape=1.0))
    heldout = np.flatnonzero(fit.folds.fold == 0)
    assert len(heldout) == 11
    batches = [index for index in tissue.drawn if len(index) > 1]  # scoring passes one set at a time
    assert batches and not np.isin(torch.cat([b.flatten() for b in batches]).numpy(), heldout).any()


def test_the_refiner_is_fitted_on_spots_its_fold_model_has_not_seen(tissue, tiny):
    steps = {"geometry fold": [], "geometry refiner": []}

    def progress(stage, done, total, _):
        steps[stage].append(set(tissue.drawn[-1].flatten().tolist()))

    train(tissue, tiny(steps=20, refiner_steps=7, crossfit=2, eval_every=100), progress=progress)
    drawn = steps["geometry fold"]
    assert len(drawn) == 40 and len(steps["geometry refiner"]) == 7
    folds = [
        set.union(*part[:19]) for part in (drawn[:20], drawn[20:])
    ]  # after the last step, missed spots are scored
    for number, spots in enumerate(steps["geometry refiner"]):
        assert not spots & folds[number % 2]


def test_a_loss_that_is_not_finite_stops_training_and_is_named(tissue, tiny, tmp_path):
    config = tiny(refiner="none", steps=8, eval_every=2)
    draws = 0

    def draw(index, generator):
        nonlocal draws
        draws += 1
        return tissue.draw(index, generator) * (torch.nan if draws == 6 else 1)

    with pytest.raises(TrainingError, match=r"gen_align, gen_gram, gen_nca .* step 5"):
        train_geometry(
            draw,
            tissue.slides,
            10,
            folds=folds_of(tissue.slides, config),
            config=config,
            seed=0,
            checkpoint=tmp_path,
        )
    _, meta = load_state(tmp_path / "generator.safetensors")
    assert meta["done"] == 4


def test_a_checkpoint_of_another_configuration_is_refused(tissue, tiny, tmp_path):
    train(tissue, tiny(refiner="none", steps=2), checkpoint=tmp_path)
    with pytest.raises(RunError, match=r"generator\.safetensors belongs to another"):
        train(tissue, tiny(refiner="none", steps=4), checkpoint=tmp_path)
    with pytest.raises(RunError, match=r"belongs to another configuration, seed or data"):
        train(tissue, tiny(refiner="none", steps=2), checkpoint=tmp_path, data="other")


def test_progress_reports_every_step_with_every_loss(tissue, tiny):
    calls = []
    train(tissue, tiny(refiner="none", steps=3), progress=lambda *a: calls.append(a))
    assert [call[:3] for call in calls] == [("geometry generator", i, 3) for i in (1, 2, 3)]
    for _, _, _, values in calls:
        parts = [values[name] for name in ("gen_align", "gen_gram", "gen_nca")]
        assert len(values) == 4 and values["loss"] == pytest.approx(sum(parts))


@pytest.fixture
def _plain_kernels():
    """Without oneDNN: some virtual machines advertise bfloat16 instructions that they cannot execute."""
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(True)


@pytest.mark.usefixtures("_plain_kernels")
@pytest.mark.parametrize(
    "changes", [{"overlap_kl": 1.0, "local_scale": 1.0}, {"crossfit": 2, "refiner_steps": 2}]
)
def test_reduced_precision_trains_and_leaves_single_precision_weights(tissue, tiny, monkeypatch, changes):
    monkeypatch.setattr(
        "spatialgears.runtime.training.bf16_works", lambda: True
    )  # with plain kernels it does everywhere
    config = tiny(steps=2, **changes).with_values({"precision": "bf16-mixed"})
    fit = train(tissue, config)
    assert all(p.dtype == torch.float32 and torch.isfinite(p).all() for p in fit.model.parameters())


def test_members_are_trained_apart_each_without_other_spots(tissue, tiny):
    fit = train(tissue, tiny(refiner="none", crossfit=2, steps=3))
    first, second = (member.context.project[1].weight for member in fit.members)
    assert not torch.allclose(first, second) and fit.model is fit.members[0]
    assert fit.folds.models == fit.members and {0, 1} < set(fit.folds.fold.tolist())


def test_cross_fitting_is_not_joint_training(tiny):
    with pytest.raises(ConfigError, match="crossfit"):
        tiny(crossfit=2, refiner_steps=0)


@pytest.mark.parametrize(("views", "expected"), [(0, 20), (2, 7), (1000, 20)])
def test_few_spots_are_not_shown_more_often_than_enough(tissue, tiny, views, expected):
    """A step shows two sets of about 16 spots, of 110."""
    config = tiny(refiner="none", crossfit=2, slide_steps=0, steps=20, views=views)
    fit = train(tissue, config)
    assert {len(fit.history[f"fold-{i}/loss"]) for i in range(2)} == {expected}


@pytest.mark.parametrize(
    ("views", "last", "steps"), [(0, 0.5, 8), (10_000, 0.5, 12), (10_000, 0.7, 20), (0, 0.7, 8)]
)
def test_missed_slides_tell_how_long_to_train(tissue, tiny, monkeypatch, views, last, steps):
    """The first look at which a missed slide is placed about as well as ever, times two as two slides are now seen.

    While spots have not been seen often, the last such look; if that is the last of all, as long as may be.
    """
    scores = iter(
        [0.2, 0.698, 0.7, last] * 2 + [0.1] * 10
    )  # two slides, then a member on the spots it misses
    monkeypatch.setattr(HeldOutScore, "__call__", lambda self, model: {"heldout": next(scores)})
    monkeypatch.setattr("spatialgears.geometry.training.SLIDE_VIEWS", views)
    config = tiny(refiner="none", crossfit=1, slide_steps=8, eval_every=2, steps=20)
    fit = train(tissue, config)
    assert len(fit.slide_folds.models) == 2
    assert max(fit.history["fold-0/heldout_step"]) == max(fit.history["fold-0/step"]) == steps


def test_without_several_slides_nothing_is_rehearsed(tissue, tiny):
    config = tiny(refiner="none", crossfit=1, slide_steps=6, eval_every=2, steps=4)
    one = train_geometry(
        tissue.draw, tissue.slides[:1], 10, folds=folds_of(tissue.slides[:1], config), config=config, seed=1
    )
    assert one.slide_folds is None and max(one.history["fold-0/step"]) == 4


@pytest.mark.parametrize(("slides", "sets"), [(1, 3), (2, 5)])
def test_each_slide_asks_for_its_sets_up_to_a_batch(tissue, tiny, slides, sets):
    config = tiny(refiner="none", batch_size=5, slide_batch=3)
    fabric = SimpleNamespace(global_rank=0, world_size=1, to_device=lambda batch: batch)
    loop = _Phases(tissue.draw, tissue.slides[:slides], config, 0, fabric, None, "", 1, lambda *_: None)
    sampler = loop.sampler(np.ones(sum(map(len, tissue.slides[:slides])), dtype=bool))
    assert len(loop.batch(_Minisets([sampler]), 0, torch_rng(3), torch_rng(3)).coords) == sets


@pytest.mark.parametrize("pairs", [False, True])
def test_the_shares_of_two_processes_make_up_the_sets_of_one(tissue, tiny, pairs):
    config = tiny(refiner="none", batch_size=4, overlap_shape=1.0 if pairs else 0.0)

    def share(rank: int, size: int):
        fabric = SimpleNamespace(global_rank=rank, world_size=size, to_device=lambda batch: batch)
        loop = _Phases(tissue.draw, tissue.slides, config, 0, fabric, None, "", 1, lambda *_: None)
        sampler = loop.sampler(np.ones(sum(map(len, tissue.slides)), dtype=bool))
        return loop.batch(_Minisets([sampler]), 0, torch_rng(3), torch_rng(3, rank)).coords

    whole, first, second = share(0, 1), share(0, 2), share(1, 2)
    for one, two, both in zip(
        first.chunk(1 + pairs), second.chunk(1 + pairs), whole.chunk(1 + pairs), strict=True
    ):
        torch.testing.assert_close(torch.stack([one, two], 1).flatten(0, 1), both)


def test_folds_too_small_for_the_refiner_are_refused_before_any_training(tissue, tiny):
    config, steps = tiny(crossfit=20, refiner_steps=2), []
    few = [slide[:19] for slide in tissue.slides]
    with pytest.raises(InputError, match="use fewer folds"):
        train_geometry(
            tissue.draw,
            few,
            10,
            folds=folds_of(few, config),
            config=config,
            seed=1,
            progress=lambda *told: steps.append(told),
        )
    assert not steps


def test_the_learning_rate_warms_up_and_anneals_to_zero():
    rates = [one_cycle(step / 100) for step in range(101)]
    assert (
        rates[0] == pytest.approx(1 / 25) and max(rates) == rates[10] == 1 and rates[100] == pytest.approx(0)
    )
    assert rates[:11] == sorted(rates[:11]) and rates[10:] == sorted(rates[10:], reverse=True)
