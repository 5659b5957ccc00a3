"""Inputs are checked before any work: :func:`validate_inputs` returns clean arrays, or says what is wrong."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from scipy import sparse

from spatialgears.errors import InputError
from spatialgears.validate import coordinates as places
from spatialgears.validate import copies
from spatialgears.validate import counts as values
from spatialgears.validate import genes as names_of
from spatialgears.validate.batches import warn_batches
from spatialgears.validate.donors import CellsFrom, Donors, donors_of, whose_cells
from spatialgears.validate.other_genes import counts_of, other_genes, read_values

if TYPE_CHECKING:
    from anndata import AnnData

__all__ = ["ValidInputs", "validate_cells", "validate_inputs"]

#: A saved model refuses cells that lack more than this share of what its genes weigh.
MOST_MISSING = 0.2

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ValidInputs:
    """Inputs that passed every check, as arrays on one list of genes."""

    #: CSR float32 (n, G): new matrices, free to be changed. ``cells`` is None where none were given.
    slides: list[sparse.csr_matrix]
    coords: list[np.ndarray]  # per slide, float64 (n, 2), in the slide's own units
    cells: sparse.csr_matrix | None
    genes: np.ndarray  # names of the G shared genes, sorted
    #: ``"counts"``; where the user accepted values that are not counts, ``"normalised"``, or ``"mixed"`` if the cells are
    #: counts and a slide is not.
    kind: Literal["counts", "normalised", "mixed"]
    #: What each input's values look like, slides first, then cells: counts, linear, log or scaled.
    forms: list[values.Form]
    titles: list[str]  # what to call each slide in a few letters
    donors: Donors  # the donor of each slide
    cells_from: CellsFrom  # whether the cells are of one of these
    obs_names: np.ndarray  # names of the cells (N,)
    #: Masks of those without a single count in the shared genes; nothing is known of their place.
    empty_cells: np.ndarray
    empty_spots: list[np.ndarray]
    spot_rows: list[np.ndarray]  # per slide, the row of each spot in the slide as given
    unsupported_cells: np.ndarray  # mask of cells most of whose expression lies in genes that no slide shows
    #: Problems that do not prevent the use of the inputs, in words.
    warnings: list[str] = field(default_factory=list)
    #: Counts (N, E) of the cells' genes that are not shared, and their names; None where they are not used: slides of a whole
    #: transcriptome, cells without counts, or no cells.
    others: sparse.csr_matrix | None = None
    other_genes: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=str))

    def without_empty(self) -> tuple[list[sparse.csr_matrix], list[np.ndarray], sparse.csr_matrix | None]:
        """Slides, their coordinates and the cells, without spots and cells that have no counts."""
        kept = [np.flatnonzero(~empty) for empty in self.empty_spots]
        slides = [counts[rows] for counts, rows in zip(self.slides, kept, strict=True)]
        coords = [places[rows] for places, rows in zip(self.coords, kept, strict=True)]
        return slides, coords, None if self.cells is None else self.cells[np.flatnonzero(~self.empty_cells)]

    def digest(self) -> str:
        """SHA-256 of genes, values and their kind, donors and coordinates: what a checkpoint must belong to."""
        said = [self.kind, self.cells_from, *self.donors.names, *self.genes]
        found = hashlib.sha256("\n".join(said).encode())
        for counts in [*self.slides, *([] if self.cells is None else [self.cells])]:
            for part in (counts.indptr, counts.indices, counts.data):
                found.update(np.ascontiguousarray(part).data)
        for coords in self.coords:
            found.update(np.ascontiguousarray(coords).data)
        return found.hexdigest()


def input_names(names: Sequence[str] | None, n_slides: int) -> list[str]:
    """What to call slides and cells, in this order, where not all are named."""
    defaults = [*(f"slide {i + 1}" for i in range(n_slides)), "the cells"]
    return [*(names or []), *defaults[len(names or []) :]]


def slide_titles(names: Sequence[str]) -> list[str]:
    """What slides are called by their paths: the file's name, with its folder or its number where that is not enough."""
    titles = plain = [title_of(name) for name in names]
    if len(set(titles)) < len(titles):
        titles = [f"{Path(name).parent.name}/{title}" for name, title in zip(names, plain, strict=True)]
    if len(set(titles)) < len(titles):
        titles = [f"{i + 1}: {title}" for i, title in enumerate(plain)]
    return titles


def title_of(name: str) -> str:
    """What an input is called by its path: the file's name without the endings that say its format."""
    return re.sub(
        r"(\.(h5ad|h5|zarr|csv|tsv|txt|mtx|parquet|gz))+$", "", Path(name).name, flags=re.IGNORECASE
    )


def validate_inputs(
    slides: Sequence[AnnData] | AnnData,
    cells: AnnData | None = None,
    *,
    rows: np.ndarray | None = None,
    layer: str | None = None,
    spatial_key: str = "spatial",
    normalised: bool = False,
    min_genes: int = 20,
    min_spots: int = 30,
    min_cells: int = 10,
    names: Sequence[str] | None = None,
    donors: Sequence[str] | None = None,
    cells_from: CellsFrom | None = None,
) -> ValidInputs:
    """Check slides and cells, and bring them to one list of genes. The inputs are not modified.

    They may be in memory (dense, sparse, views) or on disk. ``rows`` are those of the cells to take, sorted. ``layer`` says
    where the counts are: None for ``.X``, a key of ``.layers``, or ``"raw"``; ``spatial_key`` where the coordinates of spots
    are. ``normalised`` accepts values that are not counts. ``names`` are what messages call the inputs, slides first.
    ``donors`` has that of each slide; by default as the slides say, and otherwise each its own. ``cells_from`` says whether
    the cells are of these; by default a donor in their ``uns`` or ``obs`` says so. One InputError lists all problems, each
    with what was expected, what was found and what to do.
    """
    slides = [slides] if hasattr(slides, "obsm") else list(slides)
    everything = [*slides, *([] if cells is None else [cells])]
    names = input_names(names, len(slides))
    if not slides:
        raise InputError("Expected at least one slide, found none.", "Give slides=[...] (--st).")
    _check_types(everything, names, n_slides=len(slides))
    problems: list[InputError] = []
    warnings: list[str] = []

    with _collect(problems):
        whose = donors_of(slides, donors, names)
        said = "unknown" if cells is None else whose_cells(cells, whose, cells_from)
    coords, swapped = [np.empty((0, 2))] * len(slides), cells is not None and spatial_key in cells.obsm
    for i, (slide, name) in enumerate(zip(slides, names, strict=False)):
        with _collect(problems):
            places.check_size(slide.n_obs, min_spots, name)
            coords[i], notes = places.coordinates_of(slide, spatial_key, name, swapped=swapped)
            warnings += notes + _warn_slide(slide, coords[i], name)
    if not problems:
        warnings += places.warn_unlike_extents(coords, names)

    sources: list[Any] = []
    inputs: list[names_of.Genes] = []
    for i, (adata, name) in enumerate(zip(everything, names, strict=False)):
        with _collect(problems):
            matrix, var = values.values_of(adata, layer, name)
            sources.append(matrix)
            option = "--st-genes" if i < len(slides) else "--sc-genes"
            inputs.append(names_of.Genes(name, var, adata.obs_names, option))
            note = names_of.check_unique(inputs[-1])
            warnings += [note] if note else []
    _raise(problems)
    genes = names_of.shared_genes(inputs, min_genes)
    warnings += names_of.warn_few_shared(inputs, len(genes))

    counts: list[sparse.csr_matrix] = []
    for i, (adata, matrix, one) in enumerate(zip(everything, sources, inputs, strict=True)):
        with _collect(problems):
            counts.append(read_values(matrix, one, genes, rows if i == len(slides) else None))
            warnings += _judge(
                counts[-1], adata, one.name, genes, normalised=normalised, cells=i == len(slides)
            )
            spots = coords[i] if i < len(slides) else None
            _check_not_empty(counts[-1], spots, min_cells if spots is None else min_spots, one.name)
    _raise(problems)
    prints = [copies.fingerprints(one) for one in counts]
    copies.check_not_twice(prints[: len(slides)], names)
    if cells is not None:
        warnings += copies.warn_own_spots(prints[-1], prints[:-1], names)
    obs_names = [adata.obs_names for adata in everything]
    if cells is not None and rows is not None:
        obs_names[-1] = obs_names[-1][rows]
    found = _assemble(
        counts,
        coords,
        obs_names,
        genes,
        normalised=normalised,
        names=names,
        donors=whose,
        cells_from=said,
        warnings=warnings,
    )
    if cells is None or found.kind == "normalised" or len(genes) > names_of.WHOLE_TRANSCRIPTOME:
        return found
    others, other_names = other_genes(sources[-1], inputs[-1], genes, rows)
    return replace(found, others=others, other_genes=other_names)


def _warn_slide(slide: AnnData, coords: np.ndarray, name: str) -> list[str]:
    """Warnings about the coordinates (n, 2) of a slide, which is refused if no geometry can be learnt from it."""
    places.check_spread(coords, name)
    return [
        *places.check_distinct(coords, name),
        *places.check_one_section(slide, coords, name),
        *warn_batches(slide.obs, coords, name, placed=False),
        *places.warn_small(slide.n_obs, name),
    ]


def validate_cells(
    cells: AnnData,
    genes: np.ndarray,
    weights: np.ndarray,
    *,
    rows: np.ndarray | None = None,
    layer: str | None = None,
    normalised: bool = False,
    name: str = "the cells",
) -> tuple[sparse.csr_matrix, np.ndarray, list[str]]:
    """Check cells against the genes (G,) of a fitted model, of which a few may be missing.

    Counts (N, G) on the model's genes, zero where missing; which genes are missing (G,); and warnings. Other arguments
    are as for :func:`validate_inputs`.
    """
    _check_types([cells], [name], n_slides=0)
    matrix, var = values.values_of(cells, layer, name)
    one = names_of.Genes(name, var, cells.obs_names, "--sc-genes")
    note = names_of.check_unique(one)
    missing = ~np.isin(genes, var.index[~var.index.duplicated(keep=False)].to_numpy(dtype=str))
    lost = float((weights[missing] ** 2).sum() / (weights**2).sum())
    if lost > MOST_MISSING:
        known = names_of.Genes("the model", pd.DataFrame(index=pd.Index(genes)), cells.obs_names, "")
        raise InputError(
            f"{name}: {missing.sum():,} of the model's {len(genes):,} genes are missing, {lost:.0%} of their weight (at "
            f"most {MOST_MISSING:.0%} may be), e.g. {', '.join(genes[missing][:5])}.",
            f"{names_of.likely_cause(known, one)} A fitted model's names stay as they are: change those of the cells.",
        )
    counts = read_values(matrix, one, genes[~missing], rows)
    warnings = [note] if note else []
    warnings += _judge(counts, cells, name, genes[~missing], normalised=normalised, cells=True)
    if missing.any():
        warnings.append(
            f"{name}: {missing.sum():,} of the model's {len(genes):,} genes are missing ({lost:.1%} of their weight), e.g. "
            f"{', '.join(genes[missing][:5])}; they are taken as average, or as not expressed where the model does not "
            "standardise genes."
        )
    place = np.flatnonzero(~missing)
    counts = sparse.csr_matrix(
        (counts.data, place[counts.indices], counts.indptr), shape=(counts.shape[0], len(genes))
    )
    return counts, missing, warnings


def read_other_genes(
    cells: AnnData, genes: np.ndarray, *, rows: np.ndarray | None = None, layer: str | None = None
) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Counts (N, E) of genes (E,) that only the cells of a fit had, and which of them these cells lack."""
    name = "the cells"
    matrix, var = values.values_of(cells, layer, name)
    return counts_of(matrix, names_of.Genes(name, var, cells.obs_names, "--sc-genes"), genes, rows)


def _assemble(
    counts: list[sparse.csr_matrix],
    coords: list[np.ndarray],
    obs_names: list[pd.Index],
    genes: np.ndarray,
    *,
    normalised: bool,
    names: Sequence[str],
    donors: Donors,
    cells_from: CellsFrom,
    warnings: list[str],
) -> ValidInputs:
    empty = [values.empty_rows(one) for one in counts]
    n_slides, has_cells = len(coords), len(counts) > len(coords)
    for mask, name in zip(empty, names, strict=False):
        if mask.any():
            warnings.append(
                f"{name}: {mask.sum():,} of {len(mask):,} have no counts in the {len(genes):,} shared genes; "
                "their positions are unknown."
            )
    unsupported = np.zeros(counts[-1].shape[0] if has_cells else 0, dtype=bool)
    if has_cells:
        unsupported = _unsupported(counts[:n_slides], counts[-1])
        if unsupported.any():
            warnings.append(
                f"{names[n_slides]}: {unsupported.sum():,} of {len(unsupported):,} have most of their "
                "expression in genes that no slide shows; their positions rest on the other genes."
            )
        if obs_names[-1].has_duplicates:
            warnings.append(
                f"{names[n_slides]}: names of cells repeat; results can be matched by order only."
            )
    forms = [values.form_of(one) for one in counts]
    kind: Literal["counts", "normalised", "mixed"] = "normalised" if normalised else "counts"
    if has_cells and normalised and forms[-1] == "counts" and set(forms) != {"counts"}:
        kind = "mixed"
        taken = f"{names[n_slides]}: the values look like counts; taken as normalised, as asked."
        warnings = [text for text in warnings if text != taken]
    elif has_cells and normalised and forms[-1] not in forms[:n_slides]:
        warnings.append(
            f"{names[n_slides]}: the values look {values.describe(counts[-1])}, those of the slides "
            f"{values.describe(counts[0])}. Normalise slides and cells in the same way."
        )
    for text in warnings:
        log.info("%s", text)
    return ValidInputs(
        slides=counts[:n_slides],
        coords=coords,
        cells=counts[-1] if has_cells else None,
        genes=genes,
        kind=kind,
        forms=forms,
        titles=slide_titles(names[:n_slides]),
        donors=donors,
        cells_from=cells_from,
        obs_names=np.asarray(obs_names[-1] if has_cells else [], dtype=str),
        empty_cells=empty[-1] if has_cells else np.zeros(0, dtype=bool),
        empty_spots=empty[:n_slides],
        spot_rows=[np.arange(len(one)) for one in coords],
        unsupported_cells=unsupported,
        warnings=warnings,
    )


def _check_types(inputs: Sequence[object], names: Sequence[str], *, n_slides: int) -> None:
    from anndata import AnnData

    for i, (one, name) in enumerate(zip(inputs, names, strict=False)):
        if not isinstance(one, AnnData):
            raise InputError(
                f"{name}: expected an AnnData, found {type(one).__name__}.",
                "Read files first: sg.read(path).",
            )
        if one.n_obs == 0:
            raise InputError(
                f"{name}: there are no {'spots' if i < n_slides else 'cells'}.", "Check how it was filtered."
            )


def _check_not_empty(counts: sparse.csr_matrix, coords: np.ndarray | None, least: int, name: str) -> None:
    """Refuse a slide (which has coordinates) or cells of which too few show any of the shared genes."""
    shown = ~values.empty_rows(counts)
    if shown.sum() < least:
        few, what = len(shown) < least, "cells" if coords is None else "spots"
        raise InputError(
            f"{name}: expected at least {least} {what} with values in the {counts.shape[1]:,} shared genes, "
            f"found {shown.sum()} of {len(shown):,}.",
            "Fit on more cells of the same experiment; the fitted model then places these, even one alone."
            if few
            else "Is the right matrix given (layer=, --layer), and are names of genes those of its columns?",
        )
    if coords is not None:
        places.check_spread(coords[shown], name)


def _judge(
    counts: sparse.csr_matrix,
    adata: AnnData,
    name: str,
    genes: np.ndarray,
    *,
    normalised: bool,
    cells: bool,
) -> list[str]:
    """Refuse values that cannot be used; warnings about those that can."""
    values.check_finite(counts, genes, name)
    if not normalised:
        values.check_not_negative(counts, genes, name, adata, cells=cells)
        values.check_whole(counts, name, adata, cells=cells)
    if values.looks_binned(counts):
        found = f"{name}: many values equal the largest, {counts.data.max():g}: bins, ranks or clipped values"
        asked = (
            ", taken as normalised, as asked."
            if normalised
            else ", not counts? If so, say normalised=True (--normalised)."
        )
        return [found + asked]
    return [f"{name}: the values look {values.describe(counts)}; taken as normalised, as asked."] * normalised


def _unsupported(slides: list[sparse.csr_matrix], cells: sparse.csr_matrix) -> np.ndarray:
    """Cells with more than half of their expression in genes that no slide shows (N,)."""
    seen = np.sum([np.asarray(abs(slide).sum(axis=0)).ravel() for slide in slides], axis=0) > 0  # (G,)
    size = abs(cells)
    supported = np.asarray(size @ seen.astype(np.float32)).ravel()
    return supported < 0.5 * np.asarray(size.sum(axis=1)).ravel()


@contextmanager
def _collect(problems: list[InputError]) -> Iterator[None]:
    """Collect a problem and continue, so that the user sees all of them at once."""
    try:
        yield
    except InputError as error:
        problems.append(error)


def _raise(problems: list[InputError]) -> None:
    if len(problems) == 1:
        raise problems[0]
    if problems:
        text = "\n".join(f"- {problem}" for problem in problems)
        raise InputError(f"{len(problems)} things in the input cannot be used:\n{text}")
