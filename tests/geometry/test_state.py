import pytest
import torch

from spatialgears.geometry.state import TrainingState, follow, one_cycle


def test_the_learning_rate_warms_up_and_anneals_to_zero():
    rates = [one_cycle(step / 100, 0.1) for step in range(101)]
    assert (
        rates[0] == pytest.approx(1 / 25) and max(rates) == rates[10] == 1 and rates[100] == pytest.approx(0)
    )
    assert rates[:11] == sorted(rates[:11]) and rates[10:] == sorted(rates[10:], reverse=True)
    assert one_cycle(0.0, 0.0) == 1


def test_the_average_follows_the_weights_and_copies_buffers():
    average, model = torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)
    model.weight.data.fill_(3.0)
    model.running_mean.fill_(5.0)
    follow(average, model, 0.75)
    assert average.weight.tolist() == [1.5, 1.5] and average.running_mean.tolist() == [5, 5]
    follow(average, model, 0.0)
    assert torch.equal(average.weight, model.weight)


def test_history_holds_means_over_windows():
    state = TrainingState("generator", None, None, None, "")
    for step in range(7):
        state.record(step, {"loss": float(step)}, window=3)
    assert state.history == {"step": [2.0, 5.0], "loss": [1.0, 4.0]}


def test_the_best_weights_are_kept():
    average = torch.nn.Linear(1, 1)
    state = TrainingState("generator", None, None, average, "")
    for step, score in enumerate([0.2, 0.6, 0.4]):
        average.weight.data.fill_(step)
        state.judge(step, {"heldout": score})
    assert float(state.best["weight"]) == 1 and state.history["heldout"] == [0.2, 0.6, 0.4]
