from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from spatialgears.bench import limits


def limited(tmp_path, code: str, *, seconds: float = 20.0, gigabytes: float = 1.0) -> list[str]:
    spec = {
        "command": [sys.executable, "-I", "-S", "-c", code],
        "seconds": seconds,
        "gigabytes": gigabytes,
        "log": str(tmp_path / "log"),
        "usage": str(tmp_path / "usage"),
    }
    return [sys.executable, "-I", "-S", limits.__file__, json.dumps(spec)]


def use(tmp_path, code: str, **limits_of_it: float) -> dict:
    subprocess.run(limited(tmp_path, code, **limits_of_it), check=True)
    return json.loads((tmp_path / "usage").read_text()) | {"log": (tmp_path / "log").read_text()}


def soon(happened: Callable[[], bool]) -> bool:
    end = time.monotonic() + 20
    while not happened() and time.monotonic() < end:
        time.sleep(0.05)
    return happened()


def test_what_was_used_is_told(tmp_path):
    used = use(tmp_path, "import time; x = b'1' * 200_000_000; time.sleep(0.3); print('done')")
    assert used["code"] == 0 and used["log"] == "done\n" and not used["timeout"]
    assert 0.18 < used["peak_gb"] < 0.35
    assert used["seconds"] > 0.3


def test_peak_memory_is_the_child_s_not_that_of_a_large_parent(tmp_path):
    ballast = b"1" * 300_000_000
    assert use(tmp_path, "pass")["peak_gb"] < 0.1 < len(ballast) / 2**30


def test_time_is_limited_for_the_command_and_all_it_starts(tmp_path):
    code = (
        "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', 'import time; time.sleep(30)'])"
    )
    used = use(tmp_path, code, seconds=1.0)
    assert used["timeout"] and used["code"] < 0 and used["seconds"] < 10


def test_a_command_does_not_outlive_the_benchmark_that_started_it(tmp_path):
    command = limited(tmp_path, "import time; print('up', flush=True); time.sleep(60)", seconds=60.0)
    wait = "import subprocess, sys; subprocess.run(sys.argv[1:])"
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", wait, *command]) as caller:
        assert soon(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text() == "up\n")
        caller.kill()
    assert soon(lambda: (tmp_path / "usage").exists() and (tmp_path / "usage").read_text().endswith("}"))
    used = json.loads((tmp_path / "usage").read_text())
    assert used["code"] == -9 and not used["timeout"] and used["seconds"] < 30


def test_memory_is_limited(tmp_path):
    used = use(tmp_path, "x = b'1' * 900_000_000", gigabytes=0.5)
    assert used["code"] == 1 and "MemoryError" in used["log"]


@pytest.mark.parametrize("code", [0, 3])
def test_exit_codes_are_kept(tmp_path, code):
    assert use(tmp_path, f"raise SystemExit({code})")["code"] == code
