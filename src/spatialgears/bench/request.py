"""What can be asked of ``gears bench``, and what an experiment is and returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spatialgears.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from spatialgears.bench.harness import Limits
    from spatialgears.bench.methods import PeerMethod
    from spatialgears.config import Config

_DATA, _PEERS, _LIMITS, _SPEED = "Your own data", "Peers", "Limits of each run", "Speed"
#: Called with one line of text for each finished run.
Tell = Callable[[str], None]


def _option(*names: str, metavar: str = "", panel: str | None = None, text: str, **more: Any) -> Any:
    return typer.Option(*names, metavar=metavar, rich_help_panel=panel, help=text, **more)


@dataclass(frozen=True)
class Request:
    """The options of ``gears bench``, one field each.

    An experiment names the fields that it uses, and the command refuses all other options.
    """

    out: Annotated[
        Path,
        _option("--output", "--out", "-o", metavar="FOLDER", text="Folder for rows, tables and figures."),
    ] = Path("gears-bench")
    data: Annotated[
        Path | None,
        _option("--data", metavar="FOLDER", text="Folder with the public data sets ($SPATIALGEARS_DATA)."),
    ] = None
    simulated: Annotated[bool, _option("--simulated", text="Use simulated tissue, not data files.")] = False
    method: Annotated[
        list[str], _option("--method", "-m", metavar="NAME", text="Preset or method to run; repeatable.")
    ] = field(default_factory=list)
    values: Annotated[
        list[str],
        _option(
            "--set", metavar="STAGE.KEY=VALUE", text="Change a value of every preset that runs; repeatable."
        ),
    ] = field(default_factory=list)
    task: Annotated[
        list[str],
        _option("--task", metavar="TEXT", text="Run only tasks whose name contains this text; repeatable."),
    ] = field(default_factory=list)
    seeds: Annotated[int, _option("--seeds", metavar="N", min=1, max=100, text="Number of seeds.")] = 3
    retry: Annotated[bool, _option("--retry", text="Repeat runs that failed before.")] = False
    st: Annotated[list[str], _option("--st", metavar="PATH", panel=_DATA, text="A slide; repeatable.")] = (
        field(default_factory=list)
    )
    sc: Annotated[str | None, _option("--sc", metavar="PATH", panel=_DATA, text="The cells.")] = None
    types: Annotated[
        str | None, _option("--types", metavar="COLUMN", panel=_DATA, text="Column with cell types.")
    ] = None
    known: Annotated[
        str | None,
        _option("--known", metavar="COLUMN", panel=_DATA, text="Column with the known layer of each cell."),
    ] = None
    order: Annotated[
        str | None,
        _option("--order", metavar="L1,L2,...", panel=_DATA, text="The layers from top to bottom."),
    ] = None
    sizes: Annotated[
        str | None, _option("--sizes", metavar="N,N,...", panel=_SPEED, text="Numbers of cells.")
    ] = None
    against: Annotated[
        str | None,
        _option(
            "--against",
            metavar="PATH|REF",
            panel=_SPEED,
            text="Earlier version to compare with: a source tree or a git ref.",
        ),
    ] = None
    pairs: Annotated[
        int, _option("--pairs", metavar="N", min=1, panel=_SPEED, text="How often to repeat, in alternation.")
    ] = 1
    time_limit: Annotated[
        float, _option("--time-limit", metavar="MINUTES", panel=_LIMITS, text="Longest time of a run.")
    ] = 60.0
    memory_limit: Annotated[
        float, _option("--memory-limit", metavar="GB", panel=_LIMITS, text="Most memory of a run.")
    ] = 16.0
    threads: Annotated[
        int,
        _option("--threads", metavar="N", min=0, panel=_LIMITS, text="Threads of a run; 0: the run chooses."),
    ] = 1
    peer_source: Annotated[
        list[str],
        _option(
            "--peer-source",
            metavar="NAME=DIR",
            panel=_PEERS,
            text="Source folder of a peer that is not on PyPI.",
        ),
    ] = field(default_factory=list)
    peer_cache: Annotated[
        Path | None,
        _option("--peer-cache", metavar="FOLDER", panel=_PEERS, text="Folder for the peers' environments."),
    ] = None
    accept_licence: Annotated[
        list[str], _option("--accept-licence", metavar="NAME", panel=_PEERS, text="Accept a peer's licence.")
    ] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Refuse two kinds of data at once."""
        given = {"your own files": self.st or self.sc, "--data": self.data, "--simulated": self.simulated}
        if len(found := [name for name, value in given.items() if value]) > 1:
            raise InputError(f"Expected one kind of data, found {' and '.join(found)}.", "Choose one.")

    @property
    def limits(self) -> Limits:
        """What each run may use."""
        from spatialgears.bench.harness import Limits

        return Limits(self.time_limit * 60, self.memory_limit, self.threads)

    def preset(self, default: str = "default") -> str:
        """The one preset that was asked for."""
        if len(self.method) > 1:
            raise InputError(
                f"Expected one --method, found {len(self.method)}.", "Run the experiment once for each."
            )
        return self.method[0] if self.method else default

    def preset_and_peers(self, default: str) -> tuple[str, list[PeerMethod]]:
        """The one preset that was asked for, and the peers to run beside it."""
        from spatialgears.bench.methods import peer_method
        from spatialgears.bench.peers import PEERS, PeerOptions

        setup = PeerOptions.given(self.peer_cache, self.peer_source, self.accept_licence)
        others = [name for name in self.method if name not in PEERS]
        chosen = replace(self, method=others).preset(default)
        return chosen, [peer_method(name, setup) for name in self.method if name in PEERS]

    def config(self, preset: str) -> Config:
        """A preset with the changes and threads that were asked for."""
        from spatialgears.bench.presets import configured

        return configured(preset, self.values).with_values([f"threads={self.threads}"])


@dataclass(frozen=True)
class Outcome:
    """What an experiment found."""

    text: str  # its tables, as Markdown
    found: Any  # the same for machines: anything that JSON can hold
    figures: Mapping[str, Figure] = field(default_factory=dict)  # figures by file name


@dataclass(frozen=True)
class Experiment:
    """One experiment of ``gears bench``."""

    answers: str  # what it shows, in a line
    options: frozenset[str]  # the fields of :class:`Request` that it uses, beside ``out``
    run: Callable[[Request, Tell], Outcome]  # runs it
