"""The user's own files as tasks of one of the protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from spatialgears.bench import protocols
from spatialgears.bench.protocols import Task
from spatialgears.bench.request import Request
from spatialgears.errors import InputError
from spatialgears.io import read
from spatialgears.validate import slide_titles, title_of

#: By protocol: the options for files that it needs, and those that describe them.
TAKES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "pseudo-visium": (("sc",), ("types",)),
    "leave-section-out": (("st",), ()),
    "unpaired": (("st", "sc"), ("types",)),
    "real-unpaired": (("st", "sc"), ("types", "known", "order")),
}


def options_of(protocol: str) -> set[str]:
    """The options of :class:`Request` for own files that a protocol uses; none if it takes no files."""
    return {name for names in TAKES.get(protocol, ()) for name in names}


def own_tasks(protocol: str, request: Request) -> Callable[[int], Iterable[Task]] | None:
    """The tasks of the files that were given; None if none were."""
    files, about = TAKES.get(protocol, ((), ()))
    missing = [f"--{name}" for name in files if not getattr(request, name)]
    if len(missing) == len(files):
        if given := [f"--{name}" for name in about if getattr(request, name)]:
            raise InputError(f"{' and '.join(given)} without files of your own.", _needs(files))
        return None
    if missing:
        raise InputError(f"{protocol} on your own files needs {' and '.join(missing)}, too.", _needs(files))
    tasks = list(_tasks(protocol, request))
    return lambda seed: tasks


def _needs(files: Iterable[str]) -> str:
    return f"Give {' and '.join(f'--{name} PATH' for name in files)}."


def _tasks(protocol: str, request: Request) -> Iterable[Task]:
    slides = dict(zip(slide_titles(request.st), map(read, request.st), strict=True))
    if protocol == "leave-section-out":
        return protocols.leave_section_out(slides)
    assert request.sc is not None
    cells = read(request.sc)
    if protocol == "pseudo-visium":
        return protocols.pseudo_visium(cells, name=title_of(request.sc), types=request.types)
    if protocol == "unpaired":
        return protocols.unpaired(list(slides.values()), cells, types=request.types)
    layers = request.order.split(",") if request.order else None
    order = {label: float(depth) for depth, label in enumerate(layers)} if layers else protocols.CORTEX
    return protocols.real_unpaired(
        list(slides.values()), cells, known=request.known or "layer", order=order, types=request.types
    )
