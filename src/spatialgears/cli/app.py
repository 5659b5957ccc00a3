"""The application: its commands, and how errors become exit codes.

0: fine; 1: something unexpected; 2: bad input or usage; 130: interrupted.
"""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer

from spatialgears._version import __version__
from spatialgears.cli.answers import abundance, export, impute, transfer
from spatialgears.cli.bench import bench
from spatialgears.cli.check import check
from spatialgears.cli.evaluate import evaluate
from spatialgears.cli.help import Command, Group
from spatialgears.cli.run import demo, fit, reconstruct, report, run
from spatialgears.cli.simulate import simulate
from spatialgears.errors import GearsError, InputError, RunError
from spatialgears.runtime.logs import PlainFormatter
from spatialgears.text import plain

_FORMAT = warnings.formatwarning
#: What a disk says that is full.
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

app = typer.Typer(
    name="gears",
    cls=Group,
    help="Predict where in the tissue dissociated single cells came from, using spatial transcriptomics slides.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_ANSWERS = (transfer, impute, abundance, export)
for command in (demo, check, run, fit, reconstruct, report, *_ANSWERS, evaluate, simulate, bench):
    app.command(cls=Command)(command)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gears {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show more of what is done.")] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error (also after the command).")
    ] = False,
) -> None:
    level = logging.DEBUG if debug else logging.INFO if verbose else logging.WARNING
    shown = logging.StreamHandler(sys.stderr)
    shown.setFormatter(PlainFormatter("%(levelname)s: %(message)s"))
    logging.basicConfig(handlers=[shown], level=logging.WARNING, force=True)
    logging.getLogger("spatialgears").setLevel(level)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and leave with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    # notebooks hand on a backend of their own, which may not be installed here
    os.environ["MPLBACKEND"] = "Agg"
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads sleep: runs side by side do not stall
    _open_closed_streams()
    warnings.formatwarning = lambda *given, **named: plain(_FORMAT(*given, **named))  # names steer terminals
    for stream in (sys.stdout, sys.stderr):  # names may hold what the terminal's encoding does not
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    given = [*(["--debug"] if debug else []), *(one for one in given if one != "--debug")]
    try:
        try:
            app(args=given, prog_name="gears")
        finally:
            sys.stdout.flush()  # now, and not when nobody can say any more that it failed
    except Exception as error:
        if debug:
            raise
        raise SystemExit(_explain(error, as_json="--json" in given)) from None


def _open_closed_streams() -> None:
    """Put nothing where standard streams are closed: the next file to be opened would become one, and be written to."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        with suppress(OSError):
            os.fstat(number)
            continue
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
        setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))


def _explain(error: Exception, *, as_json: bool) -> int:
    """Tell of an error on standard error, for machines also as JSON on standard output; the exit code."""
    if isinstance(error, OSError) and error.filename is None and error.errno in (*NO_ROOM, errno.EIO):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left there is not tried again
        error = RunError(
            f"Standard output could not be written: {error.strerror}. Free some space where it goes; files that were "
            "complete are as they were."
        )
    if isinstance(error, OSError) and error.filename is not None:
        error = InputError(
            f"{str(error.filename)[:200]} cannot be used: {error.strerror}.",
            "Check the path and the rights to it.",
        )
    elif isinstance(error, MemoryError):
        error = RunError(
            "Memory ran out. Use a larger machine, fewer cells, fewer genes (--set expression.n_genes=500), or "
            "--preset quick; `gears check` tells what a run takes."
        )
    known = isinstance(error, GearsError)
    text = str(error) if known else plain(f"unexpected {type(error).__name__}: {error}")
    with suppress(OSError):  # nobody listens
        typer.echo(f"Error: {text}", err=True)
        if not known:
            typer.echo("  This should not happen. Run again with --debug to see where it did.", err=True)
    with suppress(OSError):
        if as_json:
            typer.echo(json.dumps({"error": text}))
    return 2 if isinstance(error, InputError) else 1
