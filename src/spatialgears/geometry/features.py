"""Input features of spots and cells, as one type with named parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Features:
    """Features of points, with any leading dimensions: (n, .) or (B, n, .)."""

    #: (..., f) weighted expression; None where the generators see the embedding alone, as in the paper.
    expression: Tensor | None
    embedding: Tensor | None = None  # (..., h) stage A's embedding; None where nothing needs it

    @property
    def seen(self) -> Tensor:
        """What the generators see: the expression, or the embedding where there is no expression."""
        found = self.embedding if self.expression is None else self.expression
        assert found is not None
        return found

    @property
    def width(self) -> int:
        """Features of one point as the generators see it."""
        return self.seen.shape[-1]

    def __len__(self) -> int:
        return len(self.seen)

    def __getitem__(self, rows: Any) -> Features:
        index = rows if rows is None or isinstance(rows, slice | Tensor) else torch.as_tensor(rows)
        return self._each(lambda part: part[index])

    def unflatten(self, shape: Sequence[int]) -> Features:
        """Points (n, .) in another shape (*shape, .)."""
        return self._each(lambda part: part.view(*shape, part.shape[-1]))

    @staticmethod
    def cat(parts: Sequence[Features]) -> Features:
        """All points of several sets (n_i, .), one after the other."""

        def joined(found: Sequence[Tensor | None]) -> Tensor | None:
            return None if found[0] is None else torch.cat([one for one in found if one is not None])

        return Features(joined([one.expression for one in parts]), joined([one.embedding for one in parts]))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Features:
        return Features(
            None if self.expression is None else change(self.expression),
            None if self.embedding is None else change(self.embedding),
        )


class FeatureRows(Protocol):
    """Features of N points, held or computed on demand: a million dense rows would not fit in memory."""

    @property
    def width(self) -> int:
        """Values that one point needs in memory."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Features: ...
