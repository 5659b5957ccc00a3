"""One folder, all of it: check, fit, reconstruct, self-check and report, going on after any interruption.

A step is done when its result stands under its final name, and every file is written whole or not at all, so a run that
was stopped at any moment goes on from the last checkpoint and ends as it would have.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spatialgears import store
from spatialgears.config import Config
from spatialgears.engine import Progress, silent, write_atomic
from spatialgears.errors import RunError

if TYPE_CHECKING:
    from anndata import AnnData

    from spatialgears.model import GEARS

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
    def report(self) -> Path:
        """The report."""
        return self.root / "report.html"

    @property
    def log(self) -> Path:
        """What happened when."""
        return self.root / "run.log"


@dataclass(frozen=True)
class RunInputs:
    """Where the inputs are, how to read them, and how they are to be understood.

    ``options`` names what else decides how ``read`` understands them; paths are known by their contents.
    """

    st: Sequence[str]
    sc: str
    read: Callable[[], tuple[list[AnnData], AnnData]]
    spatial_key: str = "spatial"
    normalised: bool = False
    command: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


def run(inputs: RunInputs, folder: str | Path, config: Config, *, progress: Progress = silent) -> RunFolder:
    """Do everything that is not done yet in a run folder.

    Parameters
    ----------
    inputs
        The slides and the cells.
    folder
        Made if it is not there. A folder of other inputs or another configuration is refused.
    config
        Decides the result.
    progress
        Called along the way.
    """
    from spatialgears.model import GEARS
    from spatialgears.summary import write_summary
    from spatialgears.validate import validate_inputs

    out = RunFolder(Path(folder))
    _refuse_strangers(out)
    with locked(out.root), logged(out.log):
        slides, cells = inputs.read()
        validate_inputs(
            slides,
            cells,
            spatial_key=inputs.spatial_key,
            normalised=inputs.normalised,
            names=[*inputs.st, inputs.sc],
        )
        _claim(out, inputs, config)
        if (out.model / "meta.json").exists():
            logger.info("the model is fitted already: %s", out.model)
            model = GEARS.load(out.model)
        else:
            model = _fit(slides, cells, out, inputs, config, progress)
        if out.cells.exists() and out.report.exists():
            logger.info("everything is done already")
            return out
        placed = model.reconstruct(cells, normalised=inputs.normalised, progress=progress)
        from spatialgears.io import write_h5ad

        write_h5ad(placed.to_adata(cells, copy=True), out.cells)
        write_summary(
            out.report,
            model,
            placed,
            cells=cells,
            slides=slides,
            names=inputs.st,
            spatial_key=inputs.spatial_key,
            command=inputs.command,
        )
        store.remove(out.checkpoints)
        logger.info("done")
    return out


def _fit(
    slides: list[AnnData],
    cells: AnnData,
    out: RunFolder,
    inputs: RunInputs,
    config: Config,
    progress: Progress,
) -> GEARS:
    from spatialgears.model import GEARS

    model = GEARS(config).fit(
        slides,
        cells,
        spatial_key=inputs.spatial_key,
        normalised=inputs.normalised,
        names=[*inputs.st, inputs.sc],
        checkpoint=out.checkpoints,
        progress=progress,
    )
    store.remove(out.model)
    model.save(out.model)
    return model


def _refuse_strangers(out: RunFolder) -> None:
    """Refuse a folder of someone else's files before anything is written to it."""
    if out.manifest.exists() or not out.root.is_dir():
        return
    strangers = [p.name for p in out.root.iterdir() if p.name != out.log.name and not p.name.startswith(".")]
    if strangers:
        raise RunError(
            f"{out.root} is not empty and not a run's folder (it holds {', '.join(sorted(strangers)[:5])}). "
            "Choose a new or empty folder with -o."
        )


def _claim(out: RunFolder, inputs: RunInputs, config: Config) -> None:
    """Write the manifest of a new run, or refuse a folder that belongs to another one."""
    manifest: dict[str, Any] = {
        "inputs": {path: fingerprint(path) for path in [*inputs.st, inputs.sc]},
        "reading": {
            "spatial_key": inputs.spatial_key,
            "normalised": inputs.normalised,
            **_known(inputs.options),
        },
        "config": config.model_dump(mode="json"),
        "versions": store.versions(),
        "command": inputs.command,
    }
    if not out.manifest.exists():
        write_atomic(out.manifest, json.dumps(manifest, indent=1) + "\n")
        return
    try:
        before = json.loads(out.manifest.read_text())
    except ValueError:
        raise RunError(f"{out.manifest} is damaged. Delete {out.root} and run again.") from None
    differences = _differences(before, manifest)
    if differences:
        raise RunError(
            f"{out.root} belongs to another run:\n  - "
            + "\n  - ".join(differences)
            + "\nNothing was changed. Choose "
            "another folder with -o, or delete this one."
        )
    logger.info("going on in %s", out.root)


def _known(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as JSON holds them, with the digest of every file they name."""
    named = [text for value in options.values() for text in (value if isinstance(value, list) else [value])]
    files = {path: fingerprint(path) for path in named if isinstance(path, str) and Path(path).is_file()}
    return {**options, "files": files}


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    found = []
    if list(before.get("inputs", {}).values()) != list(now["inputs"].values()):
        found.append(
            f"its inputs were {', '.join(before.get('inputs', {}))}, with other contents or in another order"
        )
    if before.get("reading") != now["reading"]:
        found.append(f"it was read with {before.get('reading')}, now {now['reading']}")
    was, wanted = before.get("config", {}), now["config"]
    for section, values in wanted.items():
        if not isinstance(values, dict):
            if was.get(section) != values:
                found.append(f"{section} was {was.get(section)}, now {values}")
            continue
        earlier = was.get(section, {})
        found += [
            f"{section}.{key} was {earlier.get(key)}, now {value}"
            for key, value in values.items()
            if earlier.get(key) != value
        ]
    if before.get("versions", {}).get("spatialgears") != now["versions"]["spatialgears"]:
        found.append(f"it was made by spatialgears {before.get('versions', {}).get('spatialgears')}")
    return found


def fingerprint(path: str | Path) -> str:
    """SHA-256 of a file, or of the names and contents of all files of a folder."""
    path = Path(path).expanduser()
    digest = hashlib.sha256()
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    for file in files:
        digest.update(str(file.relative_to(path)).encode())
        with file.open("rb") as stream:
            while block := stream.read(2**22):
                digest.update(block)
    return digest.hexdigest()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder for one process; the lock goes with the process, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / ".lock").open("w")
    except OSError as error:
        raise RunError(
            f"Cannot write to {folder}: {error.strerror}. Choose another folder with -o."
        ) from None
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(
                f"Another run is at work in {folder}. Wait for it to end, or choose another folder with -o."
            ) from None
        yield


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
    handler, onward = logging.FileHandler(path, encoding="utf-8"), _Onward(package.getEffectiveLevel())
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
        logger.info("stopped by %s: %s", type(error).__name__, error)
        raise
    finally:
        package.removeHandler(handler)
        package.removeHandler(onward)
        package.propagate = propagate
        package.setLevel(before)
        handler.close()
