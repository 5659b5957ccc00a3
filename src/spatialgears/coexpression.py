"""How alike genes go together in two sets of profiles: agreement of their correlations, over what noise allows.

Correlations between genes need neither places nor matching cells, and survive another scale of each gene. They differ where
tissue, platform or processing do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

GENES = 300  # best detected genes whose correlations are compared
OBSERVATIONS = 2000  # of each slide, and of the cells
RELIABLE = 0.05  # correlations that halves of the data agree on less than this are noise


def best_detected(
    slides: Sequence[sparse.csr_matrix], cells: sparse.csr_matrix, most: int = GENES
) -> NDArray[np.int64]:
    """Columns of the genes seen most often in slides and cells, whichever is less; at most ``most``, sorted."""
    detected = np.minimum(sum(slide.getnnz(axis=0) for slide in slides), cells.getnnz(axis=0))
    return np.sort(np.argsort(-detected, kind="stable")[: min(most, int((detected > 1).sum()))])


def standardised(
    matrix: sparse.csr_matrix, genes: NDArray[np.int64], *, scale: bool, log: bool, seed: int = 0
) -> NDArray[np.float64]:
    """Some profiles (n, g), scaled to one depth and log-transformed if asked, their genes standardised."""
    rng = np.random.default_rng(seed)
    some = matrix[np.sort(rng.permutation(matrix.shape[0])[:OBSERVATIONS])]
    x = some[:, genes].toarray().astype(np.float64)
    if scale:
        depth = np.asarray(some.sum(axis=1), dtype=np.float64).ravel()
        x *= (np.median(depth) / np.maximum(depth, 1))[:, None]
    return _standard(np.log1p(x) if log else x)


def agreement(spots: NDArray[np.float64], cells: NDArray[np.float64], *, seed: int = 0) -> float | None:
    """Correlation of the correlations between genes in standardised profiles (n, g) and (m, g), over what noise allows.

    Noise is what halves of the same profiles disagree by. None where there is little else, or next to nothing to compare.
    """
    if spots.shape[1] < 10 or min(len(spots), len(cells)) < 4:
        return None
    rng = np.random.default_rng(seed)
    reliable = [_reliability(x, rng) for x in (spots, cells)]
    if min(reliable) < RELIABLE:
        return None
    return float(np.clip(_alike(spots, cells) / np.sqrt(reliable[0] * reliable[1]), -1, 1))


def agreement_by_gene(spots: NDArray[np.float64], cells: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cosine (g,) between how each gene correlates with the others in two sets of standardised profiles."""
    a, b = (x.T @ x / len(x) for x in (spots, cells))
    for matrix in (a, b):
        np.fill_diagonal(matrix, 0)
    norm = np.sqrt((a**2).sum(1) * (b**2).sum(1))
    return (a * b).sum(1) / np.maximum(norm, 1e-12)


def _standard(x: NDArray[np.float64]) -> NDArray[np.float64]:
    x = x - x.mean(0)
    return x / np.maximum(x.std(0), 1e-12)


def _alike(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Correlation, over all pairs of genes, of their correlations in ``a`` and in ``b``."""
    pairs = np.triu_indices(a.shape[1], 1)
    first, second = ((x.T @ x)[pairs] for x in (a, b))
    return float(np.corrcoef(first, second)[0, 1])


def _reliability(x: NDArray[np.float64], rng: np.random.Generator) -> float:
    """The share of the correlations' variance that is not noise: agreement of halves, for the whole (Spearman-Brown)."""
    first, second = (_standard(x[half]) for half in np.array_split(rng.permutation(len(x)), 2))
    agree = _alike(first, second)
    return 2 * agree / (1 + agree) if agree > 0 else 0.0
