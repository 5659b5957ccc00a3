"""Batches confounded with position: differences between batches are then mistaken for differences between positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

if TYPE_CHECKING:
    from pandas import DataFrame

#: Columns of ``.obs`` that name batches.
COLUMNS = {
    "batch", "lane", "run", "plate", "chip", "pool", "library", "library_id", "capture", "channel", "chemistry", "seq_run",
    "sequencing_run", "sequencing_batch", "tech", "technology", "processing_date",
}  # fmt: skip
CONFOUNDED = "is confounded with"  # what warnings of such batches say
NEAREST = 10
MOST = 5000  # points that are tested
FEWEST = 10  # points of a batch; smaller ones are left out
#: Share of neighbours of the same batch, from chance (0) to all (1), above which batches are confounded with position.
EXCESS = 0.3


def warn_batches(obs: DataFrame, coords: NDArray[np.floating], name: str, *, placed: bool) -> list[str]:
    """Warn of batches in a column of ``obs`` confounded with coordinates (n, 2), measured or predicted (``placed``)."""
    found = []
    for column in obs.columns:
        if str(column).lower() not in COLUMNS:
            continue
        share = goes_with_place(obs[column].astype(str).to_numpy(), coords)
        if share <= EXCESS:
            continue
        what = (
            f"{name}: .obs[{str(column)!r}] {CONFOUNDED} {'the predicted position' if placed else 'position'}"
        )
        what += f" ({share:.0%} of the way from chance to certainty among nearest neighbours). "
        found.append(
            what
            + (
                "Unless these batches come from different parts of the tissue, the coordinates follow technical differences."
                if placed
                else "Technical differences between these batches look like differences between positions, and held-out spots "
                "cannot tell them apart: the self-check and the radii may be far too good. Use slides on which batches are "
                "mixed, or slides of one batch each."
            )
        )
    return found


def goes_with_place(labels: NDArray[np.str_], coords: NDArray[np.floating]) -> float:
    """How often nearest neighbours share a label (n,): 0 as often as by chance, 1 always; 0 for a single label."""
    _, group, size = np.unique(labels, return_inverse=True, return_counts=True)
    some = np.flatnonzero(size[group] >= FEWEST)
    some = some[np.sort(np.random.default_rng(0).permutation(len(some))[:MOST])]
    share = np.bincount(group[some], minlength=1) / max(len(some), 1)
    chance = float(np.square(share).sum())
    if len(some) <= NEAREST or chance > 0.99:
        return 0.0
    near = KDTree(coords[some]).query(coords[some], k=NEAREST + 1)[1][:, 1:]
    same = float((group[some][near] == group[some][:, None]).mean())
    return (same - chance) / (1 - chance)
