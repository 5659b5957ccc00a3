"""Batches that go with place: what differs between batches is then learnt, or read, as a difference between places."""

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
GOES = "goes with"  # what warnings of such batches say
NEAREST = 10
MOST = 5000  # points that are looked at
FEWEST = 10  # points of a batch; smaller ones are left out
#: Share of neighbours of the same batch, from chance (0) to all (1), from which batches go with place.
EXCESS = 0.3


def warn_batches(obs: DataFrame, coords: NDArray[np.floating], name: str, *, placed: bool) -> list[str]:
    """Warn of batches, named in a column of ``obs``, that go with coordinates (n, 2), measured or predicted (``placed``)."""
    found = []
    for column in obs.columns:
        if str(column).lower() not in COLUMNS:
            continue
        share = goes_with_place(obs[column].astype(str).to_numpy(), coords)
        if share <= EXCESS:
            continue
        what = f"{name}: .obs[{str(column)!r}] {GOES} {'the predicted place' if placed else 'place'}"
        what += f" ({share:.0%} of the way from chance to certainty among nearest neighbours). "
        found.append(
            what
            + (
                "Unless these batches were taken from different parts of the tissue, the places follow technical differences."
                if placed
                else "Technical differences between these batches look like differences between places, which no held-out spot "
                "can tell apart: the self-check and the radii may be far too good. Use slides whose batches are mixed or whole."
            )
        )
    return found


def goes_with_place(labels: NDArray[np.str_], coords: NDArray[np.floating]) -> float:
    """How often nearest neighbours have the same label (n,): 0 as often as by chance, 1 always; 0 for a single label."""
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
