"""Colours that people with colour-vision deficiency can tell apart, and the coding of labels into them.

The first eight categorical colours are those of Okabe and Ito. The others were chosen one by one, each as far
as possible in Oklab from white, from the grey of missing values and from all before it. The distance is that under
normal vision, or 2.2 times the smaller one under protanopia and deuteranopia if that is less: two of 24 colours are
then at least 0.13 apart, where neighbours of half that distance look alike as small dots. Beyond a dozen colours no
palette is safe on its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

MISSING = "#C8C8C8"
OTHERS = "#8A8A8A"
CONTINUOUS = "viridis"
CATEGORICAL = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000"),
    *("#69003C", "#2D00A5", "#0F5A00", "#964BF0", "#B40F78", "#00FF96", "#00F0FF", "#784B4B"),
    *("#0F3C5A", "#87C369", "#FF2D69", "#693CA5", "#B4000F", "#A587FF", "#2D3CE1", "#FF87FF"),
    *("#D24BD2", "#5A2D00", "#FF96A5", "#5A0078", "#69784B", "#A55A87", "#0FC3B4", "#2D5A78"),
    *("#4B87E1", "#960FC3", "#009600", "#69E100", "#7878A5", "#FFC369", "#9696C3", "#A5A578"),
)


@dataclass(frozen=True)
class Categories:
    """Labels coded as integers."""

    codes: np.ndarray  # (n,) int16, the category of each cell; -1 where the label is missing
    #: One name per category that occurs, in the order of the data's own categories, or sorted.
    names: list[str]
    #: One colour per name. A category keeps the colour of its place among all of the data's own categories, also of those
    #: that do not occur, so that parts of the data are drawn alike. With more labels than colours, the rarest share one grey
    #: and the name "n others".
    colors: list[str]

    @property
    def counts(self) -> np.ndarray:
        """(n_categories,) number of cells in each."""
        return np.bincount(self.codes[self.codes >= 0], minlength=len(self.names))


def is_categorical(values: np.ndarray | pd.Series | pd.Categorical) -> bool:
    """Whether values are labels (text, categories, booleans) and not numbers."""
    dtype = values.dtype
    if isinstance(dtype, pd.CategoricalDtype) or pd.api.types.is_bool_dtype(dtype):
        return True
    return not pd.api.types.is_numeric_dtype(dtype)


def encode(values: np.ndarray | pd.Series | pd.Categorical) -> Categories:
    """Code labels as integers, with a colour for each; None and NaN are missing."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        every = pd.Categorical(values).categories
        categorical = pd.Categorical(values).remove_unused_categories()
    else:
        labels = pd.Series(np.asarray(values, dtype=object))
        categorical = pd.Categorical(labels.where(labels.isna(), labels.astype(str)))
        every = categorical.categories
    codes, names = categorical.codes.astype(np.int64), [str(name) for name in categorical.categories]
    if len(names) <= len(CATEGORICAL):
        kept = every.get_indexer(categorical.categories)
        kept = kept if len(every) <= len(CATEGORICAL) else np.arange(len(names))
        return Categories(codes.astype(np.int16), names, [CATEGORICAL[i] for i in kept])
    common = np.argsort(-np.bincount(codes[codes >= 0], minlength=len(names)), kind="stable")
    kept = np.sort(common[: len(CATEGORICAL) - 1])
    recode = np.full(len(names) + 1, len(kept))  # the last entry is what code -1 meets
    recode[kept], recode[-1] = np.arange(len(kept)), -1
    return Categories(
        recode[codes].astype(np.int16),
        [*(names[i] for i in kept), f"{len(names) - len(kept)} others"],
        [*CATEGORICAL[: len(kept)], OTHERS],
    )


def limits(values: np.ndarray) -> tuple[float, float]:
    """Ends of the colour scale: 1st and 99th percentile; the extremes if those coincide or values are few."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return 0.0, 1.0
    low, high = np.percentile(finite, [1, 99])
    if low == high or len(finite) < 100:
        low, high = finite.min(), finite.max()
    return float(low), float(high if high > low else low + 1)
