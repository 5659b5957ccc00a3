"""Run one command under limits of time and memory, and write down what it used.

A script of the standard library alone, started as ``python -I -S limits.py SPEC``: this process stays so
small that the peak memory it reads for its child is the child's own. (The kernel's figure for a child starts
at its parent's size.)
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

LOOK = 0.5  # seconds between two looks at the clock


def run_limited(command: list[str], *, seconds: float, gigabytes: float, log: str) -> dict[str, float | bool]:
    """Run ``command`` with its output in ``log``; kill it, and all it started, when the time is over or the caller gone.

    The memory limit is on data (heap and private mappings) rather than on address space, most of which torch
    and jax reserve and never touch.

    Returns
    -------
    ``code`` (negative: the signal that ended it), ``timeout``, ``seconds`` and ``peak_gb``.
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
