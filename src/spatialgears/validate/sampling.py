"""Some of very many cells: enough to learn what cells look like."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from anndata import AnnData

#: More cost time and memory, and change nothing.
FIT_CELLS = 50_000


def sample_cells(cells: AnnData, *, seed: int) -> AnnData:
    """The cells themselves, or a random ``FIT_CELLS`` of them as a view."""
    if getattr(cells, "n_obs", 0) <= FIT_CELLS:  # what is no AnnData, validation refuses
        return cells
    rng = np.random.default_rng(seed)
    return cells[np.sort(rng.permutation(cells.n_obs)[:FIT_CELLS])]
