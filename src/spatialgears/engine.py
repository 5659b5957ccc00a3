"""What every training loop shares: Fabric, owned randomness, atomic files, checkpoints without pickle, progress.

Randomness is a function of (seed, purpose, step), never of what ran before: resuming needs no saved generator state,
and results do not depend on batch composition, workers or interruptions.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from glob import escape as glob_escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from spatialgears.errors import ConfigError, RunError, TrainingError
from spatialgears.machine import usable_cores

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from spatialgears.config import Config

#: ``progress(stage, done, total, values)``: called by long loops; the command line draws bars from it.
Progress = Callable[[str, int, int, Mapping[str, float]], None]


def silent(stage: str, done: int, total: int, values: Mapping[str, float]) -> None:
    """The progress callback that shows nothing."""


class Clock:
    """Seconds by step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        """Measure a block; what took time in another way is measured elsewhere."""
        start, before = time.perf_counter(), self.apart()
        yield
        self.seconds[step] = time.perf_counter() - start - (self.apart() - before)

    def apart(self) -> float:
        """Seconds so far that belong to no step."""
        return 0.0


def child_seed(seed: int, *path: int | str) -> int:
    """A 63-bit seed for one purpose, e.g. ``child_seed(seed, "patch", 17)``; independent of every other path."""
    key = [zlib.crc32(part.encode()) if isinstance(part, str) else int(part) for part in path]
    return int(np.random.SeedSequence(seed, spawn_key=key).generate_state(1, np.uint64)[0] >> np.uint64(1))


def numpy_rng(seed: int, *path: int | str) -> np.random.Generator:
    """A numpy generator for one purpose."""
    return np.random.default_rng(child_seed(seed, *path))


def torch_rng(seed: int, *path: int | str) -> torch.Generator:
    """A torch (CPU) generator for one purpose."""
    return torch.Generator().manual_seed(child_seed(seed, *path))


@contextmanager
def owned_rng() -> Iterator[None]:
    """Keep the caller's global torch generator as it was; loops reseed it at each step with ``torch.manual_seed``."""
    with torch.random.fork_rng(devices=[]):
        yield


@contextmanager
def threads(count: int = 0) -> Iterator[int]:
    """Use ``count`` torch threads inside the block; 0 chooses the cores this process may use (at most 8).

    Processes of one run on one machine share its cores: threads that outnumber them slow one another down.
    """
    before = torch.get_num_threads()
    count = count or usable_cores()
    flushed = float(torch.tensor(1e-310, dtype=torch.float64) * 1) == 0.0
    torch.set_num_threads(count)
    torch.set_flush_denormal(True)
    try:
        yield count
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(flushed)


def make_fabric(config: Config) -> Fabric:
    """The Lightning Fabric engine the configuration asks for; one process on the CPU by default."""
    from lightning_fabric import Fabric

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it announces every process
    on_cpu = config.accelerator == "cpu" or (
        config.accelerator == "auto" and not (torch.cuda.is_available() or torch.backends.mps.is_available())
    )
    if on_cpu and config.precision == "16-mixed":
        raise ConfigError(
            "precision = 16-mixed needs a GPU, and the configuration asks for the CPU.", "Use 32-true."
        )
    if on_cpu and config.precision == "bf16-mixed" and not bf16_works():
        raise ConfigError(
            "precision = bf16-mixed does not work on this CPU: a trial of it failed.", "Use 32-true."
        )
    if on_cpu and config.compile and not shutil.which(os.environ.get("CXX", "c++")):
        raise ConfigError(
            "compile = true needs a C++ compiler, and there is none.",
            "Install g++, or leave compile = false.",
        )
    try:
        fabric = Fabric(
            accelerator=config.accelerator,
            devices=config.devices,
            num_nodes=config.num_nodes,
            precision=config.precision,
        )
    except (RuntimeError, ValueError) as error:
        raise ConfigError(
            f"accelerator = {config.accelerator} with devices = {config.devices} cannot be used here: {error}",
            "Use accelerator = cpu and devices = 1.",
        ) from error
    fabric.launch()
    return fabric


def join(config: Config) -> None:
    """Meet the other processes of this run, if there are to be any."""
    if config.processes > 1:
        make_fabric(config)


_BF16 = """
import torch
layer = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.SiLU(), torch.nn.Linear(32, 16))
with torch.autocast("cpu", dtype=torch.bfloat16):
    x = layer(torch.randn(64, 16)).reshape(2, 4, 8, 16)
    y = torch.nn.functional.scaled_dot_product_attention(x, x, x)
y.float().sum().backward()
"""


@cache
def bf16_works() -> bool:
    """Whether bfloat16 runs on this CPU. Some claim it and end the process instead, so another process tries."""
    done = subprocess.run([sys.executable, "-c", _BF16], capture_output=True, check=False)
    return done.returncode == 0


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary path in the same folder to write to: flushed and renamed over ``path`` at the end, or removed."""
    path = Path(path).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    except OSError as error:
        raise cannot_write(path, error) from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise cannot_write(path, error) from error
        raise


def cannot_write(path: str | Path, error: OSError) -> RunError:
    """The error that says why a file could not be written, and what to do."""
    reason = error.strerror or str(error).splitlines()[0]
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        advice = "Free some space there, or choose another place, and run again"
    else:
        advice = "Choose another place, or ask for the right to write there"
    return RunError(
        f"{path} could not be written: {reason}. {advice}; files that were complete before are as they were."
    )


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Delete what :func:`atomic_path` left of these files when a process was killed while it wrote."""
    for name in names:
        for path in folder.glob(f".{glob_escape(name)}.????????{Path(name).suffix}"):
            path.unlink(missing_ok=True)


def write_atomic(path: str | Path, data: bytes | str) -> None:
    """Write a whole file or nothing."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


def save_state(
    path: str | Path, tensors: Mapping[str, Tensor], meta: Mapping[str, Any] | None = None
) -> None:
    """Write tensors and JSON-able ``meta`` as one safetensors file, atomically, with a checksum."""
    write_atomic(path, packed_state(tensors, meta))


def packed_state(tensors: Mapping[str, Tensor], meta: Mapping[str, Any] | None = None) -> bytes:
    """What :func:`save_state` writes."""
    flat = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    payload = save_tensors(flat, {"meta": json.dumps(meta or {})})
    return payload + zlib.crc32(payload).to_bytes(4, "little")


def load_state(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what :func:`save_state` wrote; a damaged file is refused by name."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(
            f"{path} could not be read: {error.strerror}. Run again, or delete it first."
        ) from error
    payload, checksum = data[:-4], data[-4:]
    if len(data) < 12 or zlib.crc32(payload).to_bytes(4, "little") != checksum:
        raise RunError(f"{path} is damaged (its checksum does not match). Delete it and run again.")
    try:
        size = int.from_bytes(payload[:8], "little")
        meta = json.loads(json.loads(payload[8 : 8 + size])["__metadata__"]["meta"])
        return load_tensors(payload), meta
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{path} is not a spatialgears state file ({error}). Delete it and run again."
        ) from None


def training_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The weights and the optimiser's moments as flat named tensors, ready for :func:`save_state`."""
    tensors = {f"module.{name}": value for name, value in module.state_dict().items()}
    for index, slots in optimizer.state_dict()["state"].items():
        for slot, value in slots.items():
            tensors[f"optimizer.{index}.{slot}"] = torch.as_tensor(value)
    return tensors


def restore_training(
    tensors: Mapping[str, Tensor], module: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Put back what :func:`training_state` took."""
    module.load_state_dict(
        {k.removeprefix("module."): v for k, v in tensors.items() if k.startswith("module.")}
    )
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, slot = name.split(".", 2)
            state.setdefault(int(index), {})[slot] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def check_finite(losses: Mapping[str, Tensor], step: int, stage: str) -> None:
    """Stop at the first loss that is not finite, naming the term and the step."""
    bad = [name for name, value in losses.items() if not bool(torch.isfinite(value).all())]
    if bad:
        raise TrainingError(
            f"{stage}: the loss term {', '.join(bad)} is no longer finite at step {step}. The last checkpoint is kept. "
            "Try a smaller learning rate, or `gears check` for odd values in the input."
        )
