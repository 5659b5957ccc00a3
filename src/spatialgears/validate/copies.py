"""The same data given twice, by accident: a slide as another slide, or the spots of a slide as cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import sparse

from spatialgears.errors import InputError

#: Share of profiles that are found again, value by value, from which they are taken to be the same data.
COPIED = 0.5
#: Values that a profile must have for another like it to be no accident.
TELLING = 5


def fingerprints(counts: sparse.csr_matrix) -> np.ndarray:
    """A number for each row (n,), the same for the same values; NaN where these are too few to tell."""
    directions = np.random.default_rng(0).standard_normal(counts.shape[1])
    found = np.asarray(counts @ directions).astype(np.float32)  # single precision hides the order of the sum
    found[np.diff(counts.indptr) < TELLING] = np.nan
    return found


def copied(some: np.ndarray, others: np.ndarray) -> float:
    """Share of the fingerprints that are also among the others."""
    some = some[~np.isnan(some)]
    return float(np.isin(some, others).mean()) if len(some) else 0.0


def check_not_twice(slides: Sequence[np.ndarray], names: Sequence[str]) -> None:
    """Refuse slides, given by the fingerprints of their spots, that are one and the same."""
    for j, slide in enumerate(slides):
        for i, earlier in enumerate(slides[:j]):
            if max(copied(slide, earlier), copied(earlier, slide)) > COPIED:
                raise InputError(
                    f"{names[i]} and {names[j]} hold the same values: expected different slides, found one given "
                    "twice. Its copy would leak the answer when it is held out, and the self-check would be too good.",
                    f"Leave one of them out, for example {names[j]}.",
                )


def warn_own_spots(cells: np.ndarray, slides: Sequence[np.ndarray], names: Sequence[str]) -> list[str]:
    """Warn if most cells, given by their fingerprints, are spots of the slides; ``names`` has slides first, then cells."""
    found = [(copied(cells, slide), name) for slide, name in zip(slides, names, strict=False)]
    return [
        f"{names[len(slides)]}: {share:.0%} of them have exactly the values of spots of {name}. They are the slide's own "
        "spots, on which the model is trained: how well they are placed says nothing about cells."
        for share, name in found
        if share > COPIED
    ]
