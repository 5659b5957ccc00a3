from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import sparse

from spatialgears.report.resemblance import resembling


def test_spots_get_the_label_whose_cells_they_resemble_at_any_depth():
    rng = np.random.default_rng(0)
    programme = rng.gamma(0.5, size=(3, 60))
    kind = np.repeat([0, 1, 2], 40)
    cells = np.log1p(rng.poisson(programme[kind]))
    truth = np.arange(90) % 3
    mixed = 20 * (0.7 * programme[truth] + 0.3 * programme.mean(0)) + 5  # deeper, mixed, with a background
    spots = np.log1p(rng.poisson(mixed))
    labels = pd.Categorical.from_codes(kind, ["a", "b", "c"])
    found = resembling(sparse.csr_matrix(cells), labels, sparse.csr_matrix(spots))
    assert (found.codes == truth).mean() > 0.9 and list(found.categories) == ["a", "b", "c"]


def test_rare_and_missing_labels_are_not_compared():
    rng = np.random.default_rng(0)
    x = sparse.csr_matrix(rng.poisson(2.0, size=(50, 20)).astype(float))
    codes = np.r_[np.zeros(20, int), np.ones(20, int), np.full(4, 2), np.full(6, -1)]
    found = resembling(x, pd.Categorical.from_codes(codes, ["a", "b", "rare"]), x)
    assert "rare" not in set(found) and not found.isna().any()
    assert resembling(x, pd.Categorical.from_codes(np.zeros(50, int), ["only"]), x) is None
