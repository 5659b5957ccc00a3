"""A run that is killed, whenever and however often, ends as if it had not been."""

from __future__ import annotations

import os
import signal
import time

import pytest

KILLS = int(os.environ.get("GEARS_KILLS", "36"))


def start(processes, tools, small_files, out, config, **options):
    where = processes.Value("i", 0, lock=False)
    child = processes.Process(
        target=tools[0], args=(str(small_files), str(out), config.to_json(), where), kwargs=options
    )
    child.start()
    return child, where


def kill_at(child, where, stage: int, delay: float) -> bool:
    """Kill a process ``delay`` seconds after it came to a stage; whether it was still at work."""
    while child.is_alive() and 0 <= where.value < stage:
        time.sleep(0.002)
    time.sleep(delay)
    alive = child.is_alive()
    if alive:
        os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert alive or child.exitcode == 0
    return alive


def survive(kills, processes, tools, small_files, whole_run, config, out, rng) -> tuple[int, set[int]]:
    """Kill runs in ``out`` at random moments, let them end now and then, compare; kills and the stages they fell in."""
    _, contents, leftovers = tools
    done, stages, folder = 0, set(), out / "0"
    while done < kills:
        child, where = start(processes, tools, small_files, folder, config, steps_apart=0.005)
        stage = int(rng.integers(0, 9))
        if kill_at(child, where, stage, float(rng.uniform(0, 0.15))):
            done += 1
            stages.add(where.value)
        if where.value == -1 or done % 6 == 0 or done == kills:
            child, _ = start(processes, tools, small_files, folder, config)
            child.join()
            assert child.exitcode == 0
            assert contents(folder) == contents(whole_run)
            assert leftovers(folder) == [] and not (folder / "checkpoints").exists()
            folder = out / str(done)
    return done, stages


def test_three_kills(processes, tools, small_files, whole_run, fault_config, tmp_path, rng, record_property):
    done, _ = survive(3, processes, tools, small_files, whole_run, fault_config, tmp_path, rng)
    record_property("kills survived", done)


@pytest.mark.slow
def test_many_kills(processes, tools, small_files, whole_run, fault_config, tmp_path, rng, record_property):
    done, stages = survive(KILLS, processes, tools, small_files, whole_run, fault_config, tmp_path, rng)
    record_property("kills survived", done)
    assert len(stages) >= 5, f"kills fell in the stages {sorted(stages)} only"
