"""Very many cells: some are enough to learn what cells look like, but the values of all are judged."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from spatialgears.validate import counts as values

if TYPE_CHECKING:
    from anndata import AnnData

#: More cost time and memory, and change nothing.
FIT_CELLS = 50_000


def sample_cells(cells: AnnData, *, seed: int) -> AnnData:
    """The cells themselves, or a random ``FIT_CELLS`` of them as a view."""
    if getattr(cells, "n_obs", 0) <= FIT_CELLS:  # what is no AnnData, validation refuses
        return cells
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=[zlib.crc32(b"cells to fit")]))
    return cells[np.sort(rng.permutation(cells.n_obs)[:FIT_CELLS])]


def named(name: str, cells: AnnData) -> str:
    """What to call the cells in messages that are about a sample of them."""
    return name if getattr(cells, "n_obs", 0) <= FIT_CELLS else f"{name} (a random {FIT_CELLS:,})"


def judge_all(cells: AnnData, *, layer: str | None, normalised: bool, name: str) -> None:
    """Refuse values of cells that a sample of them may not show: not finite, negative, not whole.

    In chunks: memory does not grow with cells.
    """
    if getattr(cells, "n_obs", 0) <= FIT_CELLS:
        return
    matrix, var = values.values_of(cells, layer, name)
    genes = var.index.to_numpy(dtype=str)
    for part in _chunks(matrix):
        values.check_finite(part, genes, name)
        if not normalised:
            values.check_not_negative(part, genes, name)
            values.check_whole(part, name, values.whole_elsewhere(cells))


def _chunks(matrix: Any) -> Iterator[sparse.csr_matrix]:
    """The matrix, a part of it at a time: as large as the whole, with nothing outside the part."""
    rows, columns = matrix.shape
    by_column = getattr(matrix, "format", None) == "csc"
    along, across = (columns, rows) if by_column else (rows, columns)
    step = max(1, values.CHUNK_ENTRIES // max(across, 1))
    for start in range(0, along, step):
        if by_column:
            part = sparse.coo_matrix(matrix[:, start : start + step])
            yield sparse.csr_matrix((part.data, (part.row, part.col + start)), shape=matrix.shape)
        else:
            part = sparse.csr_matrix(matrix[start : start + step])
            before, after = np.zeros(start), np.full(rows - start - part.shape[0], part.nnz)
            pointers = np.concatenate([before, part.indptr, after]).astype(np.int64)
            yield sparse.csr_matrix((part.data, part.indices, pointers), shape=matrix.shape)
