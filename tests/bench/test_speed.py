"""Two versions of the code run in turn; what is compared is what each of them did."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest

from spatialgears.bench import protocols, speed
from spatialgears.bench.request import Request
from spatialgears.bench.store import Store
from spatialgears.errors import InputError

#: A package that stands in for spatialgears: its clock says how long fitting and placing take.
PACKAGE = """
import time

now = 0.0
time.perf_counter = lambda: now

class Config:
    @classmethod
    def preset(cls, name):
        assert name == "quick"
        return cls()

    def with_values(self, values):
        assert values[0] == "threads=1"
        if "expression.pull=0" in values:
            raise ValueError("there is no pull")
        return self

class GEARS:
    def __init__(self, config):
        pass

    def fit(self, slides, cells):
        global now
        now += {seconds}

    def reconstruct(self, cells):
        global now
        now += 2.0
        self.coords = cells.X.toarray()[:, :2]
        return self
"""


def source(folder, seconds: float):
    package = folder / "src" / "spatialgears"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(PACKAGE.replace("{seconds}", str(seconds)))
    return folder


@pytest.fixture
def request_of(plane, tmp_path, monkeypatch):
    """A request to compare a slow version with a fast one on a small task."""
    (task,) = protocols.unpaired([plane(30, seed=1)], plane(60), name="small")
    monkeypatch.setattr(speed, "DEMO", {"demo": ("quick", lambda root, seed: iter([task]))})
    slow, fast = source(tmp_path / "slow", 28.0), source(tmp_path / "fast", 8.0)
    monkeypatch.setattr(speed, "present", lambda: speed.Version(speed.NOW, fast / "src"))
    return lambda **more: Request(out=tmp_path / "out", against=str(slow), **more)


def test_versions_run_in_turn_and_are_compared(request_of, tmp_path):
    told = []
    outcome = speed.speed(request_of(pairs=2), told.append)
    assert [line.split(":")[0] for line in told] == [
        "small · before · seed 0",
        "small · now · seed 0",
        "small · now · seed 1",
        "small · before · seed 1",
    ]
    (line,) = outcome.found["table"]
    assert (line["fit s, before"], line["fit s, now"], line["fit, times as fast"]) == (28, 8, 3.5)
    assert (line["place, times as fast"], line["both, times as fast"], line["pairs"]) == (1, 3, 2)
    assert line["Spearman, before"] == line["Spearman, now"] == "1.000 ± 0.000"
    assert 0.05 < line["peak GB, now"] < 2 and "| small | quick | 2 |" in outcome.text
    assert len(Store(tmp_path / "out").rows()) == 4
    again = speed.speed(request_of(pairs=2), lambda line: pytest.fail("ran again"))
    assert again.found["table"] == outcome.found["table"]


def test_a_version_that_fails_is_a_note(request_of):
    (line,) = speed.speed(request_of(values=["expression.pull=0"]), print).found["table"]
    assert line["fit s, now"] is None and "now failed: ValueError: there is no pull" in line["note"]


def test_two_runs_side_by_side_against_one_after_the_other(request_of, monkeypatch):
    clock = iter([0.0, 30.0, 50.0])
    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    (now,) = speed.throughput(replace(request_of(), against=None), print).found
    assert (now["version"], now["note"]) == ("now", "")
    assert (now["one after the other, s"], now["side by side, s"]) == (30, 20)
    assert now["throughput, side by side / one after the other"] == 1.5


def test_a_run_stands_beside_what_was_expected_of_it(request_of, monkeypatch):
    monkeypatch.setattr(speed, "MANY", {})
    expected = SimpleNamespace(cost=SimpleNamespace(seconds=30.0, peak_bytes=2e9))
    monkeypatch.setattr(speed, "check_inputs", lambda slides, cells, config: expected)
    (line,) = speed.estimates(replace(request_of(), against=None), print).found
    assert line["seconds"] > 0 and line["note"] == ""
    assert line["expected / seconds"] == 30 / line["seconds"]
    assert line["expected GB"] == 2 and 0.05 < line["peak GB"] < 2


def test_other_sets_need_data(request_of):
    with pytest.raises(InputError, match="There are: demo"):
        speed.speed(request_of(task=["Atlas"]), print)


def test_a_git_ref_is_extracted(tmp_path, monkeypatch):
    source(tmp_path / "repository", 0.1)
    git = ["git", "-C", str(tmp_path / "repository"), "-c", "user.name=n", "-c", "user.email=e@x"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"], ["tag", "v1"]):
        subprocess.run([*git, *command], check=True)
    package = tmp_path / "repository" / "src" / "spatialgears" / "__init__.py"
    package.write_text("")
    monkeypatch.setattr(speed, "present", lambda: speed.Version(speed.NOW, package.parents[1]))
    (tmp_path / "extracted").mkdir()
    found = speed.earlier("v1", tmp_path / "extracted")
    assert "class GEARS" in (found.source / "spatialgears" / "__init__.py").read_text()
    assert found.digest() != speed.present().digest()
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no folder src/spatialgears"):
        speed.earlier(str(tmp_path / "empty"), tmp_path)
