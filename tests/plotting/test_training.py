from __future__ import annotations

import numpy as np
import pytest

import spatialgears as sg
from spatialgears.errors import GearsError, InputError
from spatialgears.plotting.training import MOST_POINTS, phases


def test_curves_stand_at_their_steps():
    history = {
        "step": [10, 20, 30],
        "loss": [3.0, 2.0, 1.0],
        "lr": [1e-3, 1e-3, 1e-4],
        "heldout_step": [15, 30],
        "heldout": [0.5, 0.6],
    }
    ax = sg.pl.training_curves(history)
    loss, heldout = ax.get_lines()
    assert loss.get_xdata().tolist() == [10, 20, 30] and loss.get_ydata().tolist() == [3, 2, 1]
    assert heldout.get_xdata().tolist() == [15, 30]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["loss", "heldout"]
    assert ax.get_yscale() == "log" and ax.get_xlabel() == "step"


def test_a_fitted_model_has_a_history(small_model):
    drawn, expected = (sg.pl.training_curves(one).get_lines() for one in (small_model, small_model.history_))
    assert len(drawn) == len(expected) > 1
    with pytest.raises(GearsError, match="has not been fitted"):
        sg.pl.training_curves(sg.GEARS("quick"))


def test_phases_follow_one_another_in_the_same_colour():
    history = {"a/step": [1, 2, 4], "a/loss": [3, 2, 1], "b/step": [1, 5], "b/loss": [2.0, -1.0]}
    ax = sg.pl.training_curves(history)
    first, second = (line for line in ax.get_lines() if len(line.get_xdata()) and line.get_linewidth() > 1)
    assert second.get_xdata().tolist() == [5, 9]
    assert first.get_color() == second.get_color()
    assert ax.get_yscale() == "linear"


def test_long_curves_are_averaged_over_blocks():
    (curve,) = phases({"loss": np.arange(10_000.0)})[""]
    assert len(curve.values) <= MOST_POINTS
    np.testing.assert_allclose(curve.steps, curve.values + 1)
    assert curve.values.mean() == pytest.approx(4999.5)


def test_curves_without_steps_share_the_range():
    one, two = phases({"loss": [1, 1, 1, 1], "score": [5, 6]})[""]
    assert one.steps.tolist() == [1, 2, 3, 4] and two.steps.tolist() == [2, 4]


def test_chosen_and_unknown_curves():
    history = {"epoch": [1, 2], "loss": [1, 2], "lr": [1, 2], "empty": []}
    for keys in (["lr"], "lr"):
        ax = sg.pl.training_curves(history, keys=keys)
        assert len(ax.get_lines()) == 1 and ax.get_xlabel() == "epoch"
    with pytest.raises(InputError, match="no nca"):
        sg.pl.training_curves(history, keys=["nca"])
    with pytest.raises(InputError, match="no curves"):
        sg.pl.training_curves({"loss": []})


def test_thirty_curves_and_a_single_point_draw():
    ax = sg.pl.training_curves({f"$loss {i}": [1.0] for i in range(30)})
    ax.figure.canvas.draw()
    assert len(ax.get_legend().get_texts()) == 30
