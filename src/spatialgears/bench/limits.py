"""Run one command under limits of time and memory, and record what it used.

A script that uses the standard library only, started as ``python -I -S limits.py SPEC``. The kernel's peak memory of a
child starts at the size of its parent, so the parent must be this small.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time

LOOK = 0.5  # seconds between checks of the time


def run_limited(command: list[str], *, seconds: float, gigabytes: float, log: str) -> dict[str, float | bool]:
    """Run ``command`` with its output in ``log``; kill it and its children when time is up or the caller has ended.

    The memory limit is on data (heap and private mappings), not on address space: torch and jax reserve much more address
    space than they use. Returns ``code`` (negative: the signal that ended it), ``timeout``, ``seconds`` and ``peak_gb``.
    """

    def limit() -> None:
        size = int(gigabytes * 1e9)
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))

    start, timeout, caller = time.monotonic(), False, os.getppid()
    with open(log, "wb") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=limit,
        )

    def kill(*_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    def look(*_: object) -> None:
        nonlocal timeout
        timeout = time.monotonic() - start >= seconds
        if timeout or os.getppid() != caller:
            kill()

    signal.signal(signal.SIGALRM, look)
    signal.signal(signal.SIGINT, kill)
    signal.signal(signal.SIGTERM, kill)
    signal.setitimer(signal.ITIMER_REAL, min(LOOK, seconds), LOOK)
    _, status, usage = os.wait4(child.pid, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    elapsed = time.monotonic() - start
    kill()  # whatever it left running
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "code": os.waitstatus_to_exitcode(status),
        "timeout": timeout,
        "seconds": elapsed,
        "peak_gb": usage.ru_maxrss * unit / 1e9,
    }


if __name__ == "__main__":
    spec = json.loads(sys.argv[1])
    usage_file = spec.pop("usage")
    with open(usage_file, "w") as file:
        json.dump(run_limited(**spec), file)
