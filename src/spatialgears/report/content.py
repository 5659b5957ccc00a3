"""What a report shows: plain arrays and words, nothing of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from spatialgears.errors import InputError
from spatialgears.pipeline.pose import Pose
from spatialgears.plotting.tissue import Tissue
from spatialgears.plotting.values import UNIT
from spatialgears.report.expression import Expression

Level = Literal["good", "fair", "weak", "none", "unknown"]


@dataclass(frozen=True)
class ReportSlide:
    """A slide drawn beside the map."""

    name: str  # title of the panel
    coords: np.ndarray  # (m, 2) measured positions of the spots, in any unit
    #: Values per spot for genes of :attr:`ReportContent.genes`, on the scale used there.
    genes: Mapping[str, Any] = field(default_factory=dict)
    #: Values per spot for columns of :attr:`ReportContent.obs`.
    obs: Mapping[str, Any] = field(default_factory=dict)
    #: Labels per spot for columns that the slide does not have: the label whose cells its expression resembles most.
    resembled: Mapping[str, Any] = field(default_factory=dict)
    #: How the cells lie on this slide. Without one the map and the slide are not drawn in one frame.
    pose: Pose | None = None
    y_down: bool = False  # whether the y axis points down, as in images
    tissue: Tissue | None = None  # the tissue image, and the unit of the coordinates


@dataclass(frozen=True)
class SelfCheck:
    """Metrics of the fitted model and of the simple reference where the truth is known."""

    title: str  # what was held out, such as "Held-out spots of slide A"
    words: str  # what the figures mean, in plain words
    #: One row each, as :func:`spatialgears.metrics.evaluate` gives it.
    model: Mapping[str, float]
    reference: Mapping[str, float]


@dataclass(frozen=True)
class Section:
    """An extra section: a title, paragraphs of plain text separated by empty lines, a picture and a table."""

    title: str  # heading
    text: str = ""  # plain text; it is escaped
    png: bytes = b""  # bytes of a PNG, or nothing
    alt: str = ""  # what the picture shows, for those who cannot see it
    table: Sequence[Mapping[str, object]] = ()  # rows: column title to value
    caution: str = ""  # a warning from this section; shown among the warnings at the top as well


@dataclass(frozen=True)
class ReportContent:
    """Everything the report shows. Only the title and the coordinates are required."""

    title: str  # title of the page
    coords: np.ndarray  # (n, 2) predicted positions of the cells
    #: (n,) names of the cells, shown when pointing at them; default: their row.
    names: Sequence[str] | None = None
    verdict: str = ""  # one sentence on how far to trust the map
    level: Level = "unknown"  # "good", "fair", "weak", "none" or "unknown": the verdict in one word
    numbers: Sequence[tuple[str, str]] = ()  # the few numbers that matter: name and value
    warnings: Sequence[str] = ()  # one or two sentences each, the gravest first
    inputs: Sequence[Mapping[str, object]] = ()  # rows of the table of inputs: column title to value
    checks: Sequence[Section] = ()  # sections on the cells themselves, shown before the self-check
    self_check: Sequence[SelfCheck] = ()  # how the model does where the truth is known
    #: (n,) values per cell that the map can be coloured by: labels or numbers.
    obs: Mapping[str, Any] = field(default_factory=dict)
    #: (n,) expression per cell of each gene that can be searched for, log-normalised, the most important first.
    genes: Mapping[str, Any] = field(default_factory=dict)
    #: How many genes there would be if the file might be of any size; default: those in ``genes``.
    n_genes: int | None = None
    uncertainty: np.ndarray | None = None  # (n,) 90% radius of each cell, in ``unit``
    domains: Any = None  # (n,) spatial domain of each cell
    domains_note: str = ""  # plain text above the table of domains
    #: Drawn beside the map in the same colours; the map is shown in the pose of the slide beside it.
    slides: Sequence[ReportSlide] = ()
    #: Stage to its history, ``{"geometry": {"loss": [...]}}``, as for :func:`sg.pl.training_curves`.
    history: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    sections: Sequence[Section] = ()  # anything else, shown before the training curves
    command: str = ""  # the command that makes this result again
    config: str = ""  # the exact configuration, as JSON text
    versions: Mapping[str, str] = field(default_factory=dict)  # package to version
    unit: str = UNIT  # unit of the coordinates
    #: Distance between neighbouring spots, in ``unit``: radii are then given in spot spacings.
    spacing: float | None = None

    def __post_init__(self) -> None:
        n = _check_places("coords", self.coords)
        given = {f"obs[{name!r}]": values for name, values in self.obs.items()}
        given |= {"uncertainty": self.uncertainty, "domains": self.domains, "names": self.names}
        _check_lengths(given, n, "cells")
        _check_genes("genes", self.genes, n, "cells")
        for slide in self.slides:
            m = _check_places(f"coords of slide {slide.name!r}", slide.coords)
            _check_genes(f"{slide.name}: genes", slide.genes, m, "spots")
            columns = [*slide.obs.items(), *slide.resembled.items()]
            _check_lengths({f"{slide.name}: {key}": values for key, values in columns}, m, "spots")


def _check_places(what: str, coords: Any) -> int:
    shape = np.shape(coords)
    if len(shape) != 2 or shape[1] != 2:
        raise InputError(f"The report expects {what} of shape (n, 2); found {shape}.")
    return int(shape[0])


def _check_genes(what: str, genes: Mapping[str, Any], n: int, of: str) -> None:
    if isinstance(genes, Expression):  # one matrix, which is not made dense for this
        if genes.n != n:
            raise InputError(f"The report has {n} {of}, but {what} are of {genes.n}.")
        return
    _check_lengths({f"{what}[{name!r}]": values for name, values in genes.items()}, n, of)


def _check_lengths(given: Mapping[str, Any], n: int, what: str) -> None:
    for name, values in given.items():
        if values is not None and np.shape(values) != (n,):
            raise InputError(
                f"The report has {n} {what}, but {name} has shape {np.shape(values)}, not ({n},)."
            )
