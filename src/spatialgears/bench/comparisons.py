"""Methods side by side on the same tasks: what most experiments are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spatialgears.bench import figures, protocols, sets
from spatialgears.bench.harness import run
from spatialgears.bench.methods import choose
from spatialgears.bench.own_data import options_of, own_tasks
from spatialgears.bench.peers import PeerOptions
from spatialgears.bench.protocols import Task
from spatialgears.bench.request import Experiment, Outcome, Request, Tell
from spatialgears.bench.store import Row, Store
from spatialgears.bench.tables import COVERAGE, DEPTH, TABLE1, tables
from spatialgears.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Rows with scores, the store of layouts and the tasks of seed 0 in; figures by the ending of their file name out.
Draw = Callable[[Sequence[Row], Store, Iterable[Task]], "dict[str, Figure]"]
_USED = {"method", "values", "task", "seeds", "retry", "time_limit", "memory_limit", "threads"}
_USED |= {"peer_source", "peer_cache", "accept_licence"}


@dataclass(frozen=True)
class Comparison:
    """Methods on tasks."""

    #: For the command and its list.
    name: str
    answers: str
    tasks: sets.Tasks  # the data
    #: What runs if the user names nothing; see :func:`~spatialgears.bench.methods.choose`.
    methods: tuple[str, ...]
    columns: Sequence[str] | None = None  # metrics of its table; None: those of the paper's Table 1
    needs_data: bool = True  # whether the tasks are data files
    simulated: sets.Tasks = sets.simulated  # what ``--simulated`` uses instead of these
    draw: Draw | None = None  # figures beside the comparison of all metrics

    @property
    def experiment(self) -> Experiment:
        """The comparison as the command knows it."""
        data = {"data", "simulated"} if self.needs_data else set()
        return Experiment(self.answers, frozenset(_USED | data | options_of(self.name)), self.run)

    def run(self, request: Request, tell: Tell) -> Outcome:
        """Run what is missing in ``request.out``, and compare all rows of these tasks, methods and seeds."""
        setup = PeerOptions.given(request.peer_cache, request.peer_source, request.accept_licence)
        methods = choose(request.method or self.methods, setup, values=request.values)
        tasks = some_of(request.task, own_tasks(self.name, request) or self.tasks_of(request))
        store = Store(request.out)
        rows = run(
            tasks,
            methods,
            store,
            seeds=range(request.seeds),
            limits=request.limits,
            retry=request.retry,
            report=lambda row: tell(line_of(row)),
        )
        return Outcome(tables(rows, columns=self.columns), rows, self.figures(rows, store, tasks(0)))

    def tasks_of(self, request: Request) -> Callable[[int], Iterable[Task]]:
        """The tasks by seed: data files, or simulated tissue instead."""
        tasks = self.simulated if request.simulated else self.tasks
        return lambda seed: tasks(request.data, seed)

    def figures(self, rows: Sequence[Row], store: Store, tasks: Iterable[Task]) -> dict[str, Figure]:
        """The figures by file name; none where no run succeeded."""
        scored = [row for row in rows if row["metrics"]]
        if not scored:
            return {}
        made = {self.name: figures.comparison(scored, columns=self.columns or (*TABLE1, *DEPTH))}
        more = self.draw(scored, store, tasks) if self.draw else {}
        return made | {f"{self.name}-{name}": figure for name, figure in more.items()}


def some_of(wanted: Sequence[str], tasks: Callable[[int], Iterable[Task]]) -> Callable[[int], Iterable[Task]]:
    """The tasks whose name contains one of the texts; all of them without a text."""
    if not wanted:
        return tasks
    names = [task.name for task in tasks(0)]
    if not any(text in name for text in wanted for name in names):
        raise InputError(f"No task is called {' or '.join(wanted)}.", f"There are: {'; '.join(names)}.")
    return lambda seed: [task for task in tasks(seed) if any(text in task.name for text in wanted)]


def line_of(row: Row) -> str:
    """A finished run in one line."""
    score = next(iter(row["metrics"].items()), None)
    result = f"{score[0]} {score[1]:.3f}" if score else f"{row['status']}: {row['reason']}"
    used = f", {row['seconds']:.0f} s, {row['peak_gb']:.1f} GB" if row["seconds"] is not None else ""
    return f"{row['task']} · {row['method']} · seed {row['seed']}: {result}{used}"


def _coverage_figures(rows: Sequence[Row], store: Store, tasks: Iterable[Task]) -> dict[str, Figure]:
    truth = {task.name: task.truth for task in tasks if task.truth is not None}
    found = {
        f"{row['method']}, {row['task']}": (store.arrays(row["key"]), truth[row["task"]])
        for row in rows
        if row["seed"] == 0 and "cover90" in row["metrics"]
    }
    return {"curves": figures.calibration(found)} if found else {}


def _by_donors(rows: Sequence[Row], store: Store, tasks: Iterable[Task]) -> dict[str, Figure]:
    some = [row for row in rows if "donors" in row["setting"] and "one sample" not in row["method"]]
    columns = ("spearman", "shell_f1", "cover50", "cover90")
    return {"curve": figures.sweep(some, "donors", columns=columns)} if some else {}


def _layout_figures(rows: Sequence[Row], store: Store, tasks: Iterable[Task]) -> dict[str, Figure]:
    made = {}
    for task in tasks:
        first = {row["method"]: row for row in reversed(rows) if row["task"] == task.name}
        layouts = {method: store.arrays(row["key"])["coords"] for method, row in first.items()}
        if task.truth is not None and layouts:
            made["curves"] = figures.diagnostics(layouts, task.truth)
            color = task.cells.obs[task.types].to_numpy() if task.types else None
            made["layouts"] = figures.layouts(layouts, task.truth, color)
    return made


_OURS, _EVERYTHING = ("default", "references"), ("default", "references", "peers")
COMPARISONS = (
    Comparison(
        "quick",
        "simulated tissue, the quick preset and the references: needs no data",
        sets.simulated,
        ("quick", "references"),
        needs_data=False,
    ),
    Comparison(
        "mouse-atlas", "Mouse Atlas, the paper's first benchmark, without peers", sets.MOUSE_ATLAS, _OURS
    ),
    Comparison(
        "table1",
        "the paper's Table 1: Mouse Atlas, her2st A, D, E and DLPFC with every peer",
        sets.together(sets.MOUSE_ATLAS, *sets.HER2ST.values(), sets.DLPFC),
        _EVERYTHING,
    ),
    Comparison(
        "diagnostics",
        "Mouse Atlas: calibration error, local RMSE at four scales, edge ROC",
        sets.MOUSE_ATLAS,
        ("default", "kNN on weighted PCA", "stem", "tangram", "novosparc", "celery"),
        ("cal_error", "lrmse_10", "lrmse_20", "lrmse_50", "lrmse_100", "edge_auc"),
        draw=_layout_figures,
    ),
    Comparison(
        "uncertainty",
        "Mouse Atlas: coverage of our radii and of CeLEry's regions",
        sets.MOUSE_ATLAS,
        ("default", "celery_region"),
        ("spearman", *COVERAGE),
        draw=_coverage_figures,
    ),
    Comparison(
        "pseudo-visium", "Mouse Atlas with square and hexagonal spots of three widths", sets.spot_grids, _OURS
    ),
    Comparison(
        "leave-section-out",
        "one section placed from the others: her2st and DLPFC",
        sets.together(*sets.HER2ST.values(), sets.DLPFC),
        _OURS,
        simulated=sets.simulated_sections,
    ),
    Comparison(
        "every-section",
        "each section of three her2st patients placed from the other two",
        sets.HER2ST_SECTIONS,
        _OURS,
        simulated=sets.simulated_sections,
    ),
    Comparison(
        "unpaired",
        "spots of one individual, cells of another: simulated tissue and STARmap",
        sets.together(sets.other_individual, sets.STARMAP),
        _OURS,
        simulated=sets.other_individual,
    ),
    Comparison(
        "donors",
        "cells of another donor: embryos, STARmap, her2st and simulated individuals; accuracy and coverage by donors",
        sets.DONORS,
        ("default", "kNN on weighted PCA"),
        ("spearman", "edge_auc", "shell_f1", "cover50", "cover90"),
        simulated=sets.simulated_donors,
        draw=_by_donors,
    ),
    Comparison(
        "small-panels",
        "slides that show a part of the cells' genes: with and without what the other genes say (expression.other_genes)",
        sets.small_panels,
        ("default", "kNN on weighted PCA", "MLP with thinning"),
        simulated=sets.simulated_small_panel,
    ),
    Comparison(
        "donor-limits",
        "what limits cells of another donor: with the counts of their true neighbours, or from single cells of the other",
        sets.DONOR_LIMITS,
        ("default",),
        ("spearman", "edge_auc", "shell_f1"),
        simulated=sets.with_neighbours(sets.other_individual),
    ),
    Comparison(
        "simulated",
        "simulated tissue: domain shift, composition, depth and number of spots, varied one at a time",
        sets.sweeps,
        _OURS,
        needs_data=False,
        draw=lambda rows, store, tasks: {one: figures.sweep(rows, one) for one in protocols.SWEEPS},
    ),
    Comparison(
        "real-unpaired",
        "dissociated cortex cells, scored by the layer they were dissected from",
        sets.dissociated_cortex,
        _OURS,
    ),
)
