"""How much similarity and position count as evidence, chosen by genes that are kept out.

The weights of cells for spots are computed without some genes, these genes are predicted from the cells, and the prediction is
compared with the slide.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from spatialgears.analysis.evidence import Evidence, Settings, Similarity, corrected, weighed
from spatialgears.errors import InputError
from spatialgears.pipeline.gene_reading import NEAREST, balanced_parts, correlations, nearest_cells

logger = logging.getLogger(__name__)

PARTS = 5  # of the genes, kept out one after the other
SOME_GENES = 300  # that choose the settings
#: Most pairs of a cell and a spot by which settings are chosen, and fewest spots.
PAIRS, FEWEST_SPOTS = 6_000_000, 1000
#: Values that are tried: of likeness, of place, and of the share of a profile that is taken from similar cells.
LIKENESS, PLACE, SHARE = (0.0, 7.0, 14.0, 20.0, 28.0, 40.0), (0.0, 0.03, 0.1, 0.3, 1.0), (0.0, 0.6)
#: For single cells, in order of preference: likeness and place.
PREFERRED = ((14.0, 0.3), (14.0, 0.1), (7.0, 1.0), (14.0, 0.03), (14.0, 0.0), (0.0, 1.0))
MUCH_LOWER = 0.9  # share of the highest correlation
LEAK = 0.35  # exponent of ``place`` in the leakage of genes that were used to place the cells
#: Share of the matched positions that registration explains: below the first the slide is of another tissue, below the second
#: the evidence is thin. Sections of one tissue reach 0.7 to 1; another tissue, or spots that were permuted, at most 0.25.
POOR, GOOD = 0.4, 0.7
LEAST_SCORE = 0.03, 0.1  # least mean correlation of kept-out genes, with registration and without


class OtherTissue(InputError):
    """Cells and slide do not belong together: no answer would mean anything."""


def choose(
    evidence: Evidence, *, place: float | None, likeness: float | None, averaged: bool, genes: bool, seed: int
) -> Settings:
    """The settings chosen by kept-out genes, which are predicted from the cells and compared with the slide.

    For an average over cells, such as a gene at a spot: the usual settings, unless others correlate clearly higher. For single
    cells: the first of :data:`PREFERRED` whose correlation is not much lower than the highest. An average over wrong spots may
    still follow a gene, and a cell's position says more about its region than its expression does. Strengths that are given
    are kept.
    """
    places = (PLACE if place is None else (place,)) if evidence.laid is not None else (0.0,)
    strengths = [(b, a) for b in (LIKENESS if likeness is None else (likeness,)) for a in places if a or b]
    if not strengths:
        raise InputError("Neither place nor likeness counts.", "Give one of them a strength above 0.")
    trial = Trial(evidence, seed=seed)
    if averaged:
        usual = Settings(corrected=genes)
        found = (
            usual
            if (usual.likeness, usual.place) in strengths
            else Settings(*strengths[len(strengths) // 2], corrected=genes)
        )
        for _ in range(2):  # one after the other, and then again
            found = trial.better(
                found, [replace(found, likeness=b) for b, a in strengths if a == found.place]
            )
            found = trial.better(
                found, [replace(found, place=a) for b, a in strengths if b == found.likeness]
            )
            found = trial.better(found, [replace(found, similar=share) for share in SHARE])
            found = trial.better(found, [replace(found, spread=spread) for spread in (True, False)])
            if genes:
                found = trial.better(found, [replace(found, corrected=one) for one in (True, False)])
            if evidence.unlike:  # the slide's values may be linear, as intensities are
                tried = [trial.scored(replace(found, logged=logged)) for logged in (True, False)]
                found = max(tried, key=lambda one: one.score)
    else:
        some = [one for one in PREFERRED if one in strengths] or strengths
        tried = [trial.scored(Settings(*one, spread=False, corrected=False)) for one in some]
        most = max(one.score for one in tried)
        found = next(one for one in tried if one.score >= MUCH_LOWER * most)
    logger.info("kept-out genes choose %s", found)
    _require_same_tissue(evidence, found)
    return found


def _require_same_tissue(evidence: Evidence, settings: Settings) -> None:
    """Refuse a slide that the cells do not belong to, even if position gets no weight: similarity cannot detect this."""
    score, explained = settings.score, evidence.explained
    least = LEAST_SCORE[explained is None]
    found = f"Kept-out genes, read from the cells, correlate {score:.2f} with it (expected: {least} or more)."
    if explained is not None:
        share = f"{max(explained, 0):.0%} of where similar spots lie (expected: {POOR:.0%} or more)"
        found = f"Registration explains {share}. {found}"
    if score < least or (explained is not None and explained < POOR):
        raise OtherTissue(
            f"The cells do not belong on this slide. {found} They may be of different tissues, share too few genes, or the "
            "spots may have lost their positions.",
            "Check that cells, slide and coordinates belong together. To use similarity alone, in Python: place=0.",
        )
    if explained is not None and explained < GOOD:
        logger.warning("The cells match this slide only roughly: take the answers with caution. %s", found)


class Trial:
    """Cross-validation over genes: each part is predicted, for some cells and spots, by weights computed without it."""

    def __init__(self, evidence: Evidence, *, genes: int = SOME_GENES, seed: int) -> None:
        cells = min(int(evidence.kept.sum()), PAIRS // min(FEWEST_SPOTS, len(evidence.coords)))
        self.rows, self.evidence = evidence.some(cells, max(PAIRS // cells, FEWEST_SPOTS), seed)
        self.genes = np.argsort(-evidence.moran, kind="stable")[:genes]
        self.part = balanced_parts(evidence.moran, PARTS, seed=seed)
        self.values = self.evidence.profiles(self.rows, 0.0)[:, self.genes]
        self.sharing = self.evidence.sharing()
        self.distance = None if evidence.laid is None else self.evidence.distance(self.rows)
        self.leak = self._leak()
        self.compared: dict[float, list[tuple[NDArray[np.float32], ...]]] = {}
        self.known: dict[Settings, NDArray[np.float64]] = {}

    def better(self, usual: Settings, others: list[Settings]) -> Settings:
        """The best of some settings, if it is better than the usual ones by more than a standard error; else these."""
        by_gene = [self._known(one) for one in others]
        best = int(np.argmax([r.mean() for r in by_gene]))
        gain = by_gene[best] - self._known(usual)
        certain = gain.mean() > gain.std() / np.sqrt(len(gain))
        return self.scored(others[best] if certain else usual)

    def scored(self, settings: Settings) -> Settings:
        """The same, with their score."""
        return replace(settings, score=float(self._known(settings).mean()))

    def _known(self, settings: Settings) -> NDArray[np.float64]:
        settings = replace(settings, score=0.0)
        if settings not in self.known:
            self.known[settings] = self.scores(settings)
        return self.known[settings]

    def scores(self, settings: Settings) -> NDArray[np.float64]:
        """Correlation (g,) of each kept-out gene with the slide, less the leakage through the coordinates."""
        r = correlations(self.evidence.spots[:, self.genes], self.predicted(settings))
        return r - self.leak * min(settings.place, 1.0) ** LEAK

    def _leak(self) -> float:
        """Leakage: how much higher genes correlate because they were used to place the cells.

        Similarity is computed without a kept-out gene, but the coordinates were not. The model's check on cells placed them
        without the genes; the same prediction from the final coordinates shows the difference.
        """
        known, laid = self.evidence.checked, self.evidence.laid
        if known is None or laid is None:
            return 0.0
        genes = np.argsort(-self.evidence.moran, kind="stable")[: -(-len(self.evidence.moran) // 2)]
        near = nearest_cells(laid[self.rows], self.evidence.coords, min(NEAREST, -(-len(self.rows) // 10)))
        read = near @ self.evidence.profiles(self.rows, 0.0)[:, genes]
        return max(0.0, float(correlations(self.evidence.spots[:, genes], read).mean()) - known)

    def predicted(self, settings: Settings) -> NDArray[np.float32]:
        """(M, g) the genes, each read by weights that were computed without it."""
        found = np.zeros((len(self.evidence.coords), len(self.genes)), np.float32)
        for number in range(PARTS):
            mine = np.flatnonzero(self.part[self.genes] == number)
            if len(mine):
                spots, cells, cosine = self._compared(settings.similar)[number]
                distance = self.distance if settings.place else None
                weights = weighed(settings, cosine if settings.likeness else None, distance, self.sharing)
                weights /= np.maximum(weights.sum(0), 1e-30)
                values = self.values[:, mine] if settings.logged else np.expm1(self.values[:, mine])
                read = weights.T @ values
                if settings.corrected:
                    read = corrected(read, spots, weights.T @ cells, cells, values)
                found[:, mine] = read
        return found

    def _compared(self, similar: float) -> list[tuple[NDArray[np.float32], ...]]:
        """Spots (M, h), cells (n, h) and their cosines (n, M) without each part of the genes."""
        if similar not in self.compared:
            own = self.evidence.profiles(self.rows, similar)
            parts = [Similarity.of(self.evidence, own, self.part == number) for number in range(PARTS)]
            embedded = [part.embed(own) for part in parts]
            self.compared[similar] = [
                (part.spots, cells, cells @ part.spots.T) for part, cells in zip(parts, embedded, strict=True)
            ]
        return self.compared[similar]
