"""What the other genes of a cell say about its panel genes: principal component regression, learnt on the cells.

A targeted slide measures some hundred genes, and a dissociated cell shows a few counts of each. The same cell has thousands
of other genes. No slide shows their pattern, so they cannot place the cell by themselves. But they predict the panel's
expression, from other counts than its own: a mean of both has less noise. Neighbouring cells in the panel's own expression
cannot do that, because they are chosen by the very noise that is to be averaged out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from spatialgears.expression.normalise import Standardiser, dense, log_normalise
from spatialgears.expression.panel import typical_depth

FEWEST, MOST = 100, 500  # other genes that are used
MOST_CELLS = 10_000  # that the regression is learnt on
AXES = 20  # principal components, of the panel to choose genes by, and of these genes
CLIP = 5.0  # standard deviations beyond which a value counts no more


@dataclass(frozen=True, eq=False)
class OtherGenes:
    """Other genes of the cells, and the linear map from their expression to that of the panel."""

    genes: NDArray[np.str_]  # (E,) names
    target: float  # library size of these genes
    standardiser: Standardiser  # mean and standard deviation of each over the cells of the fit
    centre: Tensor  # (E,) mean of the standardised, clipped expression
    axes: Tensor  # (E, k) its principal axes
    onto: Tensor  # (k, G) from these to the panel's expression
    mean: Tensor  # (G,) mean of the panel's expression
    share: float  # how far the panel's expression moves to what is predicted

    @classmethod
    def fit(
        cls, counts: sparse.csr_matrix, genes: NDArray[np.str_], x: Tensor, share: float
    ) -> OtherGenes | None:
        """From counts (n, E) of other genes and the panel's expression x (n, G) of the same cells; None where too few would do.

        Of all genes those are taken that vary most with the principal components of the panel: thousands of others carry
        noise, or differences between cells that have nothing to do with genes of the panel.
        """
        if not enough(counts):
            return None
        logs = log_normalise(counts, typical_depth(counts))
        spread = Standardiser.fit(logs).std.numpy() ** 2
        along, _ = _components(x - x.mean(0))  # (n, k), each of mean zero
        along = (along / along.norm(dim=0)).numpy()
        explained = np.square(logs.T @ along).sum(1) / spread  # (E,) up to a factor
        chosen = np.sort(np.argsort(-explained, kind="stable")[:MOST])
        counts = counts[:, chosen]
        target = typical_depth(counts)
        logs = log_normalise(counts, target)
        standardiser = Standardiser.fit(logs)
        z = standardiser(dense(logs)).clamp_(-CLIP, CLIP)
        centre = z.mean(0)
        scores, axes = _components(z - centre)
        onto = scores.T @ (x - x.mean(0)) / scores.square().sum(0)[:, None]
        return cls(genes[chosen], target, standardiser, centre, axes, onto, x.mean(0), share)

    def __call__(self, x: Tensor, counts: sparse.csr_matrix, missing: NDArray[np.bool_]) -> Tensor:
        """The panel's expression x (n, G) moved to what counts (n, E) predict; ``missing`` genes (E,) are taken as average.

        Cells without any of these counts stay as they are.
        """
        z = self.standardiser(dense(log_normalise(counts, self.target * self.present(missing)))).clamp_(
            -CLIP, CLIP
        )
        z[:, torch.from_numpy(missing)] = 0
        predicted = (z - self.centre) @ self.axes @ self.onto + self.mean
        shown = torch.from_numpy(np.diff(counts.indptr) > 0)
        return torch.where(shown[:, None], torch.lerp(x, predicted, self.share), x)

    def present(self, missing: NDArray[np.bool_]) -> float:
        """Share of the library that genes which are not ``missing`` (E,) make up, by their mean over the cells of the fit."""
        size = np.expm1(self.standardiser.mean.numpy())
        return float(size[~missing].sum() / size.sum())

    def tensors(self) -> dict[str, Tensor]:
        """The numbers, by name."""
        return {
            "mean": self.standardiser.mean,
            "std": self.standardiser.std,
            "centre": self.centre,
            "axes": self.axes,
            "onto": self.onto,
            "panel_mean": self.mean,
        }

    @classmethod
    def from_tensors(
        cls, tensors: dict[str, Tensor], genes: list[str], target: float, share: float
    ) -> OtherGenes:
        """Back from :meth:`tensors`."""
        return cls(
            genes=np.array(genes, dtype=str),
            target=target,
            standardiser=Standardiser(tensors["mean"], tensors["std"]),
            centre=tensors["centre"],
            axes=tensors["axes"],
            onto=tensors["onto"],
            mean=tensors["panel_mean"],
            share=share,
        )


def enough(counts: sparse.csr_matrix) -> bool:
    """Whether counts (n, E) show enough cells and other genes to learn from."""
    return counts.shape[1] >= FEWEST and counts.shape[0] >= 2 * AXES


def _components(x: Tensor) -> tuple[Tensor, Tensor]:
    """The first principal components (n, k) of centred x (n, G), and their axes (G, k)."""
    size, axes = torch.linalg.eigh((x.T @ x).double())
    k = min(AXES, int((size > 1e-6 * size[-1]).sum()))
    axes = axes[:, -k:].flip(1).float()
    return x @ axes, axes
