"""Files that are written whole or not at all, opened without following links, and tensors stored without pickle."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from spatialgears.errors import InputError, RunError

#: Never through a symbolic link, never waiting for the other end of a pipe; absent on Windows.
_SAFELY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
#: Temporary files that this process is writing.
_WRITING: set[Path] = set()


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary path in the same folder to write to: flushed and renamed over ``path`` at the end, or removed.

    What processes that were killed have left of the same file is removed.
    """
    path = Path(path).expanduser()
    if path in _WRITING:  # it is one of these already
        yield path
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for left in abandoned(path):
            left.unlink(missing_ok=True)
        prefix = f".{path.name}.{os.getpid()}."
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=prefix, suffix=path.suffix)
    except OSError as error:
        raise cannot_write(path, error) from error
    os.close(handle)
    temporary = Path(name)
    _WRITING.add(temporary)
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
    finally:
        _WRITING.discard(temporary)


@contextmanager
def atomic_paths(folder: Path, names: Sequence[str]) -> Iterator[dict[str, Path]]:
    """Temporary paths, by name, of files that belong together: all are complete before the first is put in its place.

    The last of ``names`` is put there last. If the process is killed on the way, :func:`unfinished` says so.
    """
    with ExitStack() as complete:  # left in reverse
        yield {name: complete.enter_context(atomic_path(folder / name)) for name in reversed(names)}


def unfinished(folder: Path, names: Sequence[str]) -> bool:
    """Whether a process was killed while it put files of :func:`atomic_paths` in their places."""
    return not (folder / names[-1]).exists() and bool(abandoned(folder / names[-1]))


def abandoned(path: Path) -> list[Path]:
    """What :func:`atomic_path` left of a file in processes that have ended since."""
    return [left for left, process in _temporary(path) if left not in _WRITING and not _runs(process)]


def _temporary(path: Path) -> list[tuple[Path, int]]:
    """Temporary files of a file, and the number of the process that made each; none (0) in those of older versions."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.(?:(\d+)\.)?\w{{8}}{re.escape(path.suffix)}")
    if not path.parent.is_dir():
        return []
    found = [(path.parent / name, pattern.fullmatch(name)) for name in os.listdir(path.parent)]
    return [(one, int(match[1] or 0)) for one, match in found if match]


def _runs(process: int) -> bool:
    """Whether another process of this number is at work."""
    try:
        return process not in (0, os.getpid()) and psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


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
    """Delete what :func:`atomic_path` left of these files, in a folder that no other process is writing to."""
    for name in names:
        for path, _ in _temporary(folder / name):
            path.unlink(missing_ok=True)


def open_regular(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file; of nothing that a symbolic link leads to, and of no pipe or device.

    Nothing is truncated, and nothing waits. With ``os.O_CREAT`` the file is made.
    """
    try:
        handle = os.open(path, flags | _SAFELY, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):
            raise not_regular(path) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise not_regular(path)
    return handle


def read_regular(path: str | Path) -> bytes:
    """The contents of a regular file, which is not reached through a symbolic link."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read()


def not_regular(path: str | Path) -> RunError:
    """The error of a link, pipe or device where a file or folder of ours should be."""
    return RunError(
        f"{path} is a symbolic link or something else that is neither a regular file nor a folder. It was not used: delete "
        "it, or choose another folder."
    )


def fingerprint(path: str | Path) -> str:
    """SHA-256 of a file, or of the names and contents of all files of a folder."""
    path = Path(path).expanduser()
    digest = hashlib.sha256()
    if path.exists() and not (path.is_file() or path.is_dir()):  # a pipe or a device has no end
        raise InputError(f"{path} is neither a file nor a folder.", "Write the data to a file first.")
    try:
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            digest.update(os.fsencode(file.relative_to(path)))
            with file.open("rb") as stream:
                while block := stream.read(2**22):
                    digest.update(block)
    except OSError as error:
        raise InputError(
            f"{error.filename or path} could not be read: {error.strerror}.", "Put it back, and run again."
        ) from error
    return digest.hexdigest()


@contextmanager
def temporary_folder(name: str) -> Iterator[Path]:
    """A folder for temporary files, removed at the end; so are those of this name that killed processes have left."""
    pattern = re.compile(rf"{re.escape(name)}-(\d+)-\w{{8}}")
    for entry in os.scandir(tempfile.gettempdir()):
        found = pattern.fullmatch(entry.name)
        if (
            found
            and int(found[1]) != os.getpid()
            and not _runs(int(found[1]))
            and entry.is_dir(follow_symlinks=False)
        ):
            shutil.rmtree(entry.path, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{name}-{os.getpid()}-") as folder:
        yield Path(folder)


def write_atomic(path: str | Path, data: bytes | str) -> None:
    """Write a whole file or nothing. Bytes of a path that are not UTF-8 are written out in a text."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data.encode(errors="backslashreplace") if isinstance(data, str) else data)


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
        if not path.is_file():  # a pipe would be waited for
            raise FileNotFoundError(errno.ENOENT, "there is no such file", str(path))
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
