"""How many threads a run uses, and why."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

logger = logging.getLogger(__name__)

MOST_THREADS = 8  # more do not make these small networks faster
#: Variables by which users and schedulers say how many threads a process may have; the first that is set decides.
STATED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
#: Limits that schedulers and joblib set: the smallest decides, together with the control group and CPU affinity.
LIMITS = ("SLURM_CPUS_PER_TASK", "LOKY_MAX_CPU_COUNT")
CGROUP = Path("/sys/fs/cgroup")


class Threads(NamedTuple):
    """A number of threads and the reason for it, in words."""

    number: int
    reason: str


def usable_threads(environment: Mapping[str, str] = os.environ, *, cgroup: Path = CGROUP) -> Threads:
    """Threads that this process should use where the configuration leaves the choice to us.

    ``OMP_NUM_THREADS`` decides, then ``MKL_NUM_THREADS``. Without these, the smallest of CPU affinity, the control
    group's quota, SLURM's and joblib's limits, shared among the processes of a run on this machine, at most 8.
    """
    for name in STATED:
        if stated := _whole(environment.get(name, "").split(",")[0]):
            return Threads(stated, f"{name}={stated}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = [Threads(cores, f"{cores} cores"), Threads(MOST_THREADS, "more would not be faster")]
    if quota := cpu_quota(cgroup):
        found.append(Threads(quota, f"the control group allows {quota}"))
    for name in LIMITS:
        if limit := _whole(environment.get(name, "")):
            found.append(Threads(limit, f"{name}={limit}"))
    least = min(found)
    processes = _whole(environment.get("LOCAL_WORLD_SIZE", "")) or 1
    if processes > 1:
        return Threads(max(1, least.number // processes), f"{least.reason}, {processes} processes")
    return least


def cpu_quota(cgroup: Path = CGROUP) -> int | None:
    """Whole cores that the control group of this process allows, in either version; None without a limit."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota, period = (
                (cgroup / "cpu" / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period")
            )
        except OSError:
            return None
    if not (quota.isdecimal() and period.isdecimal() and int(period)):
        return None  # "max", or -1: no limit
    return max(1, int(quota) // int(period))


@contextmanager
def threads(count: int = 0) -> Iterator[int]:
    """Use ``count`` torch threads inside the block; 0 leaves the choice to :func:`usable_threads`."""
    import torch

    before = torch.get_num_threads()
    chosen = Threads(count, "as configured") if count else usable_threads()
    count = chosen.number
    logger.info("threads: %d (%s)", *chosen)
    flushed = float(torch.tensor(1e-310, dtype=torch.float64) * 1) == 0.0
    torch.set_num_threads(count)
    torch.set_flush_denormal(True)
    try:
        yield count
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(flushed)


def _whole(text: str) -> int | None:
    """A positive whole number, or None."""
    return int(text) if text.strip().isdecimal() and int(text) > 0 else None
