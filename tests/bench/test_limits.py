from __future__ import annotations

import json
import subprocess
import sys

import pytest

from spatialgears.bench import limits


def use(tmp_path, code: str, *, seconds: float = 20.0, gigabytes: float = 1.0) -> dict:
    spec = {
        "command": [sys.executable, "-I", "-S", "-c", code],
        "seconds": seconds,
        "gigabytes": gigabytes,
        "log": str(tmp_path / "log"),
        "usage": str(tmp_path / "usage"),
    }
    subprocess.run([sys.executable, "-I", "-S", limits.__file__, json.dumps(spec)], check=True)
    return json.loads((tmp_path / "usage").read_text()) | {"log": (tmp_path / "log").read_text()}


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


def test_memory_is_limited(tmp_path):
    used = use(tmp_path, "x = b'1' * 900_000_000", gigabytes=0.5)
    assert used["code"] == 1 and "MemoryError" in used["log"]


@pytest.mark.parametrize("code", [0, 3])
def test_exit_codes_are_kept(tmp_path, code):
    assert use(tmp_path, f"raise SystemExit({code})")["code"] == code
