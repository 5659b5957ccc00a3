"""Methods of other groups (peers), and the environments that they run in.

Their requirements conflict with ours and with each other's. So each peer is a folder with a ``runner.py`` (``common.py``
says what a runner does) and pinned ``requirements.txt``, or the name of another folder whose requirements serve it, too.
It runs in the environment of these requirements, which is created on first use and kept.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spatialgears.errors import InputError

logger = logging.getLogger(__name__)
HERE = Path(__file__).parent
COMMON = HERE / "common.py"
PYTHON = (3, 11)


@dataclass(frozen=True)
class Peer:
    """One peer.

    Attributes
    ----------
    name, title
        Its folder and name on the command line; the name that its authors gave it.
    packages
        Distributions whose versions a row records.
    licence
        As its authors state it.
    places
        ``"cells"``, or ``"types"`` if every cell gets the expected position of its type.
    needs_types
        Whether it uses cell types: given ones, or clusters.
    home
        Where it is published. Peers that are not on PyPI run from a folder that the user gives.
    on_pypi, must_accept
        Whether pip can install it; whether the user must accept its licence by name.
    seeded
        False if it has no randomness.
    environment
        The folder whose requirements it runs with; its own by default.
    program
        A program that must be on the machine, and what to install for it.
    not_run
        Why it has no adapter. Its rows state this reason.
    """

    name: str
    title: str
    packages: tuple[str, ...]
    licence: str
    home: str
    places: str = "cells"
    needs_types: bool = False
    on_pypi: bool = True
    must_accept: bool = False
    seeded: bool = True
    environment: str = ""
    program: tuple[str, str] = ("", "")
    not_run: str = ""

    @property
    def runner(self) -> Path:
        """The script that runs in the peer's environment."""
        return HERE / self.name / "runner.py"

    @property
    def requirements(self) -> Path:
        """The pinned requirements."""
        return HERE / (self.environment or self.name) / "requirements.txt"


def _from_source(name: str, title: str, licence: str, home: str, *, needs_types: bool = False) -> Peer:
    """A peer that runs from its repository, in the environment that those built on torch share."""
    return Peer(
        name,
        title,
        ("torch",),
        licence,
        home,
        needs_types=needs_types,
        on_pypi=False,
        environment="with_torch",
    )


PEERS = {
    peer.name: peer
    for peer in (
        Peer("tangram", "Tangram", ("tangram-sc", "torch"), "BSD-3-Clause", "pypi.org/project/tangram-sc"),
        Peer(
            "novosparc", "novoSpaRc", ("novosparc", "pot"), "MIT", "pypi.org/project/novosparc", seeded=False
        ),
        Peer("stem", "STEM", ("scSTEM", "torch"), "not stated", "pypi.org/project/scSTEM"),
        Peer("celery", "CeLEry", ("CeLEryPy", "torch"), "MIT", "pypi.org/project/CeLEryPy"),
        Peer(
            "celery_region",
            "CeLEry regions",
            ("CeLEryPy", "torch"),
            "MIT",
            "pypi.org/project/CeLEryPy",
            environment="celery",
        ),
        Peer(
            "moscot",
            "moscot",
            ("moscot", "ott-jax", "jax"),
            "BSD-3-Clause",
            "pypi.org/project/moscot",
            seeded=False,
        ),
        Peer(
            "cell2location",
            "cell2location",
            ("cell2location", "scvi-tools", "pyro-ppl", "torch"),
            "Apache-2.0",
            "pypi.org/project/cell2location",
            places="types",
            needs_types=True,
        ),
        Peer(
            "stereoscope",
            "Stereoscope",
            ("scvi-tools", "torch"),
            "BSD-3-Clause",
            "pypi.org/project/scvi-tools",
            places="types",
            needs_types=True,
        ),
        Peer(
            "destvi",
            "DestVI",
            ("scvi-tools", "torch"),
            "BSD-3-Clause",
            "pypi.org/project/scvi-tools",
            places="types",
            needs_types=True,
            environment="stereoscope",
        ),
        Peer(
            "gimvi",
            "gimVI",
            ("scvi-tools", "torch"),
            "BSD-3-Clause",
            "pypi.org/project/scvi-tools",
            environment="stereoscope",
        ),
        Peer("spaotsc", "SpaOTsc", ("pot",), "MIT", "github.com/zcang/SpaOTsc", on_pypi=False),
        _from_source("scspace", "scSpace", "GPL-3.0", "github.com/ZJUFanLab/scSpace"),
        _from_source("come", "COME", "none", "github.com/cindyway/COME", needs_types=True),
        _from_source("cellcontrast", "CellContrast, 500 epochs", "MIT", "github.com/HKU-BAL/CellContrast"),
        _from_source("celloc", "Celloc", "MIT", "github.com/wwYinYin/Celloc"),
        _from_source("luna", "LUNA, 300 epochs", "MIT", "github.com/mlbio-epfl/LUNA"),
        _from_source("sagenet", "SageNet", "MIT", "github.com/MarioniLab/sagenet"),
        Peer(
            "isort",
            "iSORT",
            ("isortpy", "torch"),
            "GPL-3.0",
            "pypi.org/project/isortpy",
            environment="with_torch",
        ),
        Peer("envi", "ENVI, 1,000 steps", ("scenvi", "jax"), "MIT", "pypi.org/project/scenvi"),
        Peer("sc2spa", "SC2Spa", ("SC2Spa", "tensorflow_cpu"), "BSD-3-Clause", "pypi.org/project/SC2Spa"),
        Peer(
            "tangram_tuned",
            "Tangram, tuned",
            ("tangram-sc", "torch"),
            "BSD-3-Clause",
            "pypi.org/project/tangram-sc",
            environment="tangram",
        ),
        Peer(
            "novosparc_tuned",
            "novoSpaRc, tuned",
            ("novosparc", "pot"),
            "MIT",
            "pypi.org/project/novosparc",
            environment="novosparc",
            seeded=False,
        ),
        *(
            Peer(
                f"spaotsc_{kind}",
                title,
                ("pot",),
                "MIT",
                "github.com/zcang/SpaOTsc",
                on_pypi=False,
                environment="spaotsc",
            )
            for kind, title in (("logs", "SpaOTsc, logs"), ("tuned", "SpaOTsc, tuned"))
        ),
        Peer(
            "seurat",
            "Seurat",
            (),
            "MIT",
            "packages.debian.org/r-cran-seurat",
            environment="novosparc",
            program=("Rscript", "R with the package Seurat 4 (on Debian: r-cran-seurat)"),
            seeded=False,
        ),
        Peer(
            "rctd",
            "RCTD",
            ("rctd-py", "torch"),
            "GPL-3.0",
            "pypi.org/project/rctd-py",
            places="types",
            needs_types=True,
            environment="with_torch",
            seeded=False,
        ),
        Peer(
            "spotlight",
            "SPOTlight",
            (),
            "GPL-3.0",
            "github.com/MarcElosua/SPOTlight",
            places="types",
            needs_types=True,
            on_pypi=False,
            environment="novosparc",
            program=("Rscript", "R with NMF, nnls, SingleCellExperiment and sparseMatrixStats"),
        ),
        Peer(
            "scholography",
            "scHolography",
            (),
            "GPL-3.0",
            "github.com/YiLab-SC/scHolography",
            on_pypi=False,
            not_run="needs the R packages keras, tensorflow and matchingR, which Debian does not have",
        ),
        Peer(
            "cytospace",
            "CytoSPACE",
            ("lapjv",),
            "non-commercial (Stanford)",
            "github.com/digitalcytometry/cytospace",
            needs_types=True,
            on_pypi=False,
            must_accept=True,
        ),
    )
}


def default_cache() -> Path:
    """Where environments are kept by default."""
    return Path.home() / ".cache" / "spatialgears" / "peers"


@dataclass(frozen=True)
class PeerOptions:
    """The user's options for peers.

    Attributes
    ----------
    cache
        Folder of the environments.
    sources
        Folder of each peer that is not on PyPI (``--peer-source NAME=DIR``).
    accepted
        Peers whose licence the user accepts (``--accept-licence NAME``).
    """

    cache: Path = field(default_factory=default_cache)
    sources: Mapping[str, Path] = field(default_factory=dict)
    accepted: tuple[str, ...] = ()

    @classmethod
    def given(cls, cache: Path | None, sources: Sequence[str], accepted: Sequence[str]) -> PeerOptions:
        """The options as the command line has them, with sources as ``NAME=DIR``."""
        folders = {}
        for text in sources:
            name, separator, folder = text.partition("=")
            if not separator or name not in PEERS:
                raise InputError(
                    f"--peer-source expects NAME=DIR with NAME one of {', '.join(PEERS)}, found {text!r}."
                )
            folders[name] = Path(folder)
        if unknown := [name for name in accepted if name not in PEERS]:
            raise InputError(f"There is no peer {', '.join(unknown)}.", f"Choose from {', '.join(PEERS)}.")
        return cls(cache or default_cache(), folders, tuple(accepted))

    def source_of(self, peer: Peer) -> Path | None:
        """The folder that a peer runs from (None if it needs none); refuses what cannot run, or is not accepted."""
        if peer.not_run:
            raise InputError(peer.not_run)
        program, package = peer.program
        if program and shutil.which(program) is None:
            raise InputError(f"needs {package}; {program} is not on this machine")
        if peer.on_pypi:
            return None
        if peer.must_accept and peer.name not in self.accepted:
            raise InputError(f"its licence is {peer.licence}: not run without --accept-licence {peer.name}")
        source = self.sources.get(peer.name)
        if source is None:
            raise InputError(f"not on PyPI: clone {peer.home} and give --peer-source {peer.name}=DIR")
        if not Path(source).is_dir():
            raise InputError(f"--peer-source {peer.name}={source} is not a folder")
        return Path(source).resolve()

    def interpreter(self, peer: Peer) -> Path:
        """The Python of the peer's environment, which is created from its requirements on first use."""
        digest = hashlib.sha256(peer.requirements.read_bytes()).hexdigest()[:10]
        home = self.cache.expanduser() / f"{peer.environment or peer.name}-{digest}"
        home.parent.mkdir(parents=True, exist_ok=True)
        stamp, python = home / "ready", home / "bin" / "python"
        with open(home.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another benchmark may be creating it
            if not stamp.exists():
                logger.info("creating the environment of %s in %s", peer.title, home)
                _make(home, peer.requirements)
                stamp.touch()
        return python


def _make(home: Path, requirements: Path) -> None:
    shutil.rmtree(home, ignore_errors=True)
    log = home.with_suffix(".log")
    with open(log, "w") as output:
        for command in (
            [_python(), "-m", "venv", str(home)],
            [
                str(home / "bin" / "python"),
                "-m",
                "pip",
                "install",
                "--disable-pip-version-check",
                "-r",
                str(requirements),
            ],
        ):
            if subprocess.run(command, stdout=output, stderr=subprocess.STDOUT).returncode:
                errors = [line for line in log.read_text().splitlines() if "ERROR" in line]
                raise InputError(
                    f"its environment could not be created: {(errors or ['see ' + str(log)])[0][:160]}"
                )


def _python() -> str:
    """A Python of the version that the requirements are pinned for."""
    name = f"python{PYTHON[0]}.{PYTHON[1]}"
    if sys.version_info[:2] == PYTHON:
        return getattr(sys, "_base_executable", sys.executable)
    found = shutil.which(name)
    if found is None:
        raise InputError(f"its environment needs {name}, which is not on this machine")
    return found


def peer_table() -> str:
    """Markdown table of the peers: licence, what they place, whether they need types, where they are published."""
    lines = ["| peer | licence | places | cell types | from |", "|---|---|---|---|---|"]
    for peer in PEERS.values():
        types = "needed" if peer.needs_types else "not used"
        lines.append(f"| {peer.title} | {peer.licence} | {peer.places} | {types} | {peer.home} |")
    return "\n".join(lines)
