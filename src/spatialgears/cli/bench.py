"""``gears bench``: reads the options, refuses those that the experiment does not use, runs it, writes what it found."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Annotated, Any, get_type_hints

import typer

from spatialgears.bench.request import Experiment, Outcome, Request
from spatialgears.cli.options import Json
from spatialgears.errors import InputError

#: Options that every experiment takes.
_ALWAYS = {"experiment", "out", "as_json"}
_NAME = Annotated[str, typer.Argument(metavar="EXPERIMENT", help="Name of the experiment; see --list.")]
_LIST = Annotated[bool, typer.Option("--list", help="List experiments, methods and peers.")]


def bench(context: typer.Context, **given: Any) -> None:
    """Compare methods and versions. A benchmark that was interrupted continues; a run that fails is a row with its reason."""
    from spatialgears.bench.experiments import EXPERIMENTS

    name, listing, as_json = (given.pop(key) for key in ("experiment", "listing", "as_json"))
    if listing:
        _show(*_listed(EXPERIMENTS), as_json=as_json)
        return
    if name not in EXPERIMENTS:
        raise InputError(f"There is no experiment {name!r}.", f"Choose one of {', '.join(EXPERIMENTS)}.")
    _refuse_unused(context, name, EXPERIMENTS[name])
    request = Request(**{**given, "out": given["out"].expanduser()})
    outcome = EXPERIMENTS[name].run(request, lambda line: typer.echo(line, err=True))
    _write(name, outcome, request)
    _show(outcome.text, outcome.found, as_json=as_json)


def _signature() -> inspect.Signature:
    """The parameters of the command: the experiment, a :class:`Request` field by field, and how to show the outcome."""
    kind = inspect.Parameter.KEYWORD_ONLY
    hints = get_type_hints(Request, include_extras=True)
    parameters = [
        inspect.Parameter("context", kind, annotation=typer.Context),
        inspect.Parameter("experiment", kind, annotation=_NAME, default="quick"),
    ]
    for field in dataclasses.fields(Request):
        default = [] if field.default is dataclasses.MISSING else field.default
        parameters.append(inspect.Parameter(field.name, kind, annotation=hints[field.name], default=default))
    parameters += [
        inspect.Parameter("listing", kind, annotation=_LIST, default=False),
        inspect.Parameter("as_json", kind, annotation=Json, default=False),
    ]
    return inspect.Signature(parameters)


bench.__signature__ = _signature()  # type: ignore[attr-defined]  # typer reads the options from it


def _refuse_unused(context: typer.Context, name: str, experiment: Experiment) -> None:
    """Refuse by name every option on the command line that the experiment does not use."""
    flags = {option.name: option.opts[0] for option in context.command.params}
    given = {
        key for key in flags if (source := context.get_parameter_source(key)) and source.name == "COMMANDLINE"
    }
    if unused := [flag for key, flag in flags.items() if key in given - experiment.options - _ALWAYS]:
        used = ", ".join(flag for key, flag in flags.items() if key in experiment.options | {"out"})
        raise InputError(f"{name} does not use {' or '.join(unused)}.", f"Its options are {used}.")


def _write(name: str, outcome: Outcome, request: Request) -> None:
    request.out.mkdir(parents=True, exist_ok=True)
    (request.out / f"{name}.md").write_text(outcome.text, encoding="utf-8")
    for title, figure in outcome.figures.items():
        figure.savefig(request.out / f"{title}.png", dpi=150)


def _show(text: str, found: Any, *, as_json: bool) -> None:
    from spatialgears.cli.output import emit_json

    if as_json:
        emit_json(found)
    else:
        typer.echo(text)


def _listed(experiments: dict[str, Experiment]) -> tuple[str, Any]:
    """Experiments, methods and peers, as text and for machines."""
    from spatialgears.bench.methods import PRESETS, REFERENCES
    from spatialgears.bench.peers import PEERS, peer_table

    answers = {name: experiment.answers for name, experiment in experiments.items()}
    methods = {"presets": list(PRESETS), "references": list(REFERENCES), "peers": list(PEERS)}
    lines = ["Experiments", *(f"  {name:<18} {text}" for name, text in answers.items())]
    lines += ["", "Methods", *(f"  {kind}: {', '.join(names)}" for kind, names in methods.items())]
    lines += ["  your own: file.py:function", "", peer_table()]
    return "\n".join(lines), {"experiments": answers, **methods}
