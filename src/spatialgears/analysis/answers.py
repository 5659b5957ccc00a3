"""Optional analyses of a run: regions of the cells, genes on the slide, types per spot, comparison of two samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from spatialgears.analysis import lookup
from spatialgears.analysis.choice import OtherTissue
from spatialgears.analysis.comparison import FEWEST, compare
from spatialgears.analysis.composition import abundance
from spatialgears.analysis.imputation import impute
from spatialgears.analysis.subject import types_column
from spatialgears.analysis.transfer import transfer
from spatialgears.errors import InputError
from spatialgears.text import similar_names

if TYPE_CHECKING:
    from anndata import AnnData

    from spatialgears.reconstruction import Reconstruction


@dataclass(frozen=True)
class Questions:
    """Which optional analyses a run should make."""

    regions: str | None = None  # column of the slides' ``obs``, transferred to the cells
    genes: Sequence[str] = ()  # genes of the cells, predicted at the spots
    abundance: bool = False  # whether types are counted at the spots
    compare: str | None = None  # column of the cells' ``obs`` that names two samples
    types: str | None = None  # column of the cells' ``obs`` with types; :meth:`about` finds it

    def __bool__(self) -> bool:
        return bool(self.regions or self.genes or self.abundance or self.compare)

    def about(self, cells: AnnData) -> Questions:
        """The questions with the column of types that they need; refused where none is named and none is found."""
        if self.types is not None or not (self.abundance or self.compare):
            return self
        if (found := types_column(cells.obs)) is None:
            raise InputError(
                f"--{'abundance counts' if self.abundance else 'compare is about'} cell types, and no column of the cells' "
                f".obs is named like them; there are {lookup.listed(list(map(str, cells.obs)))}.",
                "Name their column: --types COLUMN.",
            )
        return replace(self, types=found)


@dataclass(frozen=True, eq=False)
class Answers:
    """Spots of the slide that the cells match best, with genes and with types."""

    questions: Questions  # what was asked
    slide: int  # number of that slide
    #: As :func:`spatialgears.tl.impute` and :func:`spatialgears.tl.abundance` give them; None where not asked.
    imputed: AnnData | None = None
    abundance: AnnData | None = None
    comparison: pd.DataFrame | None = None  # as :func:`spatialgears.tl.compare` gives it


def samples_of(cells: AnnData, column: str) -> pd.Categorical:
    """The sample (n,) of each cell, of which there must be two of some size."""
    found = lookup.labels(cells, column, "cells")
    sizes = found.value_counts()
    if len(sizes) != 2 or sizes.min() < FEWEST:
        raise InputError(
            f"--compare expects a column that names two samples of at least {FEWEST} cells each; .obs[{column!r}] has "
            f"{len(sizes)}: {', '.join(f'{name} ({n:,})' for name, n in sizes.head(5).items())}.",
            "Name another column, or leave out the cells of other samples.",
        )
    return found


def require_regions(slides: Sequence[AnnData], column: str | None) -> None:
    """Refuse a column of regions that no slide has, before anything is fitted."""
    if column is None or any(column in slide.obs for slide in slides):
        return
    there = list(dict.fromkeys(str(name) for slide in slides for name in slide.obs))
    near = similar_names(column, there)
    raise InputError(
        f"No slide has the column {column!r} in .obs; there are {lookup.listed(there)}.",
        f"Did you mean {near[0]!r}?"
        if near
        else "Name one of these with --regions."
        if there
        else "Give slides as .h5ad with regions in .obs.",
    )


def answered(
    placed: Reconstruction,
    cells: AnnData,
    slides: Sequence[AnnData],
    *,
    questions: Questions,
    titles: Sequence[str],
    spatial_key: str = "spatial",
    seed: int = 0,
) -> tuple[Reconstruction, Answers]:
    """The reconstruction with regions of the cells, and genes and types on the slide that the cells match best.

    ``placed`` is laid on the slides, which ``titles`` name as ``placed.laid`` does. Inputs are not modified; the same
    seed gives the same answers. What the cells match too poorly to answer is left out, with a warning.
    """
    from anndata import AnnData

    known = {one.slide: key for key, one in reversed(placed.on_slides().items())}
    best = placed.on_slides()["X_gears_slide"].slide
    at = AnnData(cells.X, obs=cells.obs.copy(), var=pd.DataFrame(index=cells.var_names))
    at = placed.to_adata(at)
    number = list(titles).index(best)
    slide, basis = slides[number], known[best]
    options: dict[str, Any] = {"spatial_key": spatial_key, "seed": seed}
    refused: list[str] = []

    @contextmanager
    def attempt(what: str) -> Iterator[None]:
        try:
            yield
        except OtherTissue as error:
            refused.append(f"No {what}: {error.problem}")

    if column := questions.regions:
        named = [i for i, slide in enumerate(slides) if column in slide.obs]
        there = [known[titles[i]] for i in named if titles[i] in known]
        where = there if len(there) == len(named) else None
        with attempt("regions"):
            transfer(at, [slides[i] for i in named], column, basis=where, **options)
            key = lookup.slot(column)
            added = {
                name: at.obs[name].array
                for name in at.obs
                if name in (key, f"{key}_probability", f"{key}_sd")
            }
            tables = {key: at.obsm[key].to_numpy()} if key in at.obsm else {}
            names = (
                {}
                if key not in at.obsm
                else {key: {"labels": [*map(str, at.obsm[key].columns)], "column": column}}
            )
            placed = replace(
                placed,
                obs={**placed.obs, **added},
                obsm={**placed.obsm, **tables},
                uns={**placed.uns, **names},
            )
    imputed = types = None
    if questions.genes:
        with attempt("genes on the slide"):
            imputed = impute(at, slide, list(questions.genes), basis=basis, **options)
    if questions.abundance and questions.types:
        with attempt("types on the slide"):
            types = abundance(at, slide, questions.types, basis=basis, **options)
    for found in (imputed, types):
        if found is not None:
            found.uns["slide"] = best
    compared = None
    if questions.compare and (kinds := questions.types):
        samples = samples_of(cells, questions.compare)
        first, second = (at[samples == name] for name in samples.categories)
        radius = "gears_radius50" if at.obs["gears_radius50"].notna().all() else None
        compared = compare(first, second, slide, key=kinds, radius=radius, spatial_key=spatial_key, seed=seed)
    placed = replace(placed, warnings=[*placed.warnings, *refused])
    return placed, Answers(questions, number, imputed, types, compared)
