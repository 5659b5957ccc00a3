"""Types that several stages share."""

from __future__ import annotations

from typing import Any, Protocol


class Features(Protocol):
    """What the network sees of each cell, (N, f): an array, or rows computed as they are asked for."""

    @property
    def shape(self) -> Any:
        """(N, f)."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...
