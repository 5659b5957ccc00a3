"""Expression of many genes: held sparsely, and packed into text that the page unpacks gene by gene.

Every gene is quantised to 8 bits, written densely or as gaps and values, whichever is smaller, and compressed with
deflate, which browsers can undo. Where the genes would make the file too large, values get fewer bits, and then
genes are left out from the end.
"""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from spatialgears.plotting import palette

MISSING = 255  # the code of a missing value
BITS = (8, 5, 4)  # tried in this order: 255, 31 and 15 steps between the lowest and the highest value
BUDGET = 12_000_000  # characters that genes and pictures may take: with plotly, a file of 15 MB
TRIED = 40  # genes whose packed size is measured to choose the bits


class Expression(Mapping[str, np.ndarray]):
    """Values of genes by name, (n,) float32 each; kept as one sparse matrix (m, G), made dense gene by gene.

    ``rows`` (m,) says which of ``n`` rows the matrix has, by default all; the others have no value.
    """

    def __init__(
        self, names: Sequence[str], values: Any, *, rows: np.ndarray | None = None, n: int | None = None
    ) -> None:
        self._column = {name: i for i, name in enumerate(names)}
        self._values = sparse.csc_matrix(values, dtype=np.float32)
        self._rows = rows
        self.n = self._values.shape[0] if n is None else n

    def __getitem__(self, name: str) -> np.ndarray:
        i = self._column[name]
        start, stop = self._values.indptr[i : i + 2]
        index, data = self._values.indices[start:stop], self._values.data[start:stop]
        if self._rows is None:
            column = np.zeros(self.n, dtype=np.float32)
        else:
            column = np.full(self.n, np.nan, dtype=np.float32)
            column[self._rows] = 0
            index = self._rows[index]
        column[index] = data
        return column

    def __iter__(self) -> Iterator[str]:
        return iter(self._column)

    def __len__(self) -> int:
        return len(self._column)


@dataclass(frozen=True)
class Packed:
    """The genes of a report as text, and how much of them was kept."""

    names: list[str]  # genes that are in the file
    cells: list[str]  # one packed text per gene
    #: For each slide, one packed text per gene, or None where it lacks the gene.
    slides: list[list[str | None]]
    #: (low, step, first, last) per gene: a code times ``step`` plus ``low`` is the value, and colours run from ``first`` to
    #: ``last``. Cells and spots differ in depth, so each has its own.
    ends: list[tuple[float, float, float, float]]
    slide_ends: list[tuple[float, float, float, float]]
    bits: int  # bits per value

    @property
    def size(self) -> int:
        """Characters of all texts."""
        return sum(map(len, self.cells)) + sum(len(text) for part in self.slides for text in part if text)


def pack(
    genes: Mapping[str, Any],
    order: np.ndarray,
    on_slides: Sequence[Mapping[str, Any]] = (),
    *,
    budget: int | None = None,
) -> Packed:
    """Pack the genes, the most important first, of the drawn cells in their ``order`` and of the slides.

    ``genes`` has values (n,) of the cells, and ``on_slides`` for each slide those (m,) of its spots, for some of the
    genes. ``budget`` is how many characters all of it may take.
    """
    budget = BUDGET if budget is None else budget
    names = list(genes)
    some = names[:: max(1, len(names) // TRIED)]
    kept, bits = 0, BITS[0]
    for bits in BITS:
        each = _pack(some, genes, order, on_slides, bits).size / max(len(some), 1)
        kept = int(budget / each) if each else len(names)
        if kept >= len(names):
            break
    packed = _pack(names[:kept], genes, order, on_slides, bits)
    while packed.size > budget and len(packed.names) > 1:  # the genes tried were smaller than most
        fewer = max(1, int(len(packed.names) * 0.98 * budget / packed.size))
        packed = Packed(
            packed.names[:fewer],
            packed.cells[:fewer],
            [part[:fewer] for part in packed.slides],
            packed.ends[:fewer],
            packed.slide_ends[:fewer],
            bits,
        )
    return packed


def _pack(
    names: Sequence[str],
    genes: Mapping[str, Any],
    order: np.ndarray,
    on_slides: Sequence[Mapping[str, Any]],
    bits: int,
) -> Packed:
    made = Packed(list(names), [], [[] for _ in on_slides], [], [], bits)
    for name in names:
        coded, ends = quantise([np.asarray(genes[name])[order]], bits)
        made.cells.extend(squeeze(one) for one in coded if one is not None)
        made.ends.append(ends)
        spots = [np.asarray(part[name]) if name in part else None for part in on_slides]
        coded, ends = quantise(spots, bits)
        for texts, one in zip(made.slides, coded, strict=True):
            texts.append(None if one is None else squeeze(one))
        made.slide_ends.append(ends)
    return made


def quantise(
    parts: Sequence[Any], bits: int, *, missing: int = MISSING
) -> tuple[list[np.ndarray | None], tuple[float, float, float, float]]:
    """Codes of numbers on one scale with ``2**bits - 1`` steps, and (low, step, first, last) of that scale."""
    numbers = [None if part is None else np.asarray(part, np.float64) for part in parts]
    pooled = np.concatenate([part for part in numbers if part is not None] or [np.empty(0)])
    finite = pooled[np.isfinite(pooled)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    step = (high - low) / (2**bits - 2) or 1.0

    def code(part: np.ndarray) -> np.ndarray:
        steps = np.where(np.isfinite(part), (part - low) / step, missing)
        return np.rint(steps).astype("<u1" if missing == MISSING else "<u2")

    return [None if part is None else code(part) for part in numbers], (low, step, *palette.limits(pooled))


def squeeze(codes: np.ndarray) -> str:
    """8-bit codes as text: "d" and the codes, or "s" and what is not zero as gaps and values; deflated, in base64."""
    (place,) = np.nonzero(codes)
    gaps = np.diff(place, prepend=-1) - 1
    ends = np.cumsum(gaps // 255 + 1)  # a byte of 255 says: 255 further, no value yet
    stream = np.full(ends[-1] if len(ends) else 0, 255, dtype=np.uint8)
    stream[ends - 1] = gaps % 255
    kinds = {"d": _deflate(codes.tobytes()), "s": _deflate(stream.tobytes() + codes[place].tobytes())}
    kind = min(kinds, key=lambda one: len(kinds[one]))
    return kind + b64encode(kinds[kind]).decode("ascii")


def _deflate(raw: bytes) -> bytes:
    """Deflated by Huffman codes alone: expression hardly repeats, and looking for repeats takes ten times longer."""
    squeezed = zlib.compressobj(strategy=zlib.Z_HUFFMAN_ONLY)
    return squeezed.compress(raw) + squeezed.flush()
