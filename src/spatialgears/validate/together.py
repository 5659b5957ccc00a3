"""Whether slides and cells belong together: by depth, by mean expression, and by the genes that go together.

Self-checks rest on spots and cannot tell whether cells are like them; these figures can.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from spatialgears.coexpression import agreement, best_detected, standardised
from spatialgears.config import Config
from spatialgears.validate import ValidInputs

#: Depth of spots, relative to cells, below which they are called shallow.
SHALLOW = 0.7
#: Correlation of log mean expression from which slides and cells are taken to be of one tissue.
AGREEING = 0.4
#: Agreement of correlations between genes from which slides and cells are taken to be alike.
TOGETHER = 0.5


@dataclass(frozen=True)
class Likeness:
    """How alike slides and cells are; None where a figure has no meaning.

    Attributes
    ----------
    depth_ratio
        Median depth of spots over that of cells.
    agreement
        Pearson correlation between slides and cells of the log mean expression of genes.
    coexpression
        Pearson correlation between slides and cells of the correlations between genes, over what their noise allows.
    """

    depth_ratio: float | None
    agreement: float | None
    coexpression: float | None

    @classmethod
    def of(cls, valid: ValidInputs) -> Likeness:
        """Of valid inputs; all None without cells."""
        return cls(_depth_ratio(valid), _agreement(valid), _coexpression(valid))

    def odd(self, config: Config) -> list[str]:
        """Whether they may not belong together, or be swapped, in words."""
        odd = []
        ratio, agreement, together = self.depth_ratio, self.agreement, self.coexpression
        if ratio is not None and ratio < SHALLOW and config.expression.thinning:
            odd.append(
                f"Spots have {ratio:.2g} of the depth of cells; thinning cannot deepen them. Were slides and cells swapped?"
            )
        if agreement is not None and agreement < AGREEING:
            odd.append(
                f"Mean expression of slides and cells hardly agrees (r = {agreement:.2f}): one tissue?"
            )
        if together is not None and together < TOGETHER:
            odd.append(
                f"Genes that go together on the slides do so less in the cells ({max(together, 0):.2f} of 1): places may mean "
                "little, whatever the self-check, which rests on slides, says. One tissue, and values of one kind?"
            )
        return odd


def depths(counts: sparse.csr_matrix) -> NDArray[np.float32]:
    """The sum (n,) of each row."""
    return np.asarray(counts.sum(axis=1)).ravel()


def _depth_ratio(valid: ValidInputs) -> float | None:
    if valid.cells is None or valid.kind != "counts":
        return None
    spots = np.concatenate([depths(slide) for slide in valid.slides])
    return float(np.median(spots) / max(np.median(depths(valid.cells)), 1))


def _agreement(valid: ValidInputs) -> float | None:
    if valid.cells is None or "scaled" in valid.forms:
        return None
    both = (sparse.vstack(valid.slides), valid.cells)
    means = [np.asarray(matrix.mean(axis=0, dtype=np.float64)).ravel() for matrix in both]
    logs = [np.log1p(1e4 * mean / max(mean.sum(), 1e-12)) for mean in means]
    return float(np.corrcoef(*logs)[0, 1]) if all(log.std() > 1e-6 for log in logs) else None


def _coexpression(valid: ValidInputs) -> float | None:
    slides, _, cells = valid.without_empty()
    if cells is None:
        return None
    genes, raw = best_detected(slides, cells), valid.kind == "counts"
    profiles = [
        standardised(matrix, genes, scale=raw, log=raw or form == "linear")
        for matrix, form in zip([*slides, cells], valid.forms, strict=True)
    ]
    return agreement(np.concatenate(profiles[:-1]), profiles[-1])
