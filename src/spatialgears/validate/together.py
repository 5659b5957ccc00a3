"""Whether slides and cells belong together: by depth, by mean expression, and by the genes that go together.

Self-checks rest on spots and cannot tell whether cells are like them. Correlations between genes can: they need neither
places nor matching cells, survive another scale of each gene, and differ where tissue, platform or processing do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from spatialgears.config import Config
from spatialgears.validate import ValidInputs
from spatialgears.validate.counts import Form

#: Depth of spots, relative to cells, below which they are called shallow.
SHALLOW = 0.7
#: Correlation of log mean expression from which slides and cells are taken to be of one tissue.
AGREEING = 0.4
#: Agreement of correlations between genes from which slides and cells are taken to be alike.
TOGETHER = 0.5

GENES = 300  # best detected genes whose correlations are compared
OBSERVATIONS = 2000  # of each slide, and of the cells
RELIABLE = 0.05  # correlations that halves of the data agree on less than this are noise


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
    if cells is None or cells.shape[0] < 4 or any(slide.shape[0] < 4 for slide in slides):
        return None
    rng = np.random.default_rng(0)
    detected = np.minimum(sparse.vstack(slides).getnnz(axis=0), cells.getnnz(axis=0))
    genes = np.sort(np.argsort(-detected, kind="stable")[: min(GENES, int((detected > 1).sum()))])
    if len(genes) < 10:
        return None
    scaled = [
        _scaled(matrix, genes, form, rng) for matrix, form in zip([*slides, cells], valid.forms, strict=True)
    ]
    both = np.concatenate(scaled[:-1]), scaled[-1]
    reliable = [_reliability(x, rng) for x in both]
    if min(reliable) < RELIABLE:
        return None
    found = _alike(*both) / np.sqrt(reliable[0] * reliable[1])
    return float(np.clip(found, -1, 1))


def _scaled(
    matrix: sparse.csr_matrix, genes: NDArray[np.int64], form: Form, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Some observations, normalised, their genes standardised."""
    some = matrix[np.sort(rng.permutation(matrix.shape[0])[:OBSERVATIONS])]
    x = some[:, genes].toarray().astype(np.float64)
    if form == "counts":
        depth = depths(some)
        x *= (np.median(depth) / depth)[:, None]
    if form in ("counts", "linear"):
        x = np.log1p(x)
    x -= x.mean(0)
    return x / np.maximum(x.std(0), 1e-12)


def _alike(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Correlation of the correlations between every two genes, from standardised values (n, g) and (m, g)."""
    pairs = np.triu_indices(a.shape[1], 1)
    return float(np.corrcoef((a.T @ a)[pairs], (b.T @ b)[pairs])[0, 1])


def _reliability(x: NDArray[np.float64], rng: np.random.Generator) -> float:
    """What share of the variance of the correlations is not noise: halves' agreement, for the whole (Spearman-Brown)."""
    first, second = np.array_split(rng.permutation(len(x)), 2)
    agree = _alike(x[first], x[second])
    return 2 * agree / (1 + agree) if agree > 0 else 0.0
