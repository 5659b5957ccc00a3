"""Several processes as one: each does its share of the work, and all of them get the result.

The group is the one Lightning Fabric starts (torch.distributed); without one, everything here is the identity.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from spatialgears.errors import RunError

T = TypeVar("T", bound=np.generic)


def rank_and_size() -> tuple[int, int]:
    """The number of this process among how many."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def is_first() -> bool:
    """Whether this process is the one that writes files and speaks to the user."""
    return rank_and_size()[0] == 0


def share_of(items: Sequence[Any]) -> Sequence[Any]:
    """The items that fall to this process."""
    rank, size = rank_and_size()
    return items[rank::size]


def summed(values: NDArray[T]) -> NDArray[T]:
    """The sum of every process's array."""
    if rank_and_size()[1] == 1:
        return values
    return _collective(torch.from_numpy(np.ascontiguousarray(values)), dist.all_reduce).numpy()


def gathered(parts: Mapping[int, NDArray[np.float32]], total: int) -> NDArray[np.float32]:
    """An array of ``total`` rows from parts, each beginning at its row; every process has some of them."""
    if rank_and_size()[1] == 1:
        return np.concatenate([parts[start] for start in sorted(parts)])
    trailing = [part.shape[1:] for part in parts.values()]
    shape = torch.tensor(trailing[0] if trailing else (0, 0))
    shape = _collective(shape, lambda t: dist.all_reduce(t, dist.ReduceOp.MAX))
    whole = np.zeros((total, *shape.tolist()), np.float32)
    for start, part in parts.items():
        whole[start : start + len(part)] = part
    return summed(whole)


def agreed(value: int) -> int:
    """What the first process says."""
    if rank_and_size()[1] == 1:
        return value
    return int(_collective(torch.tensor([value]), lambda t: dist.broadcast(t, 0)))


@contextmanager
def together() -> Iterator[None]:
    """Work in which all processes take part; if another one is gone, say so."""
    try:
        yield
    except RuntimeError as error:
        if rank_and_size()[1] == 1 or isinstance(error, torch.OutOfMemoryError):
            raise
        raise RunError(
            f"Another process of this run has ended ({str(error).splitlines()[0][:200]}). Nothing that was written is "
            "lost: run the same command again, and it goes on from the last checkpoint."
        ) from error


def _collective(tensor: torch.Tensor, work: Callable[[torch.Tensor], object]) -> torch.Tensor:
    """Apply a collective to a copy of a tensor."""
    local = int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")))
    device = torch.device("cuda", local) if dist.get_backend() == "nccl" else torch.device("cpu")
    tensor = tensor.clone().to(device)
    with together():
        work(tensor)
    return tensor.cpu()
