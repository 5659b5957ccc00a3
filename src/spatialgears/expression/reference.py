"""The simple reference: nearest spots on principal components of spatially weighted, standardised genes.

Any encoder must beat it, and the benchmark shows it beside every method. Every slide predicts coordinates in its own
frame. As all predict the same cells, the layouts are aligned to the first by Procrustes and averaged, so that the slides
need no common pose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from sklearn.utils.extmath import randomized_svd
from torch import Tensor

from spatialgears.expression.encoder import Encoder
from spatialgears.metrics.points import lay_on

#: Embedded spots of every slide, their coordinates, and embedded profiles (m, h) in; coordinates (m, 2) out.
Place = Callable[[Sequence[Tensor], Sequence[np.ndarray], Tensor], np.ndarray]
N_COMPONENTS, N_NEIGHBORS = 30, 5
CHUNK = 4096


def reference_encoder(spots: Tensor, *, seed: int = 0) -> Encoder:
    """Principal components of the spots' weighted expression (n, G), as a linear encoder."""
    n_components = min(N_COMPONENTS, *spots.shape)
    _, _, right = randomized_svd(spots.numpy(), n_components, n_iter=4, random_state=seed % 2**32)
    loadings = torch.from_numpy(np.ascontiguousarray(right.T, dtype=np.float32))
    return Encoder(spots.shape[1], n_components, hidden=None, start=loadings).freeze()


def nearest_mean(known: Tensor, values: Tensor, query: Tensor) -> Tensor:
    """Mean of ``values`` (n, d) over the ``known`` (n, h) nearest to each ``query`` (m, h) by cosine."""
    known = torch.nn.functional.normalize(known, dim=1)
    parts = []
    for part in torch.nn.functional.normalize(query, dim=1).split(CHUNK):
        nearest = (part @ known.T).topk(min(N_NEIGHBORS, len(known)), dim=1).indices  # (chunk, k)
        parts.append(values[nearest].mean(1))
    return torch.cat(parts)


def knn_places(known: Sequence[Tensor], coords: Sequence[np.ndarray], query: Tensor) -> np.ndarray:
    """Coordinates (m, 2) of embedded profiles (m, h) from the nearest of ``known`` spots (n_i, h), at ``coords`` (n_i, 2)."""
    layouts = [
        nearest_mean(z, torch.from_numpy(np.asarray(xy)), query).numpy()
        for z, xy in zip(known, coords, strict=True)
    ]
    first, others = layouts[0], layouts[1:]
    centre = first.mean(0)
    turned = [first]
    for layout in others:
        layout = layout - layout.mean(0)
        turned.append(layout @ lay_on(layout, first - centre) + centre)
    return np.mean(turned, axis=0)
