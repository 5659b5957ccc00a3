"""Agreement of slides and cells in depth, mean expression and co-expression.

Self-checks on held-out spots cannot see whether the cells resemble the spots. These figures can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from spatialgears.config import Config
from spatialgears.validate import ValidInputs
from spatialgears.validate.coexpression import FEWEST, Correlations, best_detected, standardised
from spatialgears.validate.counts import Form

#: Depth of spots, relative to cells, below which they are called shallow.
SHALLOW = 0.7
#: Correlation of log mean expression from which slides and cells are taken to be of one tissue.
AGREEING = 0.4
#: Agreement of co-expression below which there is a warning.
TOGETHER = 0.5
#: Reliability of the slides' correlations, number of cells, and cells in which a typical pair of genes is seen, from which
#: cells of the same tissue would show correlations too.
CLEAR, MANY, SEEN = 0.3, 100, 20


@dataclass(frozen=True)
class SlideCellAgreement:
    """Agreement of slides and cells; a figure that has no meaning is None."""

    depth_ratio: float | None = None  # median depth of spots over that of cells
    #: Pearson correlation between slides and cells of the log mean expression of genes.
    agreement: float | None = None
    #: Pearson correlation between slides and cells of their gene-gene correlations, divided by the largest that noise
    #: allows.
    coexpression: float | None = None
    #: Whether the cells show no gene-gene correlations although the slides do, and cells are many and deep enough.
    noise: bool = False
    unknown: Mapping[str, str] = field(default_factory=dict)  # why a figure is None, by its name

    @classmethod
    def of(cls, valid: ValidInputs) -> SlideCellAgreement:
        """Of valid inputs; without cells all figures are None."""
        slides, _, cells = valid.without_empty()
        if cells is None:
            return cls(unknown=dict.fromkeys(("depth_ratio", "agreement", "coexpression"), "no cells"))
        raw = valid.kind == "counts"
        found = SlideExpression.of(slides, cells, forms=valid.forms, raw=raw).compare(
            cells, form=valid.forms[-1], raw=raw
        )
        if not raw:
            return replace(found, unknown={"depth_ratio": "the values are not counts", **found.unknown})
        spots = np.concatenate([depths(slide) for slide in valid.slides])
        return replace(found, depth_ratio=float(np.median(spots) / max(np.median(depths(valid.cells)), 1)))

    def warnings(self, config: Config) -> list[str]:
        """Signs that slides and cells do not belong together, or were swapped."""
        found = []
        ratio, agreement, together = self.depth_ratio, self.agreement, self.coexpression
        if ratio is not None and ratio < SHALLOW and config.expression.thinning:
            found.append(
                f"Spots have {ratio:.2g} of the depth of cells; thinning cannot deepen them. Were slides and cells swapped?"
            )
        if agreement is not None and agreement < AGREEING:
            found.append(
                f"Mean expression of slides and cells hardly agrees (r = {agreement:.2f}): are they of the same tissue?"
            )
        if together is not None and together < TOGETHER:
            found.append(
                "Genes that are co-expressed on the slides are less so in the cells (agreement of co-expression "
                f"{max(together, 0):.2f}; 1 is as high as noise allows): positions may mean little, even if the self-check, "
                "which uses spots only, is good. Are the cells of one type, of another tissue, or values of another kind?"
            )
        if self.noise:
            found.append(
                "The cells show no reproducible co-expression, although the slides do: are the values noise, shuffled, or too "
                "shallow? Positions mean little, even if the self-check, which uses spots only, is good."
            )
        return found


@dataclass(frozen=True, eq=False)
class SlideExpression:
    """Expression of the slides, which cells are compared with at the fit and later."""

    genes: NDArray[np.int64]  # (g,) columns of the genes whose correlations are known
    correlations: Correlations  # between these, on the slides
    #: (G,) mean expression on the slides; None where values are scaled, and it is zero.
    means: NDArray[np.float64] | None

    @classmethod
    def of(
        cls,
        slides: Sequence[sparse.csr_matrix],
        cells: sparse.csr_matrix,
        *,
        forms: Sequence[Form],
        raw: bool,
    ) -> SlideExpression:
        """Of slides (n_i, G), on the genes best detected there and in cells (N, G)."""
        genes = best_detected(slides, cells)
        profiles = [_profiles(*one, genes, raw=raw) for one in zip(slides, forms, strict=False)]
        means = None if "scaled" in forms[: len(slides)] else _means(sparse.vstack(slides))
        return cls(genes, Correlations.of(np.concatenate(profiles), np.random.default_rng(0)), means)

    def compare(
        self, cells: sparse.csr_matrix, *, form: Form, raw: bool, missing: NDArray[np.bool_] | None = None
    ) -> SlideCellAgreement:
        """Compare cells (N, G) with the slides in all but depth; ``missing`` genes (G,) were not measured."""
        seen = cells.getnnz(axis=0)
        agreement, unknown = None, {}
        if self.means is None or form == "scaled":
            unknown["agreement"] = "values are scaled, and have no mean"
        else:
            known = slice(None) if missing is None else ~missing
            means = [mean[known] for mean in (self.means, _means(cells))]
            logs = [np.log1p(1e4 * mean / max(mean.sum(), 1e-12)) for mean in means]
            if all(log.std() > 1e-6 for log in logs):
                agreement = float(np.corrcoef(*logs)[0, 1])
                if agreement < AGREEING <= _highest(agreement, len(logs[0])):
                    reason = f"r = {agreement:.2f}, but {len(logs[0])} genes are too few to tell"
                    agreement, unknown["agreement"] = None, reason
            else:
                unknown["agreement"] = "all genes have one mean"
        shown = np.flatnonzero(seen[self.genes] > 1)
        genes, slides = self.genes[shown], self.correlations.among(shown)
        found = Correlations.of(_profiles(cells, form, genes, raw=raw), np.random.default_rng(0))
        coexpression = slides.agreement(found)
        pairs = cells.shape[0] * float((seen[genes] / cells.shape[0]).mean()) ** 2 if len(genes) else 0.0
        enough = cells.shape[0] >= MANY and pairs >= SEEN and slides.reliability >= CLEAR
        if len(genes) < FEWEST:
            unknown["coexpression"] = f"fewer than {FEWEST} genes are seen in both"
        elif slides.noise:
            unknown["coexpression"] = "noise on the slides: few spots, or shallow"
        elif found.noise:
            unknown["coexpression"] = "noise in the cells" + ("" if enough else ": few of them, or shallow")
        noise = enough and found.noise and len(genes) >= FEWEST
        return SlideCellAgreement(
            agreement=agreement, coexpression=coexpression, noise=noise, unknown=unknown
        )


def depths(counts: sparse.csr_matrix) -> NDArray[np.float32]:
    """The sum (n,) of each row."""
    return np.asarray(counts.sum(axis=1)).ravel()


def _means(counts: sparse.csr_matrix) -> NDArray[np.float64]:
    return np.asarray(counts.mean(axis=0, dtype=np.float64)).ravel()


def _highest(r: float, n: int) -> float:
    """The upper end of the 95% confidence interval of a correlation over n genes (Fisher)."""
    return float(np.tanh(np.arctanh(np.clip(r, -0.999, 0.999)) + 1.96 / np.sqrt(max(n - 3, 1))))


def _profiles(
    matrix: sparse.csr_matrix, form: Form, genes: NDArray[np.int64], *, raw: bool
) -> NDArray[np.float64]:
    return standardised(matrix, genes, scale=raw, log=raw or form == "linear")
