"""Library-size normalisation, log1p, and standardisation of genes within a slide or a set of cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

#: (n, G) values: a dense array, or a scipy sparse matrix (which has no type stubs).
Matrix: TypeAlias = Any
#: Added to a standard deviation, so that a gene hardly expressed in one domain is not inflated; for values of unknown unit,
#: at most this share of the median standard deviation.
STD_FLOOR, OF_MEDIAN = 1e-2, 0.1


def log_normalise(counts: Matrix, target: float = 1e4) -> Matrix:
    """Scale every profile, (..., G) or (n, G) sparse, to ``target`` counts in all and take log(1 + x).

    The result is float32 of the same kind and shape; an empty profile stays empty.
    """
    if sp.issparse(counts):
        out = sp.csr_matrix(counts, dtype=np.float32, copy=True)
        scale = target / np.maximum(out.sum(1, dtype=np.float64).A1, 1.0)
        out.data *= np.repeat(scale, np.diff(out.indptr)).astype(np.float32)
        np.log1p(out.data, out=out.data)
        return out
    dense = np.asarray(counts, dtype=np.float32)
    return np.log1p(dense * (target / np.maximum(dense.sum(-1, keepdims=True), 1.0)))


def dense(matrix: Matrix) -> Tensor:
    """The matrix as a dense float32 tensor. Use it on the rows of a batch, not on a whole data set."""
    if isinstance(matrix, Tensor):
        return matrix.float()
    array = matrix.toarray() if sp.issparse(matrix) else matrix
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


@dataclass(frozen=True, eq=False)
class Standardiser:
    """Gene-wise ``(x - mean) / std``, with the statistics of one slide or one set of cells.

    Slides and cells have different gene scales (platform, depth), so each is standardised separately.
    """

    #: (G,) float32; ``std`` includes the floor that keeps genes without counts from being inflated.
    mean: Tensor
    std: Tensor

    @classmethod
    def fit(cls, x: Matrix, *, raw: bool = True) -> Standardiser:
        """Statistics of ``x`` (..., G), log-normalised counts or not ``raw``; a sparse matrix is not made dense."""
        if sp.issparse(x):
            mean = np.asarray(x.mean(0, dtype=np.float64)).ravel()
            square = np.asarray(x.multiply(x).mean(0, dtype=np.float64)).ravel()
            variance = np.maximum(square - mean**2, 0.0)
            return cls._from_moments(torch.from_numpy(mean), torch.from_numpy(variance), raw=raw)
        values = torch.as_tensor(x)
        variance, average = torch.var_mean(
            values, dim=tuple(range(values.ndim - 1)), correction=0
        )  # (G,) each
        return cls._from_moments(average, variance, raw=raw)

    @classmethod
    def identity(cls, n_genes: int) -> Standardiser:
        """The standardiser that changes nothing (the paper's own input)."""
        return cls(torch.zeros(n_genes), torch.ones(n_genes))

    @classmethod
    def _from_moments(cls, mean: Tensor, variance: Tensor, *, raw: bool) -> Standardiser:
        std, floor = variance.sqrt().float(), STD_FLOOR
        if not raw and (std > 0).any():
            floor = min(floor, OF_MEDIAN * float(std[std > 0].median()))
        return cls(mean.float(), std + floor)

    def __call__(self, x: Tensor) -> Tensor:
        """Standardise ``x`` (..., G)."""
        return (x - self.mean) / self.std
