"""How many threads a run uses, and why; and work that is done side by side in them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock
from typing import NamedTuple, TypeVar

from spatialgears.runtime.progress import Progress, silent

logger = logging.getLogger(__name__)

T = TypeVar("T")

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
def threads(count: int = 0, *, each: int = 0) -> Iterator[int]:
    """How many threads to use inside the block: ``count``, or for 0 what :func:`usable_threads` chooses.

    One operation of torch takes all of them, or ``each``: small networks gain nothing from more than one.
    """
    import torch

    before = torch.get_num_threads()
    chosen = Threads(count, "as configured") if count else usable_threads()
    logger.info("threads: %d (%s)", *chosen)
    flushed = float(torch.tensor(1e-310, dtype=torch.float64) * 1) == 0.0
    torch.set_num_threads(each or chosen.number)
    torch.set_flush_denormal(True)
    try:
        yield chosen.number
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(flushed)


def side_by_side(
    work: Callable[[int, Progress], T], count: int, *, workers: int, stage: str, progress: Progress = silent
) -> list[T]:
    """``work(i, progress)`` for i = 0 to ``count`` - 1 by ``workers`` threads, which report progress as one stage.

    If one fails, or the caller is interrupted, the others end at their next step.
    """
    import torch

    lock, ended, behind = Lock(), Event(), dict.fromkeys(range(count), 0)

    def of(i: int) -> Progress:
        def tell(_: str, done: int, total: int, values: Mapping[str, float]) -> None:
            with lock:
                if ended.is_set():
                    raise CancelledError
                behind[i] = done
                progress(stage, sum(behind.values()), count * total, values)

        return tell

    if workers == 1:
        return [work(i, of(i)) for i in range(count)]
    with ThreadPoolExecutor(workers, initializer=torch.set_flush_denormal, initargs=(True,)) as pool:
        jobs = [pool.submit(work, i, of(i)) for i in range(count)]
        try:
            wait(jobs, return_when=FIRST_EXCEPTION)
            for job in jobs:
                if job.done():
                    job.result()  # raises what it raised
            return [job.result() for job in jobs]
        except BaseException:
            ended.set()
            pool.shutdown(cancel_futures=True)
            raise


def _whole(text: str) -> int | None:
    """A positive whole number, or None."""
    return int(text) if text.strip().isdecimal() and int(text) > 0 else None
