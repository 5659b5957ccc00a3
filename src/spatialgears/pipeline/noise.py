"""Detect cells that are pure noise: along the slides' principal axes they vary no more than if genes were shuffled.

Noise lies near the average spot, so the distance to the nearest spots does not reveal it. The variance of the whole set
does: cells of a tissue vary along the directions in which its spots vary.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from spatialgears.config import Config
from spatialgears.pipeline.fitted import Fitted
from spatialgears.runtime.seeds import child_seed, numpy_rng

FEWEST, MOST = 20, 200  # cells that are tested; fewer are not judged
SHUFFLES = 20
ALIKE = 10  # cells of similar depth among which genes are shuffled
#: Standard deviations above shuffled cells; below this, cells are noise. ``gears bench thresholds`` prints real values.
ABOVE = 5.0
WARNING = (
    "The cells lack the slides' co-expression: along the slides' main patterns they vary no more than if every gene were "
    "shuffled among them. They are noise, far too shallow, or all of one kind. Do not use the coordinates."
)


def is_noise(
    fitted: Fitted, counts: sparse.csr_matrix, config: Config, *, missing: NDArray[np.bool_]
) -> bool:
    """Whether cells with counts (N, G) on the model's genes vary along the slides' patterns no more than shuffled ones.

    Fewer than ``FEWEST`` cells, and cells of a model without held-out spots, are not judged.
    """
    return above_shuffled(fitted, counts, config, missing=missing) < ABOVE


def above_shuffled(
    fitted: Fitted, counts: sparse.csr_matrix, config: Config, *, missing: NDArray[np.bool_]
) -> float:
    """Standard deviations by which the cells' variance exceeds that of shuffled cells; NaN if they cannot be judged.

    The variance of at most ``MOST`` cells along the principal axes of the spots, weighted by the spots' variance, is
    compared with the variance of the same cells after each gene was shuffled among cells of similar depth.
    """
    seed = child_seed(config.seed, "noise")
    rows = np.flatnonzero(np.diff(counts.indptr))
    if fitted.confidence is None or len(rows) < FEWEST:
        return float("nan")
    some = counts[np.sort(numpy_rng(seed, "cells").permutation(rows)[:MOST])]
    some = some[np.argsort(np.asarray(abs(some).sum(1)).ravel(), kind="stable")].toarray()
    block = np.arange(len(some))[:, None] // ALIKE
    found = [_variance(fitted, some, config, missing)]
    for number in range(SHUFFLES):
        order = np.argsort(block + numpy_rng(seed, number).random(some.shape), axis=0)
        found.append(_variance(fitted, np.take_along_axis(some, order, axis=0), config, missing))
    return float((found[0] - np.mean(found[1:])) / max(float(np.std(found[1:], ddof=1)), 1e-12))


@torch.no_grad()
def _variance(
    fitted: Fitted, counts: NDArray[np.float32], config: Config, missing: NDArray[np.bool_]
) -> float:
    assert fitted.confidence is not None
    cells = fitted.features(sparse.csr_matrix(counts), config, missing=missing).as_measured()
    along = cells[np.arange(len(cells))].seen @ fitted.confidence.axes  # (n, axes)
    return float((along.var(0) * fitted.confidence.bank.var(0)).sum())
