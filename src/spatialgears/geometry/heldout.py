"""Scores of a geometry model on held-out spots, for early stopping."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

from spatialgears.geometry.model import GeometryModel
from spatialgears.runtime.seeds import numpy_rng, torch_rng

#: ``draw(index, generator)``: a random view (..., f) of the spots ``index`` (...,).
Draw = Callable[[Tensor, torch.Generator], Tensor]

MAX_SPOTS = 2048  # most held-out spots of a slide that are scored, and most others
MAX_PAIRS = 200_000


class HeldOutScore:
    """Spearman correlation of predicted and true distances from held-out spots to all spots of their slide.

    It does not depend on pose. Each call makes one pass over the slide, with the same views of spots and the same pairs.

    Parameters
    ----------
    draw
        Returns views of spots.
    slides
        Canonical coordinates of each slide, (n_spots, 2).
    heldout
        The held-out spots, booleans over the slides in order.
    seed
        Decides views and pairs.
    """

    def __init__(self, draw: Draw, slides: Sequence[np.ndarray], heldout: np.ndarray, *, seed: int) -> None:
        self.draw, self.seed = draw, seed
        self.parts: list[
            tuple[Tensor, np.ndarray, np.ndarray]
        ] = []  # spots, pairs (p, 2) among them, true distances
        start = 0
        for number, coords in enumerate(slides):
            rng = numpy_rng(seed, "heldout pairs", number)
            block = heldout[start : start + len(coords)]
            held, others = (rng.permutation(np.flatnonzero(b))[:MAX_SPOTS] for b in (block, ~block))
            if len(held):
                spots = np.concatenate([held, others])
                pairs = np.stack(np.triu_indices(len(held), 1, len(spots)), axis=1)  # one end is held out
                pairs = pairs[rng.permutation(len(pairs))[:MAX_PAIRS]]
                truth = np.linalg.norm(coords[spots[pairs[:, 0]]] - coords[spots[pairs[:, 1]]], axis=1)
                self.parts.append((torch.from_numpy(start + spots), pairs, truth))
            start += len(coords)

    @torch.no_grad()
    def __call__(self, model: GeometryModel) -> dict[str, float]:
        """``heldout``, the mean over slides, and one value per slide when there are several."""
        device = next(model.parameters()).device
        scores = []
        for number, (spots, pairs, truth) in enumerate(self.parts):
            x = self.draw(spots[None], torch_rng(self.seed, "heldout views", number)).to(device)
            layout = plane(model(x)[0].cpu()).numpy()  # not every device has double precision
            predicted = np.linalg.norm(layout[pairs[:, 0]] - layout[pairs[:, 1]], axis=1)
            collapsed = np.ptp(predicted) == 0
            scores.append(-1.0 if collapsed else float(spearmanr(predicted, truth).statistic))
        each = {f"heldout_{number}": score for number, score in enumerate(scores)} if len(scores) > 1 else {}
        return {"heldout": float(np.mean(scores)), **each}


def plane(v: Tensor) -> Tensor:
    """The two leading principal coordinates (n, 2) of a centred geometry (n, d)."""
    v = v.double()
    return v @ torch.linalg.eigh(v.T @ v).eigenvectors[:, -2:].flip(-1)
