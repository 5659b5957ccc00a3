"""What can place cells: our presets, simple references, and the peers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spatialgears._version import __version__
from spatialgears.bench.peers import COMMON, PEERS, Peer, PeerOptions
from spatialgears.bench.presets import changes, configured, same_method, title
from spatialgears.config import Config
from spatialgears.errors import InputError

PRESETS = ("quick", "default", "paper", "paper-small")

if TYPE_CHECKING:
    from anndata import AnnData

    from spatialgears.bench.files import TaskFiles


@dataclass(frozen=True)
class Method:
    """A method that places cells, run by :mod:`spatialgears.bench.worker`."""

    #: For tables; the kind is ``"ours"``, ``"other"``, ``"reference"`` or ``"peer"``.
    name: str
    kind: str
    #: ``module:function`` or ``file.py:function``, called as ``place(slides, cells, seed=..., **options)``.
    entry: str
    #: Passed to the function; JSON must be able to hold them.
    options: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    seeded: bool = True  # False if the seed has no effect
    sees_truth: bool = False  # whether it is given true positions: a ceiling, never the best of a table

    def identity(self) -> list[Any]:
        """What determines its results, for the key of a row."""
        parts = [self.name, self.entry, dict(self.options), self.sees_truth, __version__]
        own = Path(self.entry.rpartition(":")[0])
        if own.suffix == ".py" and own.is_file():
            parts.append(own.read_text(encoding="utf-8"))
        return parts

    def gave(self, row: Mapping[str, Any]) -> bool:
        """Whether this method, as it is now, would give a row that is kept under its key."""
        return True

    def command(self, files: TaskFiles, *, seed: int, out: Path) -> list[str]:
        """The command that places the cells and writes ``coords.npy`` to ``out``."""
        if self.sees_truth and files.truth is None:
            raise InputError("needs true positions, and the task has none")
        job = {
            "entry": self.entry,
            "options": dict(self.options),
            "seed": seed,
            "out": str(out),
            "slides": [str(path) for path in files.slides],
            "cells": str(files.cells),
            "truth": str(files.truth) if self.sees_truth else None,
        }
        return [sys.executable, "-m", "spatialgears.bench.worker", files.write_job(job)]


@dataclass(frozen=True)
class Ours(Method):
    """Our own method: a preset, with the user's changes."""

    config: Config = field(kw_only=True)

    def identity(self) -> list[Any]:
        """The preset's name, what was changed, and the version."""
        preset = self.options["preset"]
        return ["GEARS", preset, changes(self.config, preset), __version__]

    def gave(self, row: Mapping[str, Any]) -> bool:
        """Whether the row was measured with the values that the preset has now."""
        stored = row["info"].get("config")  # a run that failed stored none
        return stored is None or same_method(self.config, stored)


@dataclass(frozen=True)
class PeerMethod(Method):
    """A method of another group, run by its runner in an environment of its own."""

    peer: Peer = field(kw_only=True)
    setup: PeerOptions = field(kw_only=True)

    def identity(self) -> list[Any]:
        """The runner, the code that runners share, and the pinned requirements; or why it has none."""
        if self.peer.not_run:
            return [self.name, self.peer.not_run]
        files = (self.peer.runner, COMMON, self.peer.requirements)
        return [self.name, *(file.read_text(encoding="utf-8") for file in files)]

    def command(self, files: TaskFiles, *, seed: int, out: Path) -> list[str]:
        """The runner with its job; the environment is created on first use."""
        source = self.setup.source_of(self.peer)
        python = self.setup.interpreter(self.peer)
        spots, cells, types = files.peer_pair
        job = {
            "spots": str(spots),
            "cells": str(cells),
            "types": types if self.peer.needs_types else "",
            "seed": seed,
            "out": str(out),
            "source": str(source) if source else "",
            "packages": self.peer.packages,
        }
        return [str(python), str(self.peer.runner), files.write_job(job)]


def gears(
    slides: list[AnnData], cells: AnnData, *, seed: int, preset: str = "default", values: Iterable[str] = ()
) -> dict[str, Any]:
    """Our method with a preset and ``stage.key=value`` changes, through the public class."""
    import os

    import numpy as np

    from spatialgears.model import GEARS

    threads = os.environ.get("OMP_NUM_THREADS", "0")
    config = Config.preset(preset).with_values([f"threads={threads}", *values, f"seed={seed}"])
    model = GEARS(config).fit(slides=slides, cells=cells)
    placed = model.reconstruct(cells)
    info = {"config": config.model_dump(mode="json"), "status": placed.status, "warnings": placed.warnings}
    info["filled"] = placed.diagnostics["spacing"]  # share of the way to an even filling
    result = {"coords": placed.coords, "radius50": placed.radius50, "radius90": placed.radius90, "info": info}
    if len(placed.samples):
        result["one sample"] = placed.samples[0]
    if confidence := model.fitted_.confidence:  # radii of other levels, in units of the 90% radius
        levels = np.arange(0.1, 1.0, 0.1).round(1)
        quantiles = [confidence.quantile(level) / confidence.quantile(0.9) for level in levels]
        result["levels"] = np.column_stack([levels, quantiles])
    return result


def _reference(name: str, function: str, note: str, **more: Any) -> Method:
    return Method(name, "reference", f"spatialgears.bench.references:{function}", note=note, **more)


_WEIGHTED = "standardised genes, weighted by sqrt of Moran's I"
REFERENCES = {
    method.name: method
    for method in (
        _reference("random", "random_places", "random spots"),
        _reference("kNN on PCA", "knn", "standardised genes", options={"weights": "none"}, seeded=False),
        _reference("kNN on weighted PCA", "knn", _WEIGHTED, options={"weights": "moran"}, seeded=False),
        _reference("MLP with thinning", "thinned_mlp", "from spot expression to coordinates"),
        _reference("supervised", "supervised", "trained on true positions of other cells", sees_truth=True),
    )
}


def ours(preset: str = "default", values: Sequence[str] = ()) -> Ours:
    """Our method in a preset, with the user's ``stage.key=value`` changes."""
    config = configured(preset, values)
    options = {"preset": preset, "values": list(values)}
    return Ours(f"GEARS {title(preset, config)}", "ours", f"{__name__}:gears", options, config=config)


def peer_method(name: str, setup: PeerOptions) -> PeerMethod:
    """The peer of that name."""
    peer = PEERS[name]
    note = "places types" if peer.places == "types" else ""
    return PeerMethod(
        peer.title, "peer", str(peer.runner), note=note, seeded=peer.seeded, peer=peer, setup=setup
    )


def choose(names: Iterable[str], setup: PeerOptions, *, values: Sequence[str] = ()) -> list[Method]:
    """Methods by name: presets (``quick``, ``default``, ``paper``), references, peers, or your own.

    ``references`` and ``peers`` stand for all of their kind, ``file.py:function`` for any function with the signature
    that :class:`Method` describes. ``values`` are applied to each preset; without a preset they are refused.
    """
    chosen = {method.name: method for name in names for method in _named(name, setup, values)}
    if values and not any(method.kind == "ours" for method in chosen.values()):
        raise InputError(
            f"--set changes our presets, and {', '.join(chosen)} is none.",
            f"Add -m {' or -m '.join(PRESETS)}.",
        )
    return list(chosen.values())


def _named(name: str, setup: PeerOptions, values: Sequence[str]) -> list[Method]:
    if name in PRESETS:
        return [ours(name, values)]
    if name == "references":
        return list(REFERENCES.values())
    if name == "peers":
        return [peer_method(peer, setup) for peer in PEERS]
    if name in REFERENCES:
        return [REFERENCES[name]]
    if name in PEERS:
        return [peer_method(name, setup)]
    if ".py:" in name:
        path, _, function = name.rpartition(":")
        return [Method(f"{Path(path).stem}:{function}", "other", f"{Path(path).resolve()}:{function}")]
    known = [*PRESETS, "references", "peers", *REFERENCES, *PEERS]
    raise InputError(
        f"There is no method {name!r}.", f"Choose from {', '.join(known)}, or give file.py:function."
    )
