"""Values of expression: where they lie, that they are numbers, and what kind of numbers they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from scipy import sparse

from spatialgears.errors import InputError
from spatialgears.text import number

if TYPE_CHECKING:
    from anndata import AnnData

#: What values look like: whole counts; normalised but linear; log-transformed; scaled (negative values).
Form = Literal["counts", "linear", "log", "scaled"]

#: Entries of a matrix on disk that are read at one time.
CHUNK_ENTRIES = 50_000_000

#: No expression is larger.
LARGEST = 1e9


def values_of(adata: AnnData, layer: str | None, name: str) -> tuple[Any, pd.DataFrame]:
    """The matrix asked for and its genes: ``.X``, a key of ``.layers``, or ``"raw"`` for ``.raw``."""
    if layer is None or layer == "X":
        if (x := _x(adata)) is not None:
            return x, adata.var
        problem = f"{name}: .X is empty"
    elif layer in adata.layers:
        return adata.layers[layer], adata.var
    elif layer == "raw" and adata.raw is not None:
        return adata.raw.X, adata.raw.var
    else:
        problem = f"{name}: there is no layer {layer!r}"
    raise InputError(
        f"{problem}; available are {_available(adata)}.",
        "Pass layer= (--layer) with one of these; --sc-layer is for the cells alone, and X stands for .X.",
    )


def _x(adata: AnnData) -> Any:
    try:
        return adata.X
    except KeyError:  # a file without it that is left on disk
        return None


def check_structure(matrix: Any) -> None:
    """Refuse, with a ValueError, a sparse matrix in memory whose indices point outside it; slicing it would crash."""
    if not sparse.issparse(matrix) or matrix.format not in ("csr", "csc"):
        return
    major, minor = matrix.shape if matrix.format == "csr" else matrix.shape[::-1]
    pointers, indices = matrix.indptr, matrix.indices
    whole = len(pointers) == major + 1 and pointers[0] == 0 and bool((np.diff(pointers) >= 0).all())
    whole = whole and pointers[-1] <= min(len(indices), len(matrix.data))
    if not whole or (len(indices) and not 0 <= indices.min() <= indices.max() < minor):
        raise ValueError("the indices of a sparse matrix point outside it")


def by_column(matrix: Any) -> bool:
    """Whether a matrix is stored by columns (CSC): reading columns is cheap and rows expensive, in others the reverse."""
    return getattr(matrix, "format", None) == "csc"


def parts(matrix: Any, wanted: np.ndarray | None = None) -> Iterator[tuple[int, Any]]:
    """A matrix in memory, in HDF5 or in zarr, as sparse parts along the axis it is stored by, and where each begins.

    A part is of columns of a CSC matrix and of rows of any other, and has ``CHUNK_ENTRIES`` entries, zeros counted, or
    one row or column. Between those ``wanted`` (sorted; all by default), what is not is left out unless it is little.
    """
    along, across = matrix.shape[::-1] if by_column(matrix) else matrix.shape
    step = max(1, CHUNK_ENTRIES // max(across, 1))
    wanted = np.arange(along) if wanted is None else wanted
    near = max(1, step // 50)  # so few more cost less to read than another access does
    for run in np.split(wanted, np.flatnonzero(np.diff(wanted) > near) + 1):
        first, end = (int(run[0]), int(run[-1]) + 1) if len(run) else (0, 0)
        for start in range(first, end, step):
            some = slice(start, min(start + step, end))
            part = matrix[:, some] if by_column(matrix) else sparse.csr_matrix(_widened(matrix[some]))
            check_structure(part)
            yield start, part


def _widened(values: Any) -> Any:
    """Half precision, which sparse matrices cannot hold, as single."""
    half = isinstance(values, np.ndarray) and values.dtype == np.float16
    return values.astype(np.float32) if half else values


def row_totals(matrix: Any) -> np.ndarray:
    """The sum of every row (n,), by parts."""
    totals = np.zeros(matrix.shape[0])
    for start, part in parts(matrix):
        first = 0 if by_column(matrix) else start
        totals[first : first + part.shape[0]] += np.asarray(part.sum(axis=1)).ravel()
    return totals


def to_csr(values: Any, columns: np.ndarray, rows: np.ndarray | None = None) -> sparse.csr_matrix:
    """The given columns, in that order, of all or some rows (sorted), as a new float32 CSR matrix.

    What is on disk is read in :func:`parts`: memory is that of one part and twice the result. A CSC matrix is read once,
    and only the given columns of it; of others all columns are read, and rows that are given or lie near these.
    """
    if sparse.issparse(values) or isinstance(values, np.ndarray):
        values = _widened(values)
        check_structure(values)
        if sparse.issparse(values):
            values = values if values.format == "csr" else values.tocsc()
        chosen = sparse.csr_matrix((values if rows is None else values[rows])[:, columns])
    elif by_column(values):
        wanted, position = np.unique(columns, return_inverse=True)
        blocks = [
            (part if rows is None else part[rows])[:, _within(wanted, start, part.shape[1])]
            for start, part in parts(values, wanted)
        ]
        chosen = sparse.csr_matrix(sparse.hstack(blocks, format="csc")[:, position])
    else:
        rows = np.arange(values.shape[0]) if rows is None else rows
        blocks = [
            part[_within(rows, start, part.shape[0])][:, columns] for start, part in parts(values, rows)
        ]
        chosen = sparse.vstack(blocks, format="csr")
    if chosen.dtype.kind not in "biuf":
        raise TypeError(f"they are {chosen.dtype}")
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
        chosen = chosen.astype(np.float32, copy=False)  # indexing made it a block of its own
    chosen.sum_duplicates()
    chosen.eliminate_zeros()
    return chosen


def _within(wanted: np.ndarray, start: int, length: int) -> np.ndarray:
    """Those of the sorted positions that lie in a part, counted from its beginning."""
    first, last = np.searchsorted(wanted, [start, start + length])
    return wanted[first:last] - start


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Turn a failure to read values into an error that names the input."""
    try:
        yield
    except InputError:
        raise
    except TypeError as error:
        raise InputError(
            f"{name}: the values are not numbers ({error}).", "Convert them to numbers."
        ) from error
    except ValueError as error:  # words among the values, or a matrix or its checksum that is damaged
        raise InputError(
            f"{name}: the values could not be read as numbers ({error}).",
            "Are they numbers, and is the file complete? Copy it again, or write it again with anndata.",
        ) from error
    except (OSError, MemoryError, IndexError, RuntimeError) as error:
        raise InputError(
            f"{name}: the values could not be read ({str(error) or 'not enough memory'}).",
            "Is the file complete? Copy it again, or write it again with anndata.",
        ) from error


def check_finite(counts: sparse.csr_matrix, genes: np.ndarray, name: str, *, first: int = 0) -> None:
    """Refuse NaN, infinite values, and those too large to be computed with; rows are numbered from ``first``."""
    bad = ~np.isfinite(counts.data)
    if bad.any():
        kinds = [
            word for word, found in (("NaN", np.isnan), ("infinite", np.isinf)) if found(counts.data).any()
        ]
        found = number(int(bad.sum()), f"{' or '.join(kinds)} value")
        raise InputError(
            f"{name}: expected finite values, found {found}, e.g. {_example(counts, bad, genes, first)}.",
            "Start again from the raw counts, or replace what is missing by zero if that is what it means.",
        )
    large = abs(counts.data) > LARGEST
    if large.any():
        raise InputError(
            f"{name}: expected values up to {LARGEST:g}, found {number(int(large.sum()), 'larger one')}, "
            f"e.g. {_example(counts, large, genes, first)}.",
            "No cell holds so many molecules: start again from the raw counts.",
        )


def check_not_negative(
    counts: sparse.csr_matrix, genes: np.ndarray, name: str, adata: AnnData, *, cells: bool, first: int = 0
) -> None:
    """Refuse negative values where counts are expected; rows are numbered from ``first``."""
    bad = counts.data < 0
    if bad.any():
        raise InputError(
            f"{name}: expected counts, found {number(int(bad.sum()), 'negative value')} (smallest "
            f"{counts.data.min():g}), e.g. {_example(counts, bad, genes, first)}. They look scaled.",
            f"{_layer_to_give(adata, cells=cells)}, or accept scaled values with normalised=True (--normalised).",
        )


def check_whole(counts: sparse.csr_matrix, name: str, adata: AnnData, *, cells: bool) -> None:
    """Refuse values that are not whole where counts are expected, and say what they look like."""
    fractional = counts.data != np.round(counts.data)
    if fractional.any():
        raise InputError(
            f"{name}: expected raw counts (whole numbers), found {fractional.mean():.0%} fractional values, "
            f"e.g. {', '.join(f'{value:.4g}' for value in counts.data[fractional][:3])}; "
            f"they look {describe(counts)}. "
            f"Available: {_elsewhere(adata)}.",
            f"{_layer_to_give(adata, cells=cells)}, or accept these values with normalised=True (--normalised); without "
            "counts, depth cannot be matched and results are weaker.",
        )


def form_of(counts: sparse.csr_matrix) -> Form:
    """What the values look like."""
    if not counts.nnz or (counts.data.min() >= 0 and bool((counts.data == np.round(counts.data)).all())):
        return "counts"
    if counts.data.min() < 0:
        return "scaled"
    if _constant(counts.sum(axis=1)):
        return "linear"
    return "log" if counts.data.max() < 20 else "linear"


def describe(counts: sparse.csr_matrix) -> str:
    """The form of the values in words, with the library size they were brought to where that shows."""
    form = form_of(counts)
    if form in ("counts", "scaled"):
        return "like counts" if form == "counts" else "scaled (centred)"
    totals = np.asarray((counts.expm1() if form == "log" else counts).sum(axis=1))
    middle = float(np.median(totals))
    each = f"values scaled to {middle:,.{0 if middle >= 10 else 2}f} each" if _constant(totals) else ""
    if form == "log":
        return f"like log1p of {each}" if each else "log-transformed"
    return f"like {each}, not log-transformed" if each else "normalised but not log-transformed"


def looks_binned(counts: sparse.csr_matrix) -> bool:
    """Whole numbers that pile up at their maximum, as ranks, bins and clipped values do and counts do not."""
    top = counts.data.max(initial=0)
    return bool(top >= 20 and (counts.data == top).sum() > max(5, 1e-3 * counts.nnz))


def empty_rows(counts: sparse.csr_matrix) -> np.ndarray:
    """Which rows have no value but zero (n,)."""
    return np.diff(counts.indptr) == 0


def _constant(totals: np.ndarray) -> bool:
    """Whether most rows have the same total: the middle 80% within 1%."""
    low, middle, high = np.quantile(np.asarray(totals), [0.1, 0.5, 0.9])
    return bool(middle > 0 and high - low < 0.01 * middle)


def _available(adata: AnnData) -> str:
    names = [*([".X"] if _x(adata) is not None else []), *(f"layer {name!r}" for name in adata.layers)]
    return ", ".join([*names, *(["'raw' (.raw)"] if adata.raw is not None else [])]) or "nothing"


def _example(counts: sparse.csr_matrix, bad: np.ndarray, genes: np.ndarray, first: int) -> str:
    entry = int(np.flatnonzero(bad)[0])
    row = int(np.searchsorted(counts.indptr, entry, side="right")) - 1
    return f"{counts.data[entry]:g} in row {first + row}, gene {genes[counts.indices[entry]]}"


def _other_values(adata: AnnData) -> dict[str, bool]:
    """Where else this object has values, as ``layer=`` names them, and whether they are whole numbers."""
    places = dict(adata.layers.items()) | ({} if adata.raw is None else {"raw": adata.raw.X})
    return {str(name): _is_whole(values) for name, values in places.items()}


def _elsewhere(adata: AnnData) -> str:
    described = [
        ("'raw' (.raw)" if name == "raw" else f"layer {name!r}") + " (whole numbers)" * whole
        for name, whole in _other_values(adata).items()
    ]
    return ", ".join(described) or "no other layer"


def _layer_to_give(adata: AnnData, *, cells: bool) -> str:
    """Where raw counts are to be found, as an option where that is known."""
    name = next((name for name, whole in _other_values(adata).items() if whole), None)
    if name is None:
        return "Give the layer with raw counts (layer=, --layer; --sc-layer for the cells alone)"
    option = (
        f"--sc-layer {quote(name)}"
        if cells
        else f"--layer {quote(name)}, with --sc-layer X if the cells' counts are in .X"
    )
    return f"Give the whole numbers: read(path, layer={name!r}) ({option})"


def _is_whole(values: Any) -> bool:
    try:
        _, some = next(parts(values, np.arange(min(200, *values.shape))))
    except (OSError, RuntimeError, StopIteration, TypeError, ValueError):
        return False
    data = some.data if sparse.issparse(some) else np.asarray(some)
    return bool((data >= 0).all() and (data == np.round(data)).all())
