"""Steps 5 and 6 of section 3.5: how well patches agree, and one robust distance for each pair of cells."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from spatialgears.assembly.measure import Measurements
from spatialgears.assembly.patches import MIN_SUPPORT

MAX_SPREAD = 0.5  # the paper's appendix: relative spread of an edge's measurements above which it is dropped
LEAST_SHARED = 5  # section 3.5: overlaps of fewer cells say nothing about two patches
_FURTHEST = 16  # a measurement is compared with at most this many others of its pair
_FLOOR = 1e-6  # share of the median distance below which two cells are at one point


@dataclass(frozen=True)
class DistanceGraph:
    """The stitched distance graph G_D."""

    #: (E,) the cells of each edge, first < second.
    first: NDArray[np.int64]
    second: NDArray[np.int64]
    distance: NDArray[np.float64]  # (E,) stitched distances
    weight: NDArray[np.float64]  # (E,) confidence omega in (0, 1)
    support: NDArray[np.int64]  # (E,) number of patches that measured the edge
    n_cells: int
    #: Median over pairs of overlapping patches of the mean absolute difference of log distances.
    disagreement: float
    reliability: NDArray[np.float64]  # (P,) a_p
    dropped: int  # measured pairs that were dropped for little support or large spread
    #: Edges that were kept although they fail that filter, because nothing else joined their cells to the rest.
    rejoined: int


def stitch(measurements: Measurements, *, weighted: bool = True) -> DistanceGraph:
    """Aggregate measurements into the distance graph; O(M log M) for one sort, the rest linear.

    ``weighted`` gives patches that agree with others more weight; without it all patches have equal weight.
    """
    n_cells, distance = measurements.n_cells, measurements.distance
    distance = np.maximum(distance, _FLOOR * max(float(np.median(distance)), 1e-290))
    between = disagreement(replace(measurements, distance=distance))
    typical = float(np.median(between.data)) if between.nnz else 0.0
    trust = reliability(between, typical) if weighted else np.ones(measurements.n_patches)

    order = np.lexsort((distance, measurements.pair))
    patch, pair, distance = measurements.patch[order], measurements.pair[order], distance[order]
    start = np.flatnonzero(np.diff(pair, prepend=-1))
    support = np.diff(start, append=len(pair))
    weight = trust[patch]
    middle = weighted_median(distance, weight, start)
    mass = np.add.reduceat(weight, start)
    spread = np.add.reduceat(weight * np.abs(distance - np.repeat(middle, support)), start) / (mass * middle)

    trusted = mass / np.median(trust)  # the number of measurements, in units of a typical patch
    omega = trusted / (1 + trusted) / (1 + (spread / MAX_SPREAD) ** 2)
    first, second = np.divmod(pair[start], n_cells)
    good = (support >= min(MIN_SUPPORT, measurements.n_patches)) & (spread <= MAX_SPREAD)
    keep = good | _between_parts(first, second, n_cells, held=good)
    return DistanceGraph(
        first[keep],
        second[keep],
        middle[keep],
        omega[keep],
        support[keep],
        n_cells,
        typical,
        trust,
        dropped=int((~keep).sum()),
        rejoined=int((keep & ~good).sum()),
    )


def disagreement(measurements: Measurements) -> sparse.csr_matrix:
    """Symmetric (P, P) mean absolute difference of log distances over pairs that both patches measured.

    Each measurement is compared with the next ``_FURTHEST`` of its pair at most, so the cost stays O(M). Overlaps of
    fewer than five cells are skipped.
    """
    pair, patch, logs = measurements.pair, measurements.patch, np.log(measurements.distance)
    shape = (measurements.n_patches, measurements.n_patches)
    seen = sparse.csr_matrix(shape, dtype=np.complex128)  # sum of differences + i * their number
    for offset in range(1, _FURTHEST + 1):
        at = np.flatnonzero(pair[offset:] == pair[:-offset])
        if not len(at):
            break
        apart = np.abs(logs[at + offset] - logs[at])
        seen += sparse.csr_matrix((apart + 1j, (patch[at], patch[at + offset])), shape)
    both = sparse.coo_matrix((seen + seen.T).multiply(measurements.shared >= LEAST_SHARED))
    return sparse.csr_matrix((both.data.real / both.data.imag, (both.row, both.col)), shape, dtype=np.float64)


def reliability(between: sparse.csr_matrix, typical: float) -> NDArray[np.float64]:
    """a_p in (0, 1]: exp of minus a patch's mean disagreement over the typical one; 1 for a single patch."""
    neighbours = np.diff(between.indptr)
    mean = np.asarray(between.sum(1)).ravel() / np.maximum(neighbours, 1)
    return np.exp(-np.minimum(mean / max(typical, 1e-12), 30.0))


def weighted_median(
    values: NDArray[np.float64], weights: NDArray[np.float64], start: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The weighted median of each segment beginning at ``start``; values ascend within a segment. O(M).

    Where exactly half the weight lies on either side it is the midpoint, so equal weights give the usual
    median.
    """
    size = np.diff(start, append=len(values))
    segment = np.repeat(np.arange(len(start)), size)
    weights = weights / np.add.reduceat(weights, start)[segment]
    rising = np.cumsum(weights)
    share = rising - (rising[start] - weights[start])[segment]
    lower = start + np.add.reduceat((share < 0.5 - 1e-7).astype(np.int64), start)
    upper = start + np.add.reduceat((share <= 0.5 + 1e-7).astype(np.int64), start)
    last = start + size - 1
    return (values[np.minimum(lower, last)] + values[np.minimum(upper, last)]) / 2


def _between_parts(
    first: NDArray[np.int64], second: NDArray[np.int64], n_cells: int, *, held: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Edges between parts that the held edges leave unconnected."""
    edges = sparse.csr_matrix(
        (np.ones(int(held.sum()), bool), (first[held], second[held])), (n_cells, n_cells)
    )
    _, part = connected_components(edges, directed=False)
    return part[first] != part[second]
