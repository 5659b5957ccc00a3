"""Which group of cells each spot's expression resembles most: colours for a slide that has no labels of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

FEWEST = 10  # cells of a group whose mean profile is compared


def resembling(cells: Any, labels: pd.Categorical, spots: Any) -> pd.Categorical | None:
    """The label (m,) whose cells each spot resembles most, by expression alone; positions play no part.

    Genes are standardised among the cells and among the spots, so that a group is known by what it has more of than the
    rest. Spots are compared with the mean profile of every group of ten cells or more; None if there are fewer than two.
    ``cells`` (n, G) and ``spots`` (m, G) are sparse log-normalised expression of the same genes.
    """
    size = np.bincount(labels.codes[labels.codes >= 0], minlength=len(labels.categories))
    (kept,) = np.nonzero(size >= FEWEST)
    if len(kept) < 2:
        return None
    (mean, std), (spot_mean, spot_std) = _moments(cells), _moments(spots)
    used = (std > 0) & (spot_std > 0)
    if not used.any():
        return None
    member = np.eye(len(size), dtype=np.float32)[:, kept][labels.codes]  # code -1 meets the last row
    member[labels.codes < 0] = 0
    sums = np.asarray((cells[:, used].T @ member).T)  # (groups, genes)
    profile = (sums / size[kept][:, None] - mean[used]) / std[used]
    profile /= np.maximum(np.linalg.norm(profile, axis=1, keepdims=True), 1e-12)
    weights = (profile / spot_std[used]).T  # (genes, groups)
    score = np.asarray(spots[:, used] @ weights) - spot_mean[used] @ weights  # (spots, groups)
    return pd.Categorical.from_codes(kept[score.argmax(1)], labels.categories)


def _moments(x: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    mean = np.asarray(x.mean(0), dtype=np.float64).ravel()
    square = np.asarray(x.multiply(x).mean(0), dtype=np.float64).ravel()
    return mean, np.sqrt(np.maximum(square - mean**2, 0))
