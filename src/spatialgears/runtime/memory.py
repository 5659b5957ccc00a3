"""Memory: how much a process may use, and a bound on it while something untrusted is read."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

#: Address space that threads and libraries map on the way without using it.
RESERVED = 5e8

_ONE_AT_A_TIME = threading.RLock()


def memory_limits() -> dict[str, float]:
    """Bytes that this process may use in all, by what sets the limit, in words that a message can go on with."""
    found = {"the machine has": float(psutil.virtual_memory().total)}
    group = Path("/sys/fs/cgroup/memory.max")
    if group.exists() and (text := group.read_text().strip()).isdecimal():
        found["the control group allows"] = float(text)
    return found | process_limits()


def process_limits() -> dict[str, float]:
    """Peak memory that limits on this process (``ulimit``) leave room for, beside what it maps and does not use."""
    if resource is None:
        return {}
    memory = psutil.Process().memory_info()
    mapped = {
        resource.RLIMIT_AS: ("ulimit -v leaves", memory.vms),
        resource.RLIMIT_DATA: ("ulimit -d leaves", getattr(memory, "data", memory.rss)),
    }
    found = {}
    for kind, (name, used) in mapped.items():
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            found[name] = soft - max(used - memory.rss, 0) - RESERVED
    return found


def free_memory() -> float:
    """Bytes that this process can still use."""
    used = psutil.Process().memory_info().rss
    return max(0.0, min(psutil.virtual_memory().available, min(memory_limits().values()) - used))


@contextmanager
def bounded(n_bytes: float) -> Iterator[None]:
    """Let an allocation fail, as a MemoryError, that would take this process ``n_bytes`` beyond what it uses now.

    The limit is the whole process's (``RLIMIT_DATA``) and goes again at the end; one block at a time has one. Linux only:
    elsewhere there is none.
    """
    if resource is None or sys.platform != "linux":
        yield
        return
    with _ONE_AT_A_TIME:
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = int(psutil.Process().memory_info().data + n_bytes)
        most = min([wanted, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)])
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
