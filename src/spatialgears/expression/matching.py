"""Counts for slides that have none: in situ intensities or normalised values, quantile-matched to the cells by gene.

Spots of a slide with counts are thinned to the depth of cells, so that training sees profiles as noisy as those of cells.
Values that are not counts cannot be thinned. Only each gene's rank order over the spots is kept; the cells give the
distribution of its rates. Quantile matching turns values into rates, and these into counts of a deep profile, which can be
thinned like any other.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from scipy.special import gammaincinv
from scipy.stats import rankdata

from spatialgears.expression.normalise import Matrix

DEPTH = 200.0  # of a matched profile, in median depths of the cells: thinning makes the noise, not rounding
#: Smallest coefficient of variation of a gene's rates, which few counts would underestimate.
LEAST_SPREAD = 0.3
GENES = 500  # made dense at once


def matched_counts(values: Matrix, cells: Matrix) -> sp.csr_matrix:
    """Counts (n, G) with the order of ``values`` (n, G) over spots, at rates distributed as those of cells (N, G).

    The rates of a gene are taken to follow a gamma distribution over the cells, whose counts are Poisson given rate and
    depth. Its mean and variance are those of the counts less their Poisson variance. The spot at quantile q of the values
    gets the rate at quantile q. Spots with the same value get the same rate; a gene that no cell shows gets none. The
    result has float32 whole numbers, at ``DEPTH`` times the depth of a typical cell.
    """
    mean, variance = rate_moments(cells)
    depth = DEPTH * np.median(_sums(cells, 1)[_sums(cells, 1) > 0])
    values, parts = sp.csc_matrix(values), []
    for start in range(0, len(mean), GENES):
        own = slice(start, start + GENES)
        x = values[:, own].toarray()
        quantile = (rankdata(x, axis=0) - 0.5) / len(x)
        shape = np.where(mean[own] > 0, mean[own] ** 2 / np.where(mean[own] > 0, variance[own], 1), 1)
        rates = gammaincinv(shape, quantile) * mean[own] / shape
        parts.append(sp.csc_matrix(np.rint(rates * depth), dtype=np.float32))
    return sp.csr_matrix(sp.hstack(parts))


def rate_moments(cells: Matrix) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance (G,) of each gene's rate over cells with counts (N, G): its share of a cell's counts."""
    x = sp.csr_matrix(cells, dtype=np.float64)
    depth = _sums(x, 1)  # (N,)
    total, square = depth.sum(), (depth**2).sum()
    if total == 0:
        return np.zeros(x.shape[1]), np.zeros(x.shape[1])
    mean = _sums(x, 0) / total
    # sum of (count - depth mean)^2 - depth mean, over depth^2
    deviation = _sums(x.multiply(x), 0) - 2 * mean * (x.T @ depth) + mean**2 * square
    variance = np.maximum((deviation - mean * total) / square, (LEAST_SPREAD * mean) ** 2)
    return mean, variance


def _sums(x: Matrix, axis: int) -> np.ndarray:
    return np.asarray(x.sum(axis), dtype=np.float64).ravel()
