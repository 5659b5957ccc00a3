"""``gears bench``: protocols x methods x seeds, one row per run, tables and figures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spatialgears.cli.options import Json
from spatialgears.errors import InputError

if TYPE_CHECKING:
    from spatialgears.bench.protocols import Task

_DATA, _PEERS, _LIMITS = "Your own data", "Peers", "Limits of each run"
_ONE_MODEL, _BY_SEED = {"data", "simulated", "method"}, {"data", "simulated", "method", "seeds"}
#: Experiments with tables of their own: what they show, and the options they take beside --output and --json.
_APART: dict[str, tuple[str, set[str]]] = {
    "patch-size": ("one fitted model, patches of 384 to 4,096 cells (the paper's figure 5)", _ONE_MODEL),
    "stitching": ("one fitted model, patches weighted by reliability or alike (its Table 3)", _ONE_MODEL),
    "embedding": (
        "nearest neighbours in stage A's embedding, and mixing (its figure 6); -m ablations: by term",
        _BY_SEED,
    ),
    "refiner": (
        "the generator, and diffusion over it: start noise, steps, samples averaged (its Table 2)",
        _BY_SEED,
    ),
    "filling": ("the best guess moved towards an even filling of the tissue, by strength", _BY_SEED),
    "scaling": (
        "time, memory and accuracy from 10,000 to a million cells; neighbour searches; two processes",
        {"method", "sizes", "time_limit", "memory_limit", "threads", "peer_cache"},
    ),
    "analyses": ("seconds of each function of sg.tl at 100,000 cells", set()),
    "tables": ("the tables of all rows kept in the output folder; nothing is run", set()),
    "registration": ("cells laid on the slide: how far from the truth, in spot pitches", _ONE_MODEL),
}


def bench(
    context: typer.Context,
    experiment: Annotated[
        str, typer.Argument(metavar="EXPERIMENT", help="Its name, or a protocol's; see --list.")
    ] = "quick",
    out: Annotated[
        Path,
        typer.Option("--output", "--out", "-o", metavar="FOLDER", help="Folder of rows, tables and figures."),
    ] = Path("gears-bench"),
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="FOLDER", help="Folder of the data files ($SPATIALGEARS_DATA)."),
    ] = None,
    simulated: Annotated[
        bool, typer.Option("--simulated", help="Simulated tissue instead of data files.")
    ] = False,
    method: Annotated[
        list[str] | None, typer.Option("--method", "-m", metavar="NAME", help="What to run; repeatable.")
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option("--task", metavar="TEXT", help="Only tasks whose name holds this text; repeatable."),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", min=1, max=100, help="Number of seeds.")] = 3,
    retry: Annotated[bool, typer.Option("--retry", help="Run again what failed before.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="List experiments, methods and peers.")] = False,
    as_json: Json = False,
    st: Annotated[
        list[str] | None,
        typer.Option("--st", metavar="PATH", rich_help_panel=_DATA, help="A slide; repeatable."),
    ] = None,
    sc: Annotated[
        str | None, typer.Option("--sc", metavar="PATH", rich_help_panel=_DATA, help="The cells.")
    ] = None,
    types: Annotated[
        str | None,
        typer.Option("--types", metavar="COLUMN", rich_help_panel=_DATA, help="Column of cell types."),
    ] = None,
    known: Annotated[
        str,
        typer.Option(
            "--known",
            metavar="COLUMN",
            rich_help_panel=_DATA,
            help="Column with the known layer, for real-unpaired.",
        ),
    ] = "layer",
    order: Annotated[
        str | None,
        typer.Option(
            "--order",
            metavar="L1,L2,...",
            rich_help_panel=_DATA,
            help="Its labels from top to bottom: L1,L2,...",
        ),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            "--sizes", metavar="N,N,...", help="Numbers of cells, for scaling.", rich_help_panel=_LIMITS
        ),
    ] = None,
    time_limit: Annotated[
        float, typer.Option(metavar="MINUTES", rich_help_panel=_LIMITS, help="Longest time of a run.")
    ] = 60.0,
    memory_limit: Annotated[
        float, typer.Option(metavar="GB", rich_help_panel=_LIMITS, help="Most memory of a run.")
    ] = 16.0,
    threads: Annotated[
        int, typer.Option(metavar="N", min=1, rich_help_panel=_LIMITS, help="Threads of a run.")
    ] = 1,
    peer_source: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DIR", rich_help_panel=_PEERS, help="Folder of a peer that is not on PyPI."
        ),
    ] = None,
    peer_cache: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", rich_help_panel=_PEERS, help="Folder of the peers' environments."),
    ] = None,
    accept_licence: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", rich_help_panel=_PEERS, help="Accept a peer's licence."),
    ] = None,
) -> None:
    """Compare methods side by side; a benchmark that was stopped goes on, and failures have a reason."""
    from spatialgears.bench.experiments import EXPERIMENTS

    if listing:
        _list(as_json=as_json)
        return
    _require_taken(context, experiment)
    out = out.expanduser()
    if experiment == "scaling":
        each = (time_limit * 60, memory_limit, threads)
        _scaling(sizes, method or ["default"], out=out, cache=peer_cache, limits=each, as_json=as_json)
        return
    if experiment == "tables":
        _kept(out, as_json=as_json)
        return
    if experiment in _APART:
        preset = (method or ["default"])[0]
        _apart(
            experiment,
            data=data,
            simulated=simulated,
            out=out,
            preset=preset,
            seeds=seeds,
            as_json=as_json,
        )
        return
    if experiment not in EXPERIMENTS:
        raise InputError(
            f"There is no experiment {experiment!r}.", f"Choose one of {', '.join([*EXPERIMENTS, *_APART])}."
        )
    from spatialgears.bench.experiments import draw, tasks_of
    from spatialgears.bench.harness import Limits, run
    from spatialgears.bench.methods import choose
    from spatialgears.bench.peers import PeerOptions, default_cache
    from spatialgears.bench.store import Store
    from spatialgears.bench.tables import tables

    setup = PeerOptions(
        peer_cache or default_cache(), _sources(peer_source or []), tuple(accept_licence or ())
    )
    methods = choose(method or EXPERIMENTS[experiment].methods, setup)
    own = _own_tasks(experiment, st or [], sc, types=types, known=known, order=order) if st or sc else None
    tasks = _only(task or [], own or tasks_of(experiment, root=data, simulated=simulated))
    store, limits = Store(out), Limits(time_limit * 60, memory_limit, threads)
    rows = run(tasks, methods, store, seeds=range(seeds), limits=limits, retry=retry, report=_tell)
    text = tables(rows, columns=EXPERIMENTS[experiment].columns)
    (out / f"{experiment}.md").write_text(text)
    for name, figure in draw(experiment, rows, store, tasks(0)).items():
        figure.savefig(out / f"{name}.png", dpi=150)
    _show(text, rows, as_json=as_json)


def _require_taken(context: typer.Context, experiment: str) -> None:
    """Refuse options that an experiment would not look at."""
    given = {
        option.name: option.opts[0]
        for option in context.command.params
        if (source := context.get_parameter_source(option.name)) and source.name == "COMMANDLINE"
    }
    takes = _APART[experiment][1] if experiment in _APART else set(given) - {"sizes"}
    takes = takes | {"experiment", "out", "as_json"}
    if unused := [given[name] for name in given if name not in takes]:
        raise InputError(f"{experiment} does not take {' or '.join(unused)}.", "Leave it out.")
    if experiment in _APART and experiment != "scaling" and len(context.params["method"] or ()) > 1:
        raise InputError(
            f"{experiment} takes one --method, found {len(context.params['method'])}.",
            "Run it once for each.",
        )


def _show(text: str, found: Any, *, as_json: bool) -> None:
    """What was found, in words or for machines."""
    from spatialgears.cli.output import emit_json

    if as_json:
        emit_json(found)
    else:
        typer.echo(text)


def _only(wanted: Sequence[str], tasks: Callable[[int], Iterable[Task]]) -> Callable[[int], Iterable[Task]]:
    """The tasks whose name holds one of the texts; all where none is given."""
    if not wanted:
        return tasks
    names = [task.name for task in tasks(0)]
    if not any(text in name for text in wanted for name in names):
        raise InputError(f"No task is called {' or '.join(wanted)}.", f"There are: {'; '.join(names)}.")
    return lambda seed: [task for task in tasks(seed) if any(text in task.name for text in wanted)]


def _tell(row: dict[str, Any]) -> None:
    """One line per run on standard error."""
    score = next(iter(row["metrics"].items()), None)
    what = f"{score[0]} {score[1]:.3f}" if score else f"{row['status']}: {row['reason']}"
    took = f", {row['seconds']:.0f} s, {row['peak_gb']:.1f} GB" if row["seconds"] is not None else ""
    sys.stderr.write(f"{row['task']} · {row['method']} · seed {row['seed']}: {what}{took}\n")
    sys.stderr.flush()


def _sources(given: Sequence[str]) -> dict[str, Path]:
    """``NAME=DIR`` pairs."""
    from spatialgears.bench.peers import PEERS

    sources = {}
    for text in given:
        name, separator, folder = text.partition("=")
        if not separator or name not in PEERS:
            raise InputError(
                f"--peer-source expects NAME=DIR with NAME one of {', '.join(PEERS)}, found {text!r}."
            )
        sources[name] = Path(folder)
    return sources


def _own_tasks(
    protocol: str, st: list[str], sc: str | None, *, types: str | None, known: str, order: str | None
) -> Callable[[int], Iterable[Task]]:
    """The user's files under one of the protocols."""
    from spatialgears.bench import protocols
    from spatialgears.io import read
    from spatialgears.validate import slide_titles, title_of

    slides = dict(zip(slide_titles(st), map(read, st), strict=True))
    cells = read(sc) if sc else None
    if protocol == "pseudo-visium" and cells is not None:
        return lambda _: protocols.pseudo_visium(cells, name=title_of(str(sc)), types=types)
    if protocol == "leave-section-out" and len(slides) > 1:
        return lambda _: protocols.leave_section_out(slides)
    if protocol == "unpaired" and slides and cells is not None:
        return lambda _: protocols.unpaired(list(slides.values()), cells, types=types)
    if protocol == "real-unpaired" and slides and cells is not None:
        depth = {label: float(i) for i, label in enumerate(order.split(","))} if order else protocols.CORTEX
        return lambda _: protocols.real_unpaired(
            list(slides.values()), cells, known=known, order=depth, types=types
        )
    raise InputError(
        f"{protocol} cannot be run on these files.",
        "pseudo-visium takes --sc (cells with coordinates); leave-section-out takes --st twice or more; "
        "unpaired and real-unpaired take --st and --sc.",
    )


def _kept(out: Path, *, as_json: bool) -> None:
    """What benchmarks have left in a folder, as tables."""
    from spatialgears.bench.store import Store
    from spatialgears.bench.tables import standing, tables

    rows = [row for row in Store(out).rows() if "task" in row]
    if not rows:
        raise InputError(f"{out} holds no rows.", "Give the output folder of a benchmark with --output.")
    rows.sort(key=lambda row: (row["protocol"], row["task"]))
    text = (
        "# Tables of the benchmark\n\nMean over seeds, ± standard deviation; simulated tissue is another with every seed: "
        "its ± is that of tissues, and ours stands by tissue. `gears bench tables -o FOLDER` writes this page from the rows in "
        "a folder."
        f"\n\n## Where ours stands, by Spearman\n\n{standing(rows)}\n\n## By task\n\n{tables(rows)}"
    )
    (out / "tables.md").write_text(text)
    _show(text, rows, as_json=as_json)


def _apart(
    experiment: str,
    *,
    data: Path | None,
    simulated: bool,
    out: Path,
    preset: str,
    seeds: int,
    as_json: bool,
) -> None:
    """Fit once (or take the model fitted before), show what an experiment makes of it."""
    from spatialgears.bench import analyses, embedding, figures, filling, one_model, refiner, registration
    from spatialgears.bench.assembly import as_table
    from spatialgears.bench.experiments import tasks_of
    from spatialgears.bench.one_model import over_seeds
    from spatialgears.config import Config
    from spatialgears.runtime.threads import threads

    if experiment == "embedding":
        ablated = preset == "ablations"
        sets = ("simulated",) if simulated else embedding.ABLATED if ablated else embedding.SETS
        variants = embedding.ABLATION if ablated else {"default": ()}
        with threads(1):
            rows = list(embedding.rows(sets, variants, root=data, seeds=seeds, folder=out))
        title = "stage A"
        figure = figures.embedding(rows)
    elif experiment == "refiner":
        found = refiner.tasks(data, simulated=simulated)
        rows, histories = over_seeds(found, refiner.scored, Config.preset(preset), seeds=seeds, folder=out)
        figure, title = refiner.draw(rows, histories), "the generator, and the diffusion refiner over it"
    elif experiment == "filling":
        found = filling.tasks(data, simulated=simulated)
        rows, _ = over_seeds(found, filling.scored, Config.preset(preset), seeds=seeds, folder=out)
        figure, title = filling.draw(rows), "part of the way to an even filling"
    elif experiment == "analyses":
        rows, title = list(analyses.rows()), "seconds at many cells"
        figure = analyses.draw(rows)
    elif experiment == "registration":
        task = registration.task_of(data, simulated=simulated)
        rows, figure = registration.run(task, Config.preset(preset), folder=out)
        title = f"{task.name}, errors in spot pitches"
    else:
        task = next(iter(tasks_of("diagnostics", root=data, simulated=simulated)(0)))
        rows, figure = one_model.run(experiment, task, Config.preset(preset), folder=out)
        title = task.name
    text = f"### {experiment}: {title}\n\n{as_table(rows)}\n"
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{experiment}.md").write_text(text)
    figure.savefig(out / f"{experiment}.png", dpi=150)
    _show(text, rows, as_json=as_json)


def _scaling(
    sizes: str | None,
    methods: Sequence[str],
    *,
    out: Path,
    cache: Path | None,
    limits: tuple[float, float, int],
    as_json: bool,
) -> None:
    """Larger and larger numbers of cells, the same for the peers among the methods."""
    from spatialgears.bench import scaling
    from spatialgears.bench.assembly import as_table
    from spatialgears.bench.harness import Limits
    from spatialgears.bench.peers import PeerOptions, default_cache
    from spatialgears.bench.store import Store
    from spatialgears.config import Config

    try:
        wanted = [int(size) for size in sizes.split(",")] if sizes else list(scaling.SIZES)
    except ValueError:
        raise InputError(
            f"--sizes expects numbers of cells, found {sizes!r}.", "For example --sizes 10000,100000."
        ) from None
    preset, *peers = methods
    out.mkdir(parents=True, exist_ok=True)
    ours = list(scaling.rows(Config.preset(preset), wanted, folder=out, threads=limits[2]))
    beside = scaling.peers(
        peers,
        wanted,
        setup=PeerOptions(cache or default_cache(), {}, ()),
        store=Store(out),
        limits=Limits(*limits),
    )
    parts = {f"placing cells, {preset} preset": ours}
    if len(ours) > 1:
        parts["log-log slope against cells (1: linear)"] = [scaling.slopes(ours)]
    parts |= {"peers": beside} if beside else {}
    parts["training, 100 steps of the quick preset"] = list(scaling.training())
    parts["flags of training, one thread"] = list(scaling.flags())
    parts["neighbour searches, 15 of 32-dimensional points"] = list(scaling.neighbours())
    parts["processes"] = [scaling.processes(out, min(scaling.PROCESSES_AT, max(wanted)))]
    text = "\n".join(f"### {title}\n\n{as_table(found)}\n" for title, found in parts.items())
    (out / "scaling.md").write_text(text)
    scaling.draw(ours, beside).savefig(out / "scaling.png", dpi=150)
    _show(text, parts, as_json=as_json)


def _list(*, as_json: bool) -> None:
    from spatialgears.bench.experiments import EXPERIMENTS
    from spatialgears.bench.methods import REFERENCES
    from spatialgears.bench.peers import PEERS, peer_table

    words = {name: experiment.words for name, experiment in EXPERIMENTS.items()}
    words |= {name: text for name, (text, _) in _APART.items()}
    lines = ["Experiments", *(f"  {name:<18} {text}" for name, text in words.items())]
    lines += [
        "",
        "Methods",
        "  quick, default, paper, file.py:function",
        "  references: " + ", ".join(REFERENCES),
    ]
    lines += ["  peers: " + ", ".join(PEERS), "", peer_table()]
    names = {"references": list(REFERENCES), "peers": list(PEERS)}
    _show("\n".join(lines), {"experiments": words, **names}, as_json=as_json)
