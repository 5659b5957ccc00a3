"""Files written whole or not at all, and tensors stored without pickle."""

from __future__ import annotations

import errno
import json
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import escape as glob_escape
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from spatialgears.errors import RunError


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
