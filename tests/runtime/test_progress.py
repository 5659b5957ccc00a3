from __future__ import annotations

import io
import sys
import time
from types import SimpleNamespace

import pytest

from spatialgears.runtime.progress import Plan, ProgressView, shown, silent

STAGES = {"encoder": 10.0, "geometry fold": 60.0, "geometry refiner": 30.0}


def test_stages_count_by_their_expected_time():
    plan = Plan(STAGES)
    plan.reach("encoder", 0.5)
    assert plan.share == pytest.approx(0.05)
    plan.reach("geometry fold", 0.1)
    assert plan.share == pytest.approx(0.16)  # the encoder has ended, perhaps early
    plan.reach("writing", 1.0)
    assert plan.share == pytest.approx(0.16)
    plan.reach("geometry refiner", 1.0)
    assert plan.share == pytest.approx(1.0) and plan.left(50, 0.0) == 0


def test_the_time_left_is_foreseen_at_first_and_then_known_by_the_pace():
    plan = Plan(STAGES)
    plan.reach("encoder", 0.1)
    assert plan.left(7.0, 0.0) == pytest.approx(99)
    plan.reach("geometry fold", 0.25)  # a quarter of all
    assert plan.left(50.0, 0.0) == pytest.approx(150)
    assert plan.left(5.0, 0.2) == pytest.approx(75)  # a run that was resumed


def test_lines_say_how_much_of_all_is_done(monkeypatch):
    err, clock = io.StringIO(), iter([0.0, 20.0, 40.0])
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with ProgressView(every=10) as view, shown(view, STAGES) as progress:
        progress("encoder", 4, 4, {})
        progress("geometry fold", 50, 100, {"loss": 0.5})
        progress("geometry fold", 100, 100, {"loss": 0.25})
    assert err.getvalue().splitlines() == [
        "10% of all, 2 min left; encoder: 4/4, 0 s",
        "70% of all, 20 s left; geometry fold: 100/100, 20 s, loss 0.25",
    ]


def test_a_bar_covers_all_stages_on_a_terminal(monkeypatch):
    err = io.StringIO()
    monkeypatch.setattr(err, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("TERM", "xterm")
    with ProgressView() as view, shown(view, STAGES) as progress:
        progress("encoder", 1, 2, {})
    assert "all of it" in err.getvalue() and "encoder" in err.getvalue()
    assert "100/100" in err.getvalue()  # it has ended


def test_a_notebook_has_one_line_that_changes(monkeypatch):
    lines = []
    handle = SimpleNamespace(update=lines.append)
    screen = SimpleNamespace(Pretty=str, display=lambda *_, **__: handle)
    shell = SimpleNamespace(kernel=None)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell, display=screen))
    monkeypatch.setitem(sys.modules, "IPython.display", screen)
    with shown(None, STAGES) as progress:
        progress("encoder", 1, 2, {})
        progress("encoder", 2, 2, {})
    assert [line.split(";")[0][:10] for line in lines] == ["5% of all,", "10% of all"]


def test_nobody_watching_sees_nothing(monkeypatch, capsys):
    with shown(None) as progress:
        assert progress is silent
    with shown(False) as progress:
        assert progress is silent
