"""What the machine offers a process."""

from __future__ import annotations

import os

MOST_CORES = 8  # more do not make these small networks faster


def usable_cores() -> int:
    """Cores that this process may use, those of one machine shared among the processes of a run there."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))), MOST_CORES)
