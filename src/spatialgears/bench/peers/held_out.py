"""How runners with tuned settings choose them: on spots that are held out, never on cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anndata as ad
import numpy as np
from scipy.spatial.distance import pdist
from scipy.stats import spearmanr

Setting = dict[str, Any]
PlaceWith = Callable[[ad.AnnData, ad.AnnData, Setting], np.ndarray]


def with_best_setting(
    spots: ad.AnnData, cells: ad.AnnData, settings: Sequence[Setting], place_with: PlaceWith
) -> dict[str, Any]:
    """The cells, placed with the setting that best places held-out spots, and the Spearman of each setting on these.

    Held out are the spots of the last slide, or a fifth of a single slide's. A setting with which the solver fails on the
    cells (coordinates are not finite) is passed over.
    """
    slides = spots.obs["slide"].astype(str).to_numpy()
    names = np.unique(slides)
    aside = slides == names[-1] if len(names) > 1 else np.random.default_rng(0).random(spots.n_obs) < 0.2
    true = pdist(spots.obsm["spatial"][aside])
    scores = []
    for setting in settings:
        coords = place_with(spots[~aside].copy(), spots[aside].copy(), setting)
        scores.append(np.nan_to_num(spearmanr(pdist(coords), true).statistic, nan=-1.0))
    for best in np.argsort(scores)[::-1]:
        coords = place_with(spots, cells, settings[best])
        if np.isfinite(coords).all():
            break
    return {"coords": coords, "on_held_out_spots": scores}
