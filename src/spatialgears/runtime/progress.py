"""Progress of long work: bars with the time left on a terminal, now and then a plain line otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

from spatialgears.text import duration, plain

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

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


class ProgressView:
    """A context manager to pass as ``progress=``: called as ``view(stage, done, total, values)``.

    Everything goes to standard error, so that standard output holds results only.

    Parameters
    ----------
    every
        Least number of seconds between two plain lines of one stage.
    """

    def __init__(self, *, every: float = 10.0) -> None:
        self._every = every
        self._bars: Bars | None = None
        self._tasks: dict[str, TaskID] = {}
        self._started: dict[str, tuple[float, int]] = {}  # when, and the steps behind us then
        self._told: dict[str, float] = {}

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
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError, ValueError):
            if self._bars:
                self._bars.stop()

    def __call__(self, stage: str, done: int, total: int, values: Mapping[str, float]) -> None:
        """Show that ``done`` of ``total`` steps of a stage are behind us, and the loss, of whatever parts it is."""
        text = f"loss {values['loss']:.4g}" if "loss" in values else ""
        if self._bars:
            if stage not in self._tasks:
                self._tasks[stage] = self._bars.add_task(stage, total=total, completed=done, values="")
            self._bars.update(self._tasks[stage], completed=done, total=total, values=text)
            return
        now = time.monotonic()
        first, behind = self._started.setdefault(stage, (now, done))
        if done >= total or now - self._told.get(stage, first) >= self._every:
            self._told[stage] = now
            spent = now - first
            left = (
                duration(spent)
                if done >= total
                else f"{duration(spent * (total - done) / max(done - behind, 1))} left"
            )
            self.tell(f"{stage}: {done}/{total}, {left}" + (f", {text}" if text else ""))

    def tell(self, text: str) -> None:
        """Write a line, above the bars if there are any; one that cannot be written is lost, and the work continues."""
        with suppress(OSError, ValueError):  # standard error is closed, or its disk is full
            if self._bars:
                self._bars.console.print(plain(text), markup=False, highlight=False, soft_wrap=True)
            elif sys.stderr is not None:
                sys.stderr.write(plain(text) + "\n")
                sys.stderr.flush()


@contextmanager
def shown(progress: Progress | bool) -> Iterator[Progress]:
    """The callback itself; for True, one that shows the progress, and for False one that does not."""
    if progress is True:
        with ProgressView() as view:
            yield view
    else:
        yield progress or silent
