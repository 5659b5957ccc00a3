"""A run's folder: its names, its lock, its log, and the digests of what lies in it."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from spatialgears.errors import InputError, RunError
from spatialgears.runtime.files import cannot_write

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
    def results(self) -> list[Path]:
        """What a run is for."""
        return [self.cells, self.places, self.report]

    def warnings(self) -> list[str]:
        """What the run found odd, as its manifest tells."""
        told: list[str] = json.loads(self.manifest.read_text(encoding="utf-8")).get("warnings", [])
        return told

    @property
    def log(self) -> Path:
        """What happened when."""
        return self.root / "run.log"


def fingerprint(path: str | Path) -> str:
    """SHA-256 of a file, or of the names and contents of all files of a folder."""
    path = Path(path).expanduser()
    digest = hashlib.sha256()
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
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder for one process; the lock goes with the process, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / ".lock").open("w")
    except OSError as error:
        raise InputError(
            f"Cannot write to {folder}: {error.strerror}.", "Choose another folder with -o."
        ) from None
    with stream:
        if fcntl is None:
            logger.warning("This system has no file locks: do not start a second run in %s.", folder)
            yield
            return
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(
                f"Another run is at work in {folder}. Wait for it to end, or choose another folder with -o."
            ) from None
        yield


class _LogFile(logging.FileHandler):
    """A file whose failure, as on a full disk, does not stop the run: what matters there is told elsewhere."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Go on without this line."""

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
    """Append what the package logs to a file; an error that ends the run is noted too.

    The file gets more than the console does, which is told only what it would have been told anyway.
    """
    package = logging.getLogger("spatialgears")
    try:
        handler = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise cannot_write(path, error) from error
    onward = _Onward(package.getEffectiveLevel())
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
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
