from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from spatialgears.config import Config
from spatialgears.errors import RunError, TrainingError
from spatialgears.runtime import seeds
from spatialgears.runtime.files import load_state, save_state
from spatialgears.runtime.training import Phase, State, follow, make_fabric, train


class Objective(nn.Module):
    """A sum of inputs, learnt with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))

    def forward(self, x):
        wrong = self.model(x) - x.sum(1, keepdim=True)
        return {"square": wrong.square().mean(), "size": 0.1 * wrong.abs().mean()}


def phase_of(**changes) -> Phase:
    with seeds.owned_rng():
        torch.manual_seed(0)
        objective = Objective()

    def inputs(step):
        return (torch.randn(16, 4, generator=seeds.torch_rng(0, "batch", step)),)

    options = {
        "name": "a",
        "title": "phase a",
        "objective": objective,
        "optimizer": torch.optim.AdamW(objective.parameters(), 1e-2),
        "steps": 10,
        "inputs": inputs,
        "dropout_seed": lambda step, rank: seeds.child_seed(0, "dropout", step, rank),
        "model": objective.model,
        "evaluate": lambda model: {"score": float(model[0].weight.detach().sum()), "other": 1.0},
        "every": 3,
        "identity": "this",
    }
    return Phase(**options | changes)


def run(phase: Phase, **options):
    with seeds.owned_rng():
        return train(phase, make_fabric(Config()), Config(), **options)


def weights(phase: Phase) -> list[torch.Tensor]:
    return [value.clone() for value in phase.model.state_dict().values()]


AVERAGED = {"ema": 0.9, "clip": 1.0, "rate": lambda share: 1e-2 * (1 - share)}


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("options", [{}, AVERAGED], ids=["plain", "averaged"])
def test_an_interrupted_phase_resumes_bit_for_bit(tmp_path, options):
    whole, again = phase_of(**options), phase_of(**options)
    history = run(whole)

    def interrupt(title, done, total, values):
        if done == 8:
            raise Interrupted

    with pytest.raises(Interrupted):
        run(phase_of(**options), checkpoint=tmp_path, progress=interrupt)
    done = []
    assert run(again, checkpoint=tmp_path, progress=lambda _, step, *__: done.append(step)) == history
    assert done == [6, 7, 8, 9, 10]  # first what the checkpoint has
    assert all(torch.equal(one, two) for one, two in zip(weights(whole), weights(again), strict=True))


def test_the_moments_of_the_optimiser_are_part_of_a_checkpoint(tmp_path):
    run(phase_of(steps=6), checkpoint=tmp_path)
    tensors, meta = load_state(tmp_path / "a.safetensors")
    kept = {key: value for key, value in tensors.items() if not key.startswith("optimizer.")}
    save_state(tmp_path / "a.safetensors", kept, meta)
    whole, forgot = phase_of(), phase_of()
    run(whole)
    run(forgot, checkpoint=tmp_path)
    assert not torch.equal(weights(whole)[0], weights(forgot)[0])


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    run(phase_of(), checkpoint=tmp_path)
    with pytest.raises(RunError, match=r"a\.safetensors belongs to another configuration, seed or data"):
        run(phase_of(identity="that"), checkpoint=tmp_path)


def test_history_holds_every_loss_their_sum_and_the_scores():
    history = run(phase_of(**AVERAGED))
    assert set(history) == {"step", "lr", "loss", "square", "size", "score_step", "score", "other"}
    assert history["step"] == list(range(1, 11)) and history["score_step"] == [3, 6, 9, 10]
    assert history["lr"] == pytest.approx([1e-2 * (1 - step / 10) for step in range(10)])
    both = zip(history["square"], history["size"], strict=True)
    assert history["loss"] == pytest.approx([square + size for square, size in both])


def test_history_holds_means_over_windows():
    state = State(phase_of(), None)
    for step in range(7):
        state.record(step, {"loss": float(step)}, window=3)
    assert state.history == {"step": [2.0, 5.0], "loss": [1.0, 4.0]}


@pytest.mark.parametrize("scores", [[0.1, 0.6, 0.4, 0.2], [0.1, 0.2, 0.3, 0.4]])
def test_an_averaged_model_ends_with_the_weights_that_scored_best(scores):
    seen, left = [], iter(scores)

    def evaluate(model):
        seen.append(model[0].weight.clone())
        return {"score": next(left)}

    phase = phase_of(evaluate=evaluate, **AVERAGED)
    run(phase)
    assert torch.equal(phase.model[0].weight, seen[scores.index(max(scores))])


def test_a_phase_may_end_early():
    phase = phase_of(ended=lambda step, history: len(history.get("score", [])) == 2)
    assert run(phase)["step"][-1] == 6


def test_a_loss_that_is_not_finite_stops_training_and_keeps_the_last_checkpoint(tmp_path):
    draws = itertools.count()

    def inputs(step):
        return (torch.full((2, 4), torch.nan if next(draws) == 7 else 1.0),)

    with pytest.raises(TrainingError, match=r"phase a: the loss term square, size is not finite at step 7"):
        run(phase_of(inputs=inputs), checkpoint=tmp_path)
    assert load_state(tmp_path / "a.safetensors")[1]["done"] == 6


def test_the_average_follows_the_weights_and_copies_buffers():
    average, model = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    model.weight.data.fill_(3.0)
    model.running_mean.fill_(5.0)
    follow(average, model, 0.75)
    assert average.weight.tolist() == [1.5, 1.5] and average.running_mean.tolist() == [5, 5]
    follow(average, model, 0.0)
    assert torch.equal(average.weight, model.weight)
