"""How many threads a run uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from spatialgears.runtime.machine import usable_cores


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
