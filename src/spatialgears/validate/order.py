"""One order for the same data: results do not depend on the order in which cells, spots or slides are given.

Cells and spots are sorted by a hash of their contents, slides by the hashes of their spots. Genes are sorted by name.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from spatialgears.runtime.hashing import hashed, mix
from spatialgears.validate import ValidInputs

#: Values whose hashes are held at one time.
CHUNK = 10_000_000


def name_keys(names: NDArray[np.str_]) -> NDArray[np.uint64]:
    """A hash of each name (n,)."""
    return pd.util.hash_array(np.asarray(names, dtype=object), categorize=False)


def row_keys(counts: sparse.csr_matrix, genes: NDArray[np.str_]) -> NDArray[np.uint64]:
    """A hash of each row (n,): equal for equal values of the same genes, whatever the order of the genes (G,)."""
    named, keys = mix(name_keys(genes)), np.zeros(counts.shape[0], np.uint64)
    ends = np.searchsorted(counts.indptr, np.arange(CHUNK, counts.nnz + CHUNK, CHUNK), side="left")
    first = 0
    for last in np.minimum(np.unique(ends), counts.shape[0]):
        some = slice(counts.indptr[first], counts.indptr[last])
        values = counts.data[some].astype(np.float32).view(np.uint32)
        entries = mix(named[counts.indices[some]] ^ mix(values.astype(np.uint64)))
        total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(entries, dtype=np.uint64)])  # modulo 2^64
        at = counts.indptr[first : last + 1] - counts.indptr[first]
        keys[first:last] = total[at[1:]] - total[at[:-1]]
        first = last
    return keys


def spot_keys(
    counts: sparse.csr_matrix, coords: NDArray[np.float64], genes: NDArray[np.str_]
) -> NDArray[np.uint64]:
    """A hash of each spot (n,), of its values and its coordinates (n, 2)."""
    x, y = (np.ascontiguousarray(one + 0.0).view(np.uint64) for one in np.asarray(coords, np.float64).T)
    return mix(row_keys(counts, genes) + mix(x + mix(y)))


def cell_keys(
    counts: sparse.csr_matrix,
    genes: NDArray[np.str_],
    others: sparse.csr_matrix | None = None,
    other_genes: NDArray[np.str_] | None = None,
) -> NDArray[np.uint64]:
    """A hash of each cell (n,), of its values of the panel's ``genes`` and of the others, where these are used."""
    keys = row_keys(counts, genes)
    return keys if others is None or other_genes is None else keys + row_keys(others, other_genes)


def row_order(
    counts: sparse.csr_matrix,
    genes: NDArray[np.str_],
    others: sparse.csr_matrix | None = None,
    other_genes: NDArray[np.str_] | None = None,
) -> NDArray[np.int64]:
    """The cells (n,) in their canonical order, by the panel's genes first; equal ones stay as they are."""
    keys = row_keys(counts, genes)
    if others is None or other_genes is None:
        return np.argsort(keys, kind="stable")
    return np.lexsort((keys + row_keys(others, other_genes), keys))


def set_key(counts: sparse.csr_matrix) -> np.int64:
    """A hash of all rows that have a value, whatever their order; of genes by position."""
    keys = row_keys(counts, np.arange(counts.shape[1]).astype(str))[np.diff(counts.indptr) > 0]
    return mix(keys).sum(dtype=np.uint64).astype(np.int64)


def sampled_by_name(names: NDArray[np.str_], size: int, *, seed: int) -> NDArray[np.int64]:
    """Positions, sorted, of a random ``size`` of the names: the same names in whatever order they come."""
    return np.sort(np.argsort(hashed(seed, name_keys(names)), kind="stable")[:size])


def canonical_order(inputs: ValidInputs) -> tuple[ValidInputs, list[int]]:
    """The inputs in canonical order; and for each slide, in the order given, its position there."""
    keys = [spot_keys(*one, inputs.genes) for one in zip(inputs.slides, inputs.coords, strict=True)]
    slides = np.argsort([mix(one).sum(dtype=np.uint64) for one in keys], kind="stable").tolist()
    spots = [np.argsort(one, kind="stable") for one in keys]
    found = replace(
        inputs,
        slides=[inputs.slides[s][spots[s]] for s in slides],
        coords=[inputs.coords[s][spots[s]] for s in slides],
        empty_spots=[inputs.empty_spots[s][spots[s]] for s in slides],
        spot_rows=[inputs.spot_rows[s][spots[s]] for s in slides],
        titles=[inputs.titles[s] for s in slides],
        donors=replace(inputs.donors, names=tuple(inputs.donors.names[s] for s in slides)),
        forms=[*(inputs.forms[s] for s in slides), *inputs.forms[len(slides) :]],
    )
    if inputs.cells is not None:
        cells = row_order(inputs.cells, inputs.genes, inputs.others, inputs.other_genes)
        found = replace(
            found,
            cells=inputs.cells[cells],
            others=None if inputs.others is None else inputs.others[cells],
            obs_names=inputs.obs_names[cells],
            empty_cells=inputs.empty_cells[cells],
            unsupported_cells=inputs.unsupported_cells[cells],
        )
    return found, np.argsort(slides).tolist()
