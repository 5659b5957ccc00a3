"""What a report says: plain arrays and words, nothing of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spatialgears.errors import InputError
from spatialgears.plotting.values import UNIT


@dataclass(frozen=True)
class ReportSlide:
    """A slide drawn beside the map.

    Parameters
    ----------
    name
        Title of the panel.
    coords
        (m, 2) measured places of the spots, in any unit.
    genes
        Values per spot for genes of :attr:`ReportContent.genes`, on the scale used there.
    obs
        Values per spot for columns of :attr:`ReportContent.obs`.
    """

    name: str
    coords: np.ndarray
    genes: Mapping[str, Any] = field(default_factory=dict)
    obs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SelfCheck:
    """Metrics of the fitted model and of the simple reference where the truth is known.

    Parameters
    ----------
    title
        What was held out, such as "Held-out spots of slide A".
    words
        What the figures mean, in plain words.
    model, reference
        One row each, as :func:`spatialgears.metrics.evaluate` gives it.
    """

    title: str
    words: str
    model: Mapping[str, float]
    reference: Mapping[str, float]


@dataclass(frozen=True)
class Section:
    """An extra section: a title, paragraphs of plain text parted by empty lines, a picture and a table.

    Parameters
    ----------
    title
        Heading.
    text
        Plain text; it is escaped.
    png
        Bytes of a PNG, or nothing.
    alt
        What the picture shows, for those who cannot see it.
    table
        Rows: column title to value.
    caution
        What in it speaks against the result, to be told at the top of the report, too.
    """

    title: str
    text: str = ""
    png: bytes = b""
    alt: str = ""
    table: Sequence[Mapping[str, object]] = ()
    caution: str = ""


@dataclass(frozen=True)
class ReportContent:
    """Everything the report shows. Only the title and the coordinates are required.

    Parameters
    ----------
    title
        Title of the page.
    coords
        (n, 2) predicted places of the cells.
    names
        (n,) names of the cells, shown when pointing at them; default: their row.
    summary
        Sentences; the first is the most prominent.
    warnings
        One sentence each.
    inputs
        Rows of the table of inputs: column title to value.
    self_check
        How the model does where the truth is known.
    obs
        (n,) values per cell that the map can be coloured by: labels or numbers.
    genes
        (n,) expression per cell of the chosen genes, on a scale meant for eyes (log-normalised).
    uncertainty
        (n,) 90% radius of each cell, in ``unit``.
    domains
        (n,) spatial domain of each cell.
    domains_note
        What is to be said of the domains; plain text.
    slides
        Drawn beside the map in the same colours.
    history
        Stage to its history, ``{"geometry": {"loss": [...]}}``, as for :func:`sg.pl.training_curves`.
    sections
        Anything else, shown before the training curves.
    command
        The command that makes this result again.
    config
        The exact configuration, as JSON text.
    versions
        Package to version.
    unit
        Unit of the coordinates.
    spacing
        Distance between neighbouring spots, in ``unit``: radii are then told in spot spacings.
    """

    title: str
    coords: np.ndarray
    names: Sequence[str] | None = None
    summary: Sequence[str] = ()
    warnings: Sequence[str] = ()
    inputs: Sequence[Mapping[str, object]] = ()
    self_check: Sequence[SelfCheck] = ()
    obs: Mapping[str, Any] = field(default_factory=dict)
    genes: Mapping[str, Any] = field(default_factory=dict)
    uncertainty: np.ndarray | None = None
    domains: Any = None
    domains_note: str = ""
    slides: Sequence[ReportSlide] = ()
    history: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    sections: Sequence[Section] = ()
    command: str = ""
    config: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    unit: str = UNIT
    spacing: float | None = None

    def __post_init__(self) -> None:
        n = _check_places("coords", self.coords)
        given = {f"obs[{name!r}]": values for name, values in self.obs.items()}
        given |= {f"genes[{name!r}]": values for name, values in self.genes.items()}
        given |= {"uncertainty": self.uncertainty, "domains": self.domains, "names": self.names}
        _check_lengths(given, n, "cells")
        for slide in self.slides:
            m = _check_places(f"coords of slide {slide.name!r}", slide.coords)
            _check_lengths(
                {f"{slide.name}: {key}": values for key, values in slide.genes.items()}, m, "spots"
            )
            _check_lengths({f"{slide.name}: {key}": values for key, values in slide.obs.items()}, m, "spots")


def _check_places(what: str, coords: Any) -> int:
    shape = np.shape(coords)
    if len(shape) != 2 or shape[1] != 2:
        raise InputError(f"The report expects {what} of shape (n, 2); found {shape}.")
    return int(shape[0])


def _check_lengths(given: Mapping[str, Any], n: int, what: str) -> None:
    for name, values in given.items():
        if values is not None and np.shape(values) != (n,):
            raise InputError(
                f"The report has {n} {what}, but {name} has shape {np.shape(values)}, not ({n},)."
            )
