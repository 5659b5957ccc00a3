"""How many threads are used: what users, schedulers and the machine say, in that order."""

from __future__ import annotations

import os
from threading import Barrier, Event

import pytest
import torch

from spatialgears.runtime.threads import MOST_THREADS, cpu_quota, side_by_side, threads, usable_threads

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@pytest.mark.parametrize(
    ("environment", "count", "reason"),
    [
        ({"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "5"}, 3, "OMP_NUM_THREADS=3"),
        ({"OMP_NUM_THREADS": "16,2"}, 16, "OMP_NUM_THREADS=16"),
        ({"MKL_NUM_THREADS": "5", "SLURM_CPUS_PER_TASK": "1"}, 5, "MKL_NUM_THREADS=5"),
        ({"SLURM_CPUS_PER_TASK": "1"}, 1, "SLURM_CPUS_PER_TASK=1"),
        ({"LOKY_MAX_CPU_COUNT": "1"}, 1, "LOKY_MAX_CPU_COUNT=1"),
        ({"LOCAL_WORLD_SIZE": "64"}, 1, "64 processes"),
        ({"OMP_NUM_THREADS": "none", "SLURM_CPUS_PER_TASK": "-1"}, min(CORES, MOST_THREADS), ""),
    ],
)
def test_who_decides(environment, count, reason, tmp_path):
    found = usable_threads(environment, cgroup=tmp_path)
    assert found.number == count and reason in found.reason


@pytest.mark.parametrize(
    ("text", "quota"), [("100000 100000", 1), ("150000 100000", 1), ("50000 100000", 1), ("max 100000", None)]
)
def test_the_quota_of_a_control_group(text, quota, tmp_path):
    (tmp_path / "cpu.max").write_text(text)
    assert cpu_quota(tmp_path) == quota
    if quota:
        assert usable_threads({}, cgroup=tmp_path).number == 1


def test_the_quota_of_an_older_control_group(tmp_path):
    assert cpu_quota(tmp_path) is None
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    for quota, found in (("300000\n", 3), ("-1\n", None)):
        (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
        assert cpu_quota(tmp_path) == found


def test_threads_are_set_and_put_back(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with threads(3) as count:
        assert count == torch.get_num_threads() == 3
    with threads() as count:
        assert count == torch.get_num_threads() == 2
    assert torch.get_num_threads() == before


def test_one_operation_may_have_fewer_threads_than_there_are():
    with threads(3, each=1) as count:
        assert (count, torch.get_num_threads()) == (3, 1)


def test_work_side_by_side_tells_its_progress_as_one_stage():
    both, told = Barrier(2), []

    def work(i, progress):
        both.wait(10)  # neither goes on before the other has begun
        for step in range(1, 3):
            progress(f"part {i}", step, 2, {})
        return 10 * i

    found = side_by_side(work, 2, workers=2, stage="parts", progress=lambda *call: told.append(call[:3]))
    assert found == [0, 10]
    assert told == [("parts", done, 4) for done in range(1, 5)]


def test_if_one_fails_the_others_end_at_their_next_step():
    failed, steps = Event(), []

    def work(i, progress):
        if i:
            failed.set()
            raise ValueError("not finite")
        failed.wait(10)
        while True:
            steps.append(len(steps))
            progress("part 0", len(steps), 10**6, {})

    with pytest.raises(ValueError, match="not finite"):
        side_by_side(work, 2, workers=2, stage="parts")
    assert 0 < len(steps) < 10**6


def test_an_interruption_ends_the_work_at_its_next_step():
    def interrupted(stage, done, total, values):
        if done == 3:
            raise KeyboardInterrupt

    def work(i, progress):
        while True:
            progress(f"part {i}", 1, 2, {})
            progress(f"part {i}", 3, 2, {})

    with pytest.raises(KeyboardInterrupt):
        side_by_side(work, 1, workers=1, stage="parts", progress=interrupted)
