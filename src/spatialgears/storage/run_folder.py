"""A run's folder: its names, its lock and its log. No link in it is followed, so that a run writes nowhere else."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from io import TextIOWrapper
from pathlib import Path

from spatialgears.errors import InputError, RunError
from spatialgears.runtime.files import cannot_write, not_regular, open_regular, read_regular
from spatialgears.runtime.logs import PlainFormatter

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunFolder:
    """Names inside a run's folder."""

    root: Path

    @property
    def manifest(self) -> Path:
        """Inputs, configuration and versions of the run."""
        return self.root / "run.json"

    @property
    def checkpoints(self) -> Path:
        """State of unfinished training."""
        return self.root / "checkpoints"

    @property
    def model(self) -> Path:
        """The fitted model."""
        return self.root / "model"

    @property
    def cells(self) -> Path:
        """The cells with their places."""
        return self.root / "cells.h5ad"

    @property
    def places(self) -> Path:
        """The places alone, as a table."""
        return self.root / "places.csv"

    @property
    def report(self) -> Path:
        """The report."""
        return self.root / "report.html"

    @property
    def imputed(self) -> Path:
        """Genes predicted at the spots, where they were asked for."""
        return self.root / "imputed.h5ad"

    @property
    def abundance(self) -> Path:
        """Cells of each type at the spots, where they were asked for."""
        return self.root / "abundance.h5ad"

    @property
    def results(self) -> list[Path]:
        """What a run is for."""
        return [self.cells, self.places, self.report]

    @property
    def made(self) -> list[Path]:
        """All that a run may write as a result, also what is made on request only."""
        return [*self.results, self.imputed, self.abundance]

    def warnings(self) -> list[str]:
        """The run's warnings, as its manifest has them."""
        found: list[str] = json.loads(read_regular(self.manifest)).get("warnings", [])
        return found

    @property
    def log(self) -> Path:
        """What happened when."""
        return self.root / "run.log"

    def require_plain(self) -> None:
        """Refuse links, pipes and devices where the run has files and folders."""
        for path in (self.manifest, self.log, *self.made):
            _require(path, stat.S_ISREG)
        for folder in (self.checkpoints, self.model):
            _require(folder, stat.S_ISDIR)
            for path in folder.iterdir() if folder.exists() else ():
                _require(path, stat.S_ISREG)


def _require(path: Path, kind: Callable[[int], bool]) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not kind(mode):
        raise not_regular(path)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder for one process; the lock goes with the process, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = open_regular(folder / ".lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise InputError(
            f"Cannot write to {folder}: {error.strerror}.", "Choose another folder with -o."
        ) from None
    with os.fdopen(handle, "rb"):
        if fcntl is None or not _lock(handle, folder):
            logger.warning("There are no file locks here: do not start a second run in %s.", folder)
        yield


def _lock(handle: int, folder: Path) -> bool:
    """Lock a file, unless its file system knows no locks; one that is locked is refused."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
            raise RunError(
                f"Another run is at work in {folder}. Wait for it to end, or choose another folder with -o."
            ) from None
        return False
    return True


class _LogFile(logging.FileHandler):
    """A file whose failure, as on a full disk, does not stop the run: what matters is said elsewhere, too."""

    def _open(self) -> TextIOWrapper:
        handle = open_regular(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        if os.fstat(handle).st_nlink > 1:  # the same file under a name elsewhere
            os.close(handle)
            raise not_regular(self.baseFilename)
        return os.fdopen(handle, "a", encoding=self.encoding, errors=self.errors)

    def handleError(self, record: logging.LogRecord) -> None:
        """Continue without this line."""

    def close(self) -> None:
        """Close, whether or not the last lines could be written."""
        with suppress(OSError):
            super().close()


class _Onward(logging.Handler):
    """Hands records to the handlers above the package's logger."""

    def emit(self, record: logging.LogRecord) -> None:
        above = logging.getLogger("spatialgears").parent
        if above is not None:
            above.handle(record)


@contextmanager
def logged(path: Path) -> Iterator[None]:
    """Append what the package logs to a file, and the error that ends the run.

    The file gets more than the console, which shows what it would have shown anyway.
    """
    package = logging.getLogger("spatialgears")
    try:
        handler = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise cannot_write(path, error) from error
    onward = _Onward(package.getEffectiveLevel())
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(message)s"))
    before, propagate = package.level, package.propagate
    package.addHandler(handler)
    if propagate:
        package.addHandler(onward)
        package.propagate = False
    package.setLevel(min(package.getEffectiveLevel(), logging.INFO))
    try:
        logger.info("started %s", datetime.now().isoformat(timespec="seconds"))
        yield
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            logger.info("stopped from outside")
        else:
            logger.info("stopped by %s: %s", type(error).__name__, error)
        raise
    finally:
        package.removeHandler(handler)
        package.removeHandler(onward)
        package.propagate = propagate
        package.setLevel(before)
        handler.close()
