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


class _Name:
    """A file or folder of a run, by its name in the run's folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: RunFolder, owner: type) -> Path:
        return folder.root / self.name


@dataclass(frozen=True)
class RunFolder:
    """Names inside a run's folder."""

    root: Path
    manifest = _Name("run.json")  # inputs, configuration and versions of the run
    checkpoints = _Name("checkpoints")  # state of unfinished training
    model = _Name("model")  # the fitted model
    cells = _Name("cells.h5ad")  # the cells with their places
    places = _Name("places.csv")  # the places alone, as a table
    report = _Name("report.html")
    imputed = _Name("imputed.h5ad")  # genes predicted at the spots, where they were asked for
    abundance = _Name("abundance.h5ad")  # cells of each type at the spots, where they were asked for
    log = _Name("run.log")  # what happened when

    @property
    def comparison(self) -> Path:
        """Which types lie elsewhere in two samples, where they were compared."""
        return self.root / "comparison.csv"

    @property
    def results(self) -> list[Path]:
        """What a run is for."""
        return [self.cells, self.places, self.report]

    @property
    def made(self) -> list[Path]:
        """All that a run may write as a result, also what is made on request only."""
        return [*self.results, self.imputed, self.abundance, self.comparison]

    def warnings(self) -> list[str]:
        """The run's warnings, as its manifest has them."""
        found: list[str] = json.loads(read_regular(self.manifest)).get("warnings", [])
        return found

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
