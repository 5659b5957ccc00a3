"""Genes that the cells have and the slides lack. No slide shows their pattern, but they tell which cells are of a kind."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from spatialgears.validate import counts as values
from spatialgears.validate.genes import Genes

DETECTED = 0.02  # genes detected in a smaller share of the cells say little of single cells


def read_values(
    matrix: Any, one: Genes, genes: NDArray[np.str_], rows: NDArray[np.int64] | None
) -> sparse.csr_matrix:
    """Values (n, G) of these genes, which the input has once, of all or some rows (sorted)."""
    if not len(genes):
        return sparse.csr_matrix((len(one.obs_names) if rows is None else len(rows), 0), dtype=np.float32)
    alone = ~one.var.index.duplicated(keep=False)  # some other names may repeat
    columns = np.flatnonzero(alone)[one.var.index[alone].get_indexer(genes)]
    with values.readable(one.name):
        return values.to_csr(matrix, columns, rows)


def other_genes(
    matrix: Any, one: Genes, shared: NDArray[np.str_], rows: NDArray[np.int64] | None
) -> tuple[sparse.csr_matrix, NDArray[np.str_]]:
    """Counts (n, E) of the cells' genes that are not ``shared`` and are detected often enough, and their names (E,), sorted.

    Genes whose values are not counts are left out: nothing depends on any single one of them.
    """
    unique = one.var.index[~one.var.index.duplicated(keep=False)]
    names = np.sort(np.setdiff1d(unique.to_numpy(dtype=str), shared))
    counts = read_values(matrix, one, names, rows)
    detected = np.bincount(counts.indices, minlength=len(names)) / max(counts.shape[0], 1)
    kept = np.flatnonzero((detected > DETECTED) & ~not_counts(counts))
    return counts[:, kept], names[kept]


def counts_of(
    matrix: Any, one: Genes, genes: NDArray[np.str_], rows: NDArray[np.int64] | None
) -> tuple[sparse.csr_matrix, NDArray[np.bool_]]:
    """Counts (n, E) of the ``genes`` (E,) that a model was fitted with, and which are missing or are not counts; zero there."""
    unique = one.var.index[~one.var.index.duplicated(keep=False)]
    place = np.flatnonzero(np.isin(genes, unique.to_numpy(dtype=str)))
    found = read_values(matrix, one, genes[place], rows)
    good = ~not_counts(found)
    found, place = found[:, np.flatnonzero(good)], place[good]
    missing = np.ones(len(genes), dtype=bool)
    missing[place] = False
    shape = (found.shape[0], len(genes))
    return sparse.csr_matrix((found.data, place[found.indices], found.indptr), shape=shape), missing


def not_counts(counts: sparse.csr_matrix) -> NDArray[np.bool_]:
    """Genes (G,) with a value that is not finite, negative or not whole."""
    bad = ~np.isfinite(counts.data) | (counts.data < 0) | (counts.data != np.rint(counts.data))
    return np.bincount(counts.indices[bad], minlength=counts.shape[1]) > 0
