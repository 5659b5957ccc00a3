"""Progress of long work: bars with the time left on a terminal, one line in a notebook, otherwise plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from spatialgears.text import duration, plain

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

WHOLE = "all of it"  # the bar over all stages
KNOWN_PACE = 0.03  # share of a run after which its own pace tells the time left
#: ``progress(stage, done, total, values)``: called by long loops; the command line draws bars from it.
Progress = Callable[[str, int, int, Mapping[str, float]], None]


def silent(stage: str, done: int, total: int, values: Mapping[str, float]) -> None:
    """The progress callback that shows nothing."""


class Clock:
    """Seconds by step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        """Measure a block; what took time in another way is measured elsewhere."""
        start, before = time.perf_counter(), self.apart()
        yield
        self.seconds[step] = time.perf_counter() - start - (self.apart() - before)

    def apart(self) -> float:
        """Seconds so far that belong to no step."""
        return 0.0


class Plan:
    """The stages of a run with their expected seconds, and how much of it is behind us.

    A stage counts by its share of the expected time. One that ends early, as training may, counts as done when the next
    begins.
    """

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self._seconds = dict(seconds)
        self._behind = dict.fromkeys(seconds, 0.0)  # share of each stage
        self._now = ""

    def reach(self, stage: str, share: float) -> None:
        """A stage has come so far, 0 to 1; stages that were not expected change nothing."""
        if stage not in self._behind:
            return
        if stage != self._now and self._now:
            self._behind[self._now] = 1.0
        self._now, self._behind[stage] = stage, share

    @property
    def share(self) -> float:
        """Share of the expected time that is behind us, 0 to 1."""
        behind = sum(self._seconds[stage] * share for stage, share in self._behind.items())
        return behind / (sum(self._seconds.values()) or 1.0)

    def left(self, spent: float, begun: float) -> float:
        """Seconds that are left after ``spent`` seconds, in which the share rose from ``begun``.

        What was foreseen at first; by the pace so far once enough is done to know it.
        """
        share = self.share
        if share - begun < KNOWN_PACE:
            return sum(self._seconds.values()) * (1 - share)
        return spent * (1 - share) / (share - begun)


class ProgressView:
    """A context manager to pass as ``progress=``: called as ``view(stage, done, total, values)``.

    Bars on a terminal, one line that changes in a notebook, otherwise a plain line of each stage at most ``every`` so
    many seconds. Everything goes to standard error or the notebook, so that standard output holds results only.
    """

    def __init__(self, *, every: float = 10.0) -> None:
        self._every = every
        self._bars: Bars | None = None
        self._cell: Any = None  # the line in a notebook
        self._tasks: dict[str, TaskID] = {}
        self._started: dict[str, tuple[float, int]] = {}  # when, and the steps behind us then
        self._shown: dict[str, float] = {}
        self._plan: Plan | None = None
        #: When the first planned stage was seen, and the share then.
        self._begun: tuple[float, float] | None = None

    def __enter__(self) -> Self:
        if sys.stderr is not None and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bars

            self._bars = Bars(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(elapsed_when_finished=True),
                TextColumn("{task.fields[values]}", markup=False),
                console=Console(stderr=True),
            )
            self._bars.start()
        elif in_notebook():
            from IPython.display import Pretty, display

            self._cell = display(Pretty(""), display_id=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError, ValueError):
            if self._bars:
                if kind is None and WHOLE in self._tasks:
                    self._bars.update(self._tasks[WHOLE], completed=100)
                self._bars.stop()

    def expect(self, seconds: Mapping[str, float]) -> None:
        """The stages that will come and the seconds each is expected to take: the whole is shown, too."""
        self._plan, self._begun = Plan(seconds), None

    def __call__(self, stage: str, done: int, total: int, values: Mapping[str, float]) -> None:
        """Show that ``done`` of ``total`` steps of a stage are behind us, and the loss, of whatever parts it is."""
        text = f"loss {values['loss']:.4g}" if "loss" in values else ""
        if self._plan is not None:
            self._plan.reach(stage, done / max(total, 1))
        if self._bars:
            if self._plan is not None:
                self._bar(WHOLE, round(100 * self._plan.share), 100, "%")
            self._bar(stage, done, total, text)
            return
        now = time.monotonic()
        first, behind = self._started.setdefault(stage, (now, done))
        if self._cell is None and done < total and now - self._shown.get(stage, first) < self._every:
            return
        self._shown[stage] = now
        spent = now - first
        left = f"{duration(spent * (total - done) / max(done - behind, 1))} left"
        words = [f"{stage}: {done}/{total}", duration(spent) if done >= total else left, text]
        self.tell(self._of_the_whole(now) + ", ".join(filter(None, words)))

    def _of_the_whole(self, now: float) -> str:
        """How much of the run is done and how long the rest will take; empty if that is not known."""
        if self._plan is None:
            return ""
        if self._begun is None:
            self._begun = now, self._plan.share
        start, begun = self._begun
        return f"{self._plan.share:.0%} of all, {duration(self._plan.left(now - start, begun))} left; "

    def _bar(self, name: str, done: int, total: int, text: str) -> None:
        assert self._bars is not None
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=total, completed=done, values="")
        self._bars.update(self._tasks[name], completed=done, total=total, values=text)

    def tell(self, text: str) -> None:
        """Write a line, above the bars if there are any; one that cannot be written is lost, and the work continues."""
        with suppress(OSError, ValueError):  # standard error is closed, or its disk is full
            if self._bars:
                self._bars.console.print(plain(text), markup=False, highlight=False, soft_wrap=True)
            elif self._cell is not None:
                from IPython.display import Pretty

                self._cell.update(Pretty(plain(text)))
            elif sys.stderr is not None:
                sys.stderr.write(plain(text) + "\n")
                sys.stderr.flush()


def in_notebook() -> bool:
    """Whether this runs in a notebook, where output can be replaced."""
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return hasattr(shell, "kernel")


def is_watched() -> bool:
    """Whether someone can watch: on a terminal, or in a notebook."""
    return in_notebook() or (sys.stderr is not None and sys.stderr.isatty())


@contextmanager
def shown(progress: Progress | bool | None, plan: Mapping[str, float] | None = None) -> Iterator[Progress]:
    """The callback itself; for True, one that shows the progress; for None, the same if someone can watch.

    ``plan`` has the expected seconds of each stage: a view shows how far the whole has come, too.
    """
    if progress is None:
        from spatialgears.runtime.processes import is_first

        progress = is_watched() and is_first()
    if progress is True:
        with ProgressView() as view:
            if plan:
                view.expect(plan)
            yield view
        return
    if plan and isinstance(progress, ProgressView):
        progress.expect(plan)
    yield progress or silent
