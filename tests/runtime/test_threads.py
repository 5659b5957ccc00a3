"""How many threads are used: what users, schedulers and the machine say, in that order."""

from __future__ import annotations

import os

import pytest
import torch

from spatialgears.runtime.threads import MOST_THREADS, cpu_quota, threads, usable_threads

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
