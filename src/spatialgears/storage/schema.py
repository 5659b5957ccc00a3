"""What a file of tensors must hold: every name, type, shape and range, checked on its header before anything is read."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spatialgears.errors import RunError
from spatialgears.runtime.memory import free_memory
from spatialgears.text import size

#: Names of types in a header, and their bytes.
BYTES = {"F64": 8, "F32": 4, "F16": 2, "I64": 8}
NAMES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.int64: "I64"}
#: No value that was learnt is larger.
LARGEST = 1e12
#: Bytes of a header.
MOST_HEADER = 2**24
#: Copies of a file's tensors in memory while they are read.
COPIES = 4


class Axis(NamedTuple):
    """A length that the file decides: the same wherever the name stands, and at most so much."""

    name: str
    most: int


@dataclass(frozen=True)
class TensorSpec:
    """What one tensor must be."""

    shape: tuple[int | Axis, ...]  # its lengths, those known by number
    dtype: str = "F32"  # its type, as headers name it
    #: Bounds of its values, which are finite besides.
    low: float = -LARGEST
    high: float = LARGEST

    @classmethod
    def like(cls, tensor: Tensor) -> TensorSpec:
        """That of a tensor of the same shape and type."""
        return cls(tuple(tensor.shape), NAMES[tensor.dtype])


Header = Mapping[str, Mapping[str, Any]]


def read_header(path: Path) -> dict[str, Any]:
    """Names, types and shapes of the tensors in a safetensors file, without reading them; a file with holes is refused."""
    try:
        if not path.is_file():  # a pipe would be waited for
            raise ValueError("it is no file")
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if getattr(found, "st_blocks", math.inf) * 512 < found.st_size // 2 - 2**20:
                raise ValueError("it has holes")
            length = int.from_bytes(file.read(8), "little")
            if length > min(MOST_HEADER, found.st_size):
                raise ValueError("its header is too long")
            header = json.loads(file.read(length))
        return {name: _entry(one) for name, one in header.items() if name != "__metadata__"}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RunError(f"{path} is damaged ({error}). Fit the model again.") from None


def _entry(one: Any) -> dict[str, Any]:
    """Type and shape of a tensor, if they are such."""
    dtype, shape = one["dtype"], one["shape"]
    if dtype not in BYTES or not all(type(n) is int and 0 <= n < 2**40 for n in shape):
        raise ValueError(f"a tensor has the type {dtype} and the shape {shape}")
    return {"dtype": dtype, "shape": tuple(shape)}


def check_header(header: Header, expected: Mapping[str, TensorSpec], path: Path) -> None:
    """Refuse a file whose tensors are not those expected, or do not fit in memory."""
    if strange := sorted(header.keys() ^ expected.keys()):
        known = "lacks" if strange[0] in expected else "has the unknown"
        raise _unlike(
            path, f"it {known} {strange[0]!r}" + f" and {len(strange) - 1} more" * (len(strange) > 1)
        )
    lengths: dict[str, int] = {}
    for name, one in expected.items():
        dtype, shape = header[name]["dtype"], header[name]["shape"]
        if dtype != one.dtype or len(shape) != len(one.shape):
            raise _unlike(path, f"{name!r} is {dtype} {list(shape)}")
        for found, wanted in zip(shape, one.shape, strict=True):
            if isinstance(wanted, Axis):
                wanted = lengths.setdefault(wanted.name, min(found, wanted.most))
            if found != wanted:
                raise _unlike(path, f"{name!r} has the shape {list(shape)}")
    needed = COPIES * sum(BYTES[one["dtype"]] * math.prod(one["shape"]) for one in header.values())
    if needed > (free := free_memory()):
        raise RunError(
            f"{path} takes {size(needed)} of memory, and {size(free)} are free. Use a larger machine."
        )


def check_values(tensors: Mapping[str, Tensor], expected: Mapping[str, TensorSpec], path: Path) -> None:
    """Refuse values that are not finite, or out of their range."""
    for name, one in expected.items():
        values = tensors[name]
        if values.numel() and not (float(values.min()) >= one.low and float(values.max()) <= one.high):
            raise _unlike(path, f"{name!r} has values from {values.min():g} to {values.max():g}")


def _unlike(path: Path, how: str) -> RunError:
    return RunError(
        f"{path} does not belong to the configuration and facts beside it: {how}. Fit the model again."
    )
