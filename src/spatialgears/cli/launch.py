"""``--devices N``: the command in several processes, of which the first speaks and writes.

On a cluster SLURM or torchrun starts the processes, and there is nothing to do here.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from spatialgears.errors import ConfigError, RunError

if TYPE_CHECKING:
    from spatialgears.config import Config

BAD_INPUT = 2  # the exit code
GRACE = 10.0  # seconds in which processes end by themselves once another has
READING = 120.0  # seconds in which the first one has read the input that another has refused

_PANEL = "Processes"
Devices = Annotated[
    int | None,
    typer.Option("--devices", metavar="N", min=1, rich_help_panel=_PANEL, help="Processes, one per device."),
]
NumNodes = Annotated[
    int | None,
    typer.Option(
        "--num-nodes", metavar="N", min=1, rich_help_panel=_PANEL, help="Machines, under SLURM or torchrun."
    ),
]


def on_devices(config: Config, devices: int | None, num_nodes: int | None) -> Config:
    """The configuration with what the options say."""
    given = {"devices": devices, "num_nodes": num_nodes}
    return config.with_values([f"{key}={value}" for key, value in given.items() if value is not None])


def launched(config: Config) -> bool:
    """Run the command again in as many processes as are wanted, and wait for them; False: go on in this one.

    If one ends early, the others are ended, too, and RunError names it.
    """
    count, total = config.devices, config.processes
    if total == 1 or "LOCAL_RANK" in os.environ:
        return False
    tasks = int(os.environ.get("SLURM_NTASKS", "1")) if "SLURM_PROCID" in os.environ else 1
    if tasks == total:
        return False
    if tasks > 1:
        raise ConfigError(
            f"SLURM started {tasks} tasks, and devices = {count} on num_nodes = {config.num_nodes} are {total}.",
            "Make --ntasks-per-node the same as --devices.",
        )
    if config.num_nodes > 1:
        raise ConfigError(
            f"num_nodes = {config.num_nodes}, and nothing started this command on other machines.",
            f"Use SLURM (srun gears ...) or, on each machine, torchrun --nnodes {config.num_nodes} "
            f"--nproc-per-node {count} --no-python gears ....",
        )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0"}
    shared |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    command = [sys.executable, "-m", "spatialgears", *sys.argv[1:]]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes are ended, too
    with tempfile.TemporaryFile() as heard:
        processes = [
            subprocess.Popen(
                command,
                env=inherited | shared | {"LOCAL_RANK": str(rank), "RANK": str(rank)},
                stdout=subprocess.DEVNULL if rank else None,
                stderr=heard if rank else None,
            )
            for rank in range(count)
        ]
        try:
            failed = _wait(processes)
        finally:
            _end(processes)
        heard.seek(0)
        told = heard.read().decode(errors="replace").strip().splitlines()
    if failed is None:
        return True
    code = processes[failed].returncode
    if failed == 0 and code > 0:  # it has said why
        raise SystemExit(code)
    errors = [number for number, line in enumerate(told) if line.startswith("Error:")]
    words = " ".join(told[errors[-1] :] if errors else told[-1:])
    how = f"was ended by signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"failed ({words})"
    raise RunError(
        f"Process {failed + 1} of {count} {how}, and the others were ended. Nothing that was written is lost: run the "
        "same command again, and it goes on from the last checkpoint."
    )


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Until all have ended well, or one has not: its number."""
    while True:
        codes = [process.poll() or 0 for process in processes]
        killed = [rank for rank, code in enumerate(codes) if code < 0]
        failed = killed or [rank for rank, code in enumerate(codes) if code]
        if not failed:
            if all(process.returncode == 0 for process in processes):
                return None
            time.sleep(0.1)
            continue
        if failed[0] and not killed:  # an error in the input, which the first, too, is about to tell
            with suppress(subprocess.TimeoutExpired):
                processes[0].wait(READING if codes[failed[0]] == BAD_INPUT else GRACE)
            return 0 if processes[0].poll() == BAD_INPUT else failed[0]
        return failed[0]


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
