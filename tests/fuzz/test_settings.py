"""Configuration files and command lines that make no sense are refused with a reason; nothing unexpected."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spatialgears.cli.app import main
from spatialgears.config import Config
from spatialgears.errors import ConfigError, InputError

SLOW = int(os.environ.get("GEARS_FUZZ_CASES", "2500"))
CALM = {"deadline": None, "database": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}

KEYS = [*Config.model_fields, "preset", "n_genes", "steps", "", "a.b", "🦠"]
KEYS += [f"{stage}.{key}" for stage in ("geometry", "assembly", "expression", "supervision")
         for key in ("steps", "width", "heads", "hidden", "tau", "mode", "n_min", "lr", "patch_context")]  # fmt: skip
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["quick", "cpu", "patches", 2**70, -1, 0, 1, 1e308, "1e999", "NaN", "both"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)
TEXTS = st.one_of(
    st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4).map(json.dumps),
    VALUES.map(json.dumps),
    st.text(max_size=40),
    st.sampled_from(["", "{", "[" * 100_000, '{"seed": ' + "9" * 5000 + "}", "\ufeff{}", "{'a': 1}", "null"]),
).map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=30)


def try_config(text: bytes, path, told) -> str:
    path.write_bytes(text)
    try:
        config = Config.from_file(path)
    except ConfigError as error:
        told(error)
        return "refused"
    assert Config.from_dict(json.loads(config.to_json())) == config
    return "accepted"


def try_values(assignments: list[str], told) -> str:
    try:
        Config().with_values(assignments)
    except ConfigError as error:
        told(error)
        return "refused"
    return "accepted"


ASSIGNMENTS = st.lists(
    st.tuples(st.sampled_from(KEYS), VALUES.map(json.dumps) | st.text(max_size=9)).map("=".join)
    | st.text(max_size=20),
    max_size=3,
)


def search(cases: int, path, told) -> dict[str, int]:
    ends: dict[str, int] = {}

    @settings(max_examples=cases, **CALM)
    @given(text=TEXTS, assignments=ASSIGNMENTS)
    def examine(text, assignments):
        for end in (try_config(text, path, told), try_values(assignments, told)):
            ends[end] = ends.get(end, 0) + 1

    examine()
    return ends


def test_configurations_are_used_or_refused(tmp_path, told, record_property):
    ends = search(100, tmp_path / "c.json", told)
    record_property("configurations tried", sum(ends.values()))
    assert min(ends.values()) > 5


@pytest.mark.slow
def test_configurations_are_used_or_refused_many_times(tmp_path, told, record_property):
    ends = search(SLOW, tmp_path / "c.json", told)
    record_property("configurations tried", sum(ends.values()))


# command lines

OPTIONS = [
    "--st",
    "--sc",
    "-o",
    "--output",
    "--model",
    "-m",
    "--layer",
    "--sc-layer",
    "--st-genes",
    "--sc-genes",
]
OPTIONS += [
    "--coordinates",
    "--spatial-key",
    "--preset",
    "--config",
    "--set",
    "--key",
    "--truth-key",
    "--pred",
]
OPTIONS += ["--truth", "--k", "--seed", "--cells", "--genes", "--sections", "--out"]
FLAGS = ["--transpose", "--normalised", "--json", "--debug-not", "--profile", "-v", "--help", "--", "-"]
ODD = ["", " ", "nothing.h5ad", "/dev/null", "/", ".", "~nobody-here/x", "x" * 5000, "\udcff", "🦠", "-1", "1e9", "NaN",
       "a,b", "a,b,c", "geometry.steps=1", "seed=x", "=", "raw", "X", "quick", "../..", "%s", "<b>", "/proc/self/mem",
       "999999999999999999999"]  # fmt: skip
COMMANDS = ["run", "fit", "reconstruct", "report", "check", "evaluate", "simulate", "demo", "nonsense"]


def command_lines(files: list[str]):
    value = st.sampled_from([*ODD, *files, *files]) | st.text(max_size=6).filter(
        lambda text: "\0" not in text
    )
    option = st.tuples(st.sampled_from(OPTIONS), value).map(list)
    parts = st.lists(
        option | st.sampled_from(FLAGS).map(lambda flag: [flag]) | value.map(lambda v: [v]), max_size=5
    )
    inputs = st.lists(
        st.tuples(st.sampled_from(["--st", "--sc", "--pred", "--truth", "-o", "--model"]), value).map(list),
        max_size=4,
    )
    return st.tuples(st.sampled_from(COMMANDS), inputs, parts).map(
        lambda one: [one[0], *(text for group in (*one[1], *one[2]) for text in group)]
    )


@pytest.fixture
def gears(monkeypatch, capsys, tmp_path, small_files):
    """Run a command line as far as its inputs are read; its exit code."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)

    def stop(*_, **__):
        raise InputError("The work would begin here.", "Nothing.")

    monkeypatch.setattr("spatialgears.run.run", stop)
    monkeypatch.setattr("spatialgears.model.GEARS.fit", stop)
    monkeypatch.setattr("spatialgears.datasets.simulate_tissue", stop)

    def call(arguments: list[str]) -> int:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        told = capsys.readouterr()
        assert "Error: unexpected" not in told.err and "Traceback" not in told.err, (arguments, told.err)
        assert left.value.code in (0, 1, 2), (arguments, told.err)
        assert left.value.code != 1 or "Error: " in told.err
        return int(left.value.code)

    return call


def search_commands(cases: int, gears, small_files) -> dict[int, int]:
    ends: dict[int, int] = {}
    files = [str(small_files / name) for name in ("st_1.h5ad", "sc.h5ad")]

    @settings(max_examples=cases, **CALM)
    @given(arguments=command_lines(files))
    def examine(arguments):
        code = gears(arguments)
        ends[code] = ends.get(code, 0) + 1

    examine()
    return ends


def test_command_lines_end_with_a_reason(gears, small_files, record_property):
    ends = search_commands(40, gears, small_files)
    record_property("command lines tried", sum(ends.values()))
    assert ends[2] > 10


@pytest.mark.slow
def test_command_lines_end_with_a_reason_many_times(gears, small_files, record_property):
    ends = search_commands(SLOW // 4, gears, small_files)
    record_property("command lines tried", sum(ends.values()))
