"""Very many cells: a sample is enough to fit, but the values of all are checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from spatialgears.validate import ValidInputs, input_names, validate_inputs
from spatialgears.validate import counts as values
from spatialgears.validate.order import sampled_by_name

if TYPE_CHECKING:
    from anndata import AnnData

    from spatialgears.validate.donors import CellsFrom

#: More cost time and memory, and change nothing.
FIT_CELLS = 50_000


def validate_sampled(
    slides: Sequence[AnnData],
    cells: AnnData | None,
    *,
    seed: int,
    layer: str | None = None,
    spatial_key: str = "spatial",
    normalised: bool = False,
    names: Sequence[str] | None = None,
    donors: Sequence[str] | None = None,
    cells_from: CellsFrom | None = None,
) -> ValidInputs:
    """Validate slides and a sample of very many cells, whose values are all checked. A run, a fit and a check call this."""
    names = input_names(names, len(slides))
    valid = validate_inputs(
        slides,
        cells,
        rows=None if cells is None else sample_cells(cells, seed=seed),
        layer=layer,
        spatial_key=spatial_key,
        normalised=normalised,
        names=names if cells is None else [*names[:-1], named(names[-1], cells)],
        donors=donors,
        cells_from=cells_from,
    )
    if cells is not None:
        judge_all(cells, valid.genes, layer=layer, normalised=normalised, name=names[-1])
    return valid


def sample_cells(cells: AnnData, *, seed: int) -> np.ndarray | None:
    """Rows of a random ``FIT_CELLS`` of the cells, drawn by their names and sorted, or None for all of them."""
    if getattr(cells, "n_obs", 0) <= FIT_CELLS:  # what is no AnnData, validation refuses
        return None
    return sampled_by_name(cells.obs_names.to_numpy(), FIT_CELLS, seed=seed)


def named(name: str, cells: AnnData) -> str:
    """What to call the cells in messages that are about a sample of them."""
    return name if getattr(cells, "n_obs", 0) <= FIT_CELLS else f"{name} (a random {FIT_CELLS:,})"


def judge_all(cells: AnnData, shared: np.ndarray, *, layer: str | None, normalised: bool, name: str) -> None:
    """Refuse values of ``shared`` genes that a sample of the cells may not show: not finite, negative, not whole.

    In parts: memory does not grow with cells.
    """
    if getattr(cells, "n_obs", 0) <= FIT_CELLS:
        return
    matrix, var = values.values_of(cells, layer, name)
    genes = var.index.to_numpy(dtype=str)
    known = np.isin(genes, shared)
    by_column = values.by_column(matrix)
    with values.readable(name):
        for start, part in values.parts(matrix):
            counts = sparse.csr_matrix(part)
            first, columns = (0, slice(start, start + counts.shape[1])) if by_column else (start, slice(None))
            counts, mine = counts[:, np.flatnonzero(known[columns])], genes[columns][known[columns]]
            values.check_finite(counts, mine, name, first=first)
            if not normalised:
                values.check_not_negative(counts, mine, name, cells, cells=True, first=first)
                values.check_whole(counts, name, cells, cells=True)
