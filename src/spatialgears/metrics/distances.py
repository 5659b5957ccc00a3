"""Global geometry: how well all pairwise distances are kept (paper, appendix "Evaluation Metrics").

Every function takes coordinates (n, 2), which are first centred and scaled to unit RMS radius, or condensed
distances (n (n - 1) / 2,) as :func:`scipy.spatial.distance.pdist` gives them, which are taken as they are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spatialgears.errors import InputError
from spatialgears.metrics.points import as_distances


def _dot(a: NDArray, b: NDArray) -> float:
    """The inner product in float64, without float64 copies."""
    return float(np.einsum("i,i->", a, b, dtype=np.float64))


def centred_ranks(values: NDArray[np.float32]) -> NDArray[np.int32]:
    """Twice the mid-rank of each non-negative value, less its mean: exact integers, ties included.

    The bits of a non-negative float sort as its value does, so one in-place sort of (bits, position) packed
    into 64-bit words replaces an argsort of 51 million numbers at a third of its time.
    """
    size = values.size
    values = values + np.float32(0)  # -0.0 becomes 0.0: its bits would sort last
    keys = values.view(np.uint32).astype(np.uint64)
    keys <<= np.uint64(32)
    keys |= np.arange(size, dtype=np.uint32)
    keys.sort()
    order = keys.astype(np.uint32)  # the low word
    keys >>= np.uint64(32)
    edge = np.ones(size + 1, dtype=bool)  # where a group of equal values starts
    np.not_equal(keys[1:], keys[:-1], out=edge[1:-1])
    del keys
    position = np.arange(size, dtype=np.int32)
    first = np.maximum.accumulate(np.where(edge[:-1], position, 0))
    last = np.minimum.accumulate(np.where(edge[1:], position, size)[::-1])[::-1]
    ranks = position  # mid-rank = (first + last) / 2 + 1 and its mean (size + 1) / 2
    ranks[order] = first + last + (1 - size)
    return ranks


def spearman(coords: ArrayLike, truth: ArrayLike) -> float:
    """Spearman correlation of predicted and true pairwise distances, ties by mid-ranks; 1 is best.

    Parameters
    ----------
    coords, truth
        Predicted and true coordinates (n, 2), or condensed distances.

    Returns
    -------
    float
        The correlation.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> truth = np.random.default_rng(0).normal(size=(100, 2))
    >>> round(sg.metrics.spearman(3 * truth[:, ::-1], truth), 6)  # mirrored and scaled
    1.0
    """
    d, g = (centred_ranks(values) for values in as_distances(coords, truth))
    return _cosine(d, g)


def pearson(coords: ArrayLike, truth: ArrayLike) -> float:
    """Pearson correlation of predicted and true pairwise distances; 1 is best.

    Parameters
    ----------
    coords, truth
        Predicted and true coordinates (n, 2), or condensed distances.

    Returns
    -------
    float
        The correlation.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> truth = np.random.default_rng(0).normal(size=(100, 2))
    >>> round(sg.metrics.pearson(3 * truth[:, ::-1], truth), 6)  # mirrored and scaled
    1.0
    """
    d, g = as_distances(coords, truth)
    return _cosine(d - float(d.mean(dtype=np.float64)), g - float(g.mean(dtype=np.float64)))


def _cosine(a: NDArray, b: NDArray) -> float:
    """Cosine of two centred vectors; NaN if one is constant."""
    norm = np.sqrt(_dot(a, a)) * np.sqrt(_dot(b, b))
    return float(_dot(a, b) / norm) if norm > 0 else float("nan")


def least_squares_scale(coords: ArrayLike, truth: ArrayLike) -> float:
    """The factor a that minimises the sum of (a D_ij - D_ij^GT)^2 over all pairs.

    Parameters
    ----------
    coords, truth
        Predicted and true coordinates (n, 2), or condensed distances.

    Returns
    -------
    float
        The factor; 1 for coordinates that agree, which both have unit RMS radius.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> truth = np.random.default_rng(0).normal(size=(100, 2))
    >>> round(sg.metrics.least_squares_scale(3 * truth[:, ::-1], truth), 6)
    1.0
    """
    d, g = as_distances(coords, truth)
    norm = _dot(d, d)
    if norm == 0:
        raise InputError(
            "All predicted distances are zero.", "Check that coordinates and not a constant were given."
        )
    return _dot(d, g) / norm


def stress1(coords: ArrayLike, truth: ArrayLike, *, scale: float | None = None) -> float:
    """Kruskal's Stress-1: root of the squared distance errors over the squared true distances; 0 is best.

    Parameters
    ----------
    coords, truth
        Predicted and true coordinates (n, 2), or condensed distances.
    scale
        Factor on the predicted distances; by default the least-squares one. ``1.0`` gives the unscaled
        Stress-1 of the paper's formula.

    Returns
    -------
    float
        The stress.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> truth = np.random.default_rng(0).normal(size=(100, 2))
    >>> round(sg.metrics.stress1(3 * truth[:, ::-1], truth), 6)  # mirrored and scaled
    0.0
    """
    d, g = as_distances(coords, truth)
    scale = least_squares_scale(d, g) if scale is None else scale
    error = np.float32(scale) * d - g
    return float(np.sqrt(_dot(error, error) / _dot(g, g)))


def scale_error(coords: ArrayLike, truth: ArrayLike) -> float:
    """How far typical predicted distances are from true ones before any scaling (paper, Table 2); 0 is best.

    The paper does not define its "Scale Err". Here it is ``|m - 1|`` with ``m`` the median over pairs of D_ij
    / D_ij^GT (pairs at true distance 0 left out), in the form of the paper's CalErr. Given coordinates, both
    sides have unit RMS radius, so it tells of a layout whose bulk is too tight or too wide for its spread;
    given distances, it compares the magnitudes as they are.

    Parameters
    ----------
    coords, truth
        Predicted and true coordinates (n, 2), or condensed distances.

    Returns
    -------
    float
        The error.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> truth = np.random.default_rng(0).normal(size=(100, 2))
    >>> round(sg.metrics.scale_error(3 * truth[:, ::-1], truth), 6)  # mirrored and scaled
    0.0
    """
    d, g = as_distances(coords, truth)
    apart = g > 0
    if not apart.all():
        d, g = d[apart], g[apart]
    return abs(float(np.median(d / g, overwrite_input=True)) - 1.0)
