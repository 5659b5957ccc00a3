"""How well groups of cells mix in an embedding (paper, section on embedding alignment; k = 20).

Both scores look at the labels among each cell's k nearest neighbours: 0 is no mixing, 1 is ideal mixing.

With labels of unequal size the plain scores cannot reach 1, as even a perfect mixture is mostly the larger
group. ``balanced=True`` divides each label's count by its overall share first, so that 1 is a perfect mixture
whatever the sizes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spatialgears.errors import InputError


def mixing(
    embedding: ArrayLike, labels: ArrayLike, *, k: int = 20, balanced: bool = False
) -> dict[str, float]:
    """Both mixing scores from one neighbour search.

    Parameters
    ----------
    embedding
        Embedding (n, h) of all groups together.
    labels
        The group of each row (n,), for example the slide or the modality.
    k
        Neighbours per cell, without the cell itself.
    balanced
        Weigh labels by the inverse of their share.

    Returns
    -------
    ``neighbour_entropy`` and ``ilisi``, see the functions of these names.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> rng = np.random.default_rng(0)
    >>> mixed = rng.normal(size=(200, 3))
    >>> slides = np.repeat(["a", "b"], 100)
    >>> sorted(sg.metrics.mixing(mixed, slides))
    ['ilisi', 'neighbour_entropy']
    """
    share = _label_shares(embedding, labels, k, balanced)
    return {"neighbour_entropy": _entropy(share), "ilisi": _inverse_simpson(share)}


def neighbour_entropy(
    embedding: ArrayLike, labels: ArrayLike, *, k: int = 20, balanced: bool = False
) -> float:
    """Mean entropy of the labels among each cell's neighbours, over the log of the number of labels.

    Parameters
    ----------
    embedding, labels, k, balanced
        As for :func:`mixing`.

    Returns
    -------
    float
        1: perfectly mixed; 0: apart.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> rng = np.random.default_rng(0)
    >>> mixed = rng.normal(size=(200, 3))
    >>> slides = np.repeat(["a", "b"], 100)
    >>> sg.metrics.neighbour_entropy(mixed, slides) > 0.8
    True
    """
    return _entropy(_label_shares(embedding, labels, k, balanced))


def ilisi(embedding: ArrayLike, labels: ArrayLike, *, k: int = 20, balanced: bool = False) -> float:
    """Mean inverse Simpson index of the labels among each cell's neighbours, brought from [1, C] to [0, 1].

    All k neighbours weigh the same, without LISI's Gaussian kernel.

    Parameters
    ----------
    embedding, labels, k, balanced
        As for :func:`mixing`.

    Returns
    -------
    float
        1: perfectly mixed; 0: apart.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> rng = np.random.default_rng(0)
    >>> mixed = rng.normal(size=(200, 3))
    >>> slides = np.repeat(["a", "b"], 100)
    >>> sg.metrics.ilisi(mixed, slides) > 0.8
    True
    """
    return _inverse_simpson(_label_shares(embedding, labels, k, balanced))


def _entropy(share: NDArray[np.float64]) -> float:
    logs = np.log(share, out=np.zeros_like(share), where=share > 0)
    return float(-(share * logs).sum(axis=1).mean() / np.log(share.shape[1]))


def _inverse_simpson(share: NDArray[np.float64]) -> float:
    return float((1 / (share**2).sum(axis=1) - 1).mean() / (share.shape[1] - 1))


def _label_shares(embedding: ArrayLike, labels: ArrayLike, k: int, balanced: bool) -> NDArray[np.float64]:
    """Share (n, C) of each label among the k nearest neighbours of each cell."""
    from sklearn.neighbors import NearestNeighbors

    points = np.asarray(embedding)
    names, code = np.unique(np.asarray(labels).astype(str), return_inverse=True)
    if points.ndim != 2 or code.shape != points.shape[:1]:
        raise InputError(
            f"embedding must have shape (n, h) and labels (n,), found {points.shape} and {code.shape}.",
            "Give one label per row of the embedding.",
        )
    if not np.isfinite(points).all():
        raise InputError("embedding has NaN or infinite values.", "Drop these cells first.")
    if len(names) < 2 or not 0 < k < len(points):
        raise InputError(
            f"Mixing needs 2 labels and 0 < k < n, found {len(names)} label(s), k = {k}, n = {len(points)}.",
            "Give all groups together, or another k.",
        )
    index = NearestNeighbors(n_neighbors=k).fit(points).kneighbors(return_distance=False)  # (n, k)
    cell = np.arange(len(points))[:, None] * len(names)
    counts = np.bincount((cell + code[index]).ravel(), minlength=len(points) * len(names)).astype(float)
    counts = counts.reshape(len(points), len(names))
    if balanced:
        counts /= np.bincount(code)
    return counts / counts.sum(axis=1, keepdims=True)
