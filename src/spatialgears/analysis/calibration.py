"""Calibrated label transfer: a label of probability p should be right in a share p of the cells.

Labels of cells are unknown, those of spots are known. Spots therefore stand in for cells: their counts are drawn again at the
depth of cells.

- Noise makes stand-ins as different from other spots as cells are, and they are displaced as cells are. All other spots label
  them by their weights. The strength of similarity, and the power to which probabilities are raised, are those that predict
  the labels best.
- Stand-ins also train a classifier of expression. How well the two predict labels of stand-ins decides their shares.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from spatialgears.analysis.choice import PARTS
from spatialgears.analysis.evidence import (
    CHUNK,
    Evidence,
    Settings,
    Similarity,
    similar_cells,
    unit,
    weighed,
)
from spatialgears.runtime.seeds import numpy_rng

logger = logging.getLogger(__name__)

SPOTS, CELLS = 3000, 1500  # that are used
LIKENESS = (7.0, 14.0, 28.0, 56.0)
SHARE = 0.3  # of a profile that comes from similar cells, for the classifier
PENALTIES = (1.0, 3.0, 10.0, 30.0)  # inverse strengths
POWERS = np.geomspace(0.25, 16, 43)
NOISE = np.linspace(0, 3, 31)
FLOOR = 1e-3  # added to a probability, so that single spots do not decide
SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)  # of the classifier
#: How far the log-likelihood may be below the highest, for a larger share of the classifier. Positions of stand-ins err
#: independently of their expression, those of cells do not, so weights predict labels of stand-ins too well.
SLACK = 0.04


@dataclass(frozen=True, eq=False)
class StandIns:
    """Spots that stand in for cells."""

    evidence: Evidence
    settings: Settings  # how weights of cells and spots are computed
    #: (n,) which spots they are, and cells that they should resemble.
    spots: NDArray[np.int64]
    cells: NDArray[np.int64]
    #: (n, M) to all spots, as of cells; None where it is not used.
    cosine: NDArray[np.float32] | None
    distance: NDArray[np.float32] | None
    labels: NDArray[np.float64]  # (M, L) one where a spot has the label
    seed: int

    @classmethod
    def of(cls, evidence: Evidence, settings: Settings, labels: sparse.csr_matrix, *, seed: int) -> StandIns:
        """Some spots of the slide, as noisy and as uncertain as its cells."""
        rng = numpy_rng(seed, "calibration")
        spots = np.sort(rng.permutation(len(evidence.coords))[:SPOTS])
        cells = np.sort(rng.permutation(np.flatnonzero(evidence.kept))[:CELLS])
        itself, cosine, distance = (np.arange(len(spots)), spots), None, None
        if settings.likeness:
            _, noisy, similarity, _ = _as_cells(evidence, settings.similar, spots, cells, seed=seed)
            cosine = noisy @ similarity.spots.T
            cosine[itself] = -1
        if settings.place and evidence.laid is not None and evidence.spread is not None:
            spread = rng.choice(evidence.spread[evidence.kept], len(spots))
            laid = evidence.coords[spots] + spread[:, None] * rng.normal(size=(len(spots), 2))
            distance = replace(evidence, laid=laid, spread=spread).distance(np.arange(len(spots)))
            distance[itself] = distance.max() + 100
        return cls(evidence, settings, spots, cells, cosine, distance, labels.toarray(), seed)

    @property
    def true(self) -> NDArray[np.int64]:
        """(n,) their own labels."""
        found: NDArray[np.int64] = self.labels[self.spots].argmax(1)
        return found

    def likelihood(self, table: NDArray[np.float64]) -> float:
        """Mean log-likelihood of their labels by probabilities (n, L)."""
        return float(np.log(table[np.arange(len(table)), self.true] + FLOOR).mean())

    def weighed(self, settings: Settings) -> NDArray[np.float64]:
        """Probabilities (n, L) of their labels by the weights of other spots."""
        weights = weighed(settings, self.cosine, self.distance, self.evidence.sharing())
        found: NDArray[np.float64] = weights @ self.labels
        return found

    def calibrated(self, free: bool) -> tuple[Settings, float]:
        """Settings, with another likeness if it is ``free``, and the power of the probabilities."""
        strengths = LIKENESS if free and self.cosine is not None else (self.settings.likeness,)
        tried = []
        for settings in (replace(self.settings, likeness=one) for one in strengths):
            table = self.weighed(settings)
            tried += [(self.likelihood(sharpened(table, power)), settings, float(power)) for power in POWERS]
        _, settings, power = max(tried, key=lambda one: one[0])
        logger.info(
            "labels of spots choose likeness %g, and probabilities to the power %.2g",
            settings.likeness,
            power,
        )
        return settings, power

    def classified(self, settings: Settings, power: float) -> tuple[NDArray[np.float64], float]:
        """Probabilities (N, L) of the cells' labels by a classifier that was trained on stand-ins, and its share.

        The classifier is a logistic regression; its penalty is chosen by cross-validation. The share of the weights is the
        rest: none if cells are as similar to spots as stand-ins without noise, half if stand-ins need noise as large as the
        signal, and more if the weights predict their labels clearly better.
        """
        evidence, there = self.evidence, np.asarray(self.labels.any(0))
        found = np.zeros((len(evidence.kept), len(there)))
        if there.sum() == 1:
            found[:, there] = 1
            return found, 1.0
        plain, noisy, _, level = _as_cells(evidence, SHARE, self.spots, self.cells, seed=self.seed)
        penalty = max(PENALTIES, key=lambda one: self.likelihood(self._held_out(plain, plain, one)))
        model = _regression(plain, self.true, penalty)
        similarity = Similarity.of(evidence, evidence.profiles(self.cells, SHARE))
        counted = np.flatnonzero(evidence.kept)
        for start in range(0, len(counted), CHUNK):
            rows = counted[start : start + CHUNK]
            profiles = similarity.embed(evidence.profiles(rows, SHARE))
            found[np.ix_(rows, model.classes_)] = model.predict_proba(profiles)
        by_weights = sharpened(self.weighed(settings), power)
        by_expression = self._held_out(plain, noisy, penalty)
        likely = [self.likelihood((1 - one) * by_weights + one * by_expression) for one in SHARES]
        share = next(one for one, value in zip(SHARES, likely, strict=True) if value > max(likely) - SLACK)
        return found, min(share, 1 - min(level, 1.0) / 2)

    def _held_out(
        self, plain: NDArray[np.float32], shown: NDArray[np.float32], penalty: float
    ) -> NDArray[np.float64]:
        """Probabilities (n, L) for profiles (n, h) ``shown`` to a regression that was trained on other ``plain`` ones."""
        part = numpy_rng(self.seed, "parts").permutation(len(plain)) % PARTS
        found = np.zeros((len(plain), self.labels.shape[1]))
        for number in range(PARTS):
            rest, mine = part != number, np.flatnonzero(part == number)
            if len(np.unique(self.true[rest])) > 1:
                model = _regression(plain[rest], self.true[rest], penalty)
                found[np.ix_(mine, model.classes_)] = model.predict_proba(shown[mine])
        return found


def sharpened(table: NDArray[np.float64], power: float) -> NDArray[np.float64]:
    """Rows to a power, with the sums they had."""
    mass = table.sum(1, keepdims=True)
    share = (table / np.maximum(mass, 1e-300)) ** power
    found: NDArray[np.float64] = mass * share / np.maximum(share.sum(1, keepdims=True), 1e-300)
    return found


def _regression(x: NDArray[np.float32], true: NDArray[np.int64], penalty: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=penalty, max_iter=500).fit(x, true)


def _as_cells(
    evidence: Evidence, similar: float, spots: NDArray[np.int64], cells: NDArray[np.int64], *, seed: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], Similarity, float]:
    """Some spots (n, h) at the depth of cells, the same with noise, their comparison with spots, and the level of noise.

    Noise lowers the similarity of spots to their most similar other spot to that of cells.
    """
    rng = numpy_rng(seed, "as cells")
    profiles, everyone = evidence.spots[spots], np.arange(len(spots))
    if evidence.depth is not None:
        depth = rng.choice(np.maximum(evidence.depth[cells], 1), len(spots))[:, None]
        drawn = rng.poisson(np.expm1(profiles) / evidence.target * depth)
        profiles = np.log1p(drawn / depth * evidence.target).astype(np.float32)
    of_cells = evidence.profiles(cells, similar)
    wanted = np.median(Similarity.of(evidence, of_cells).cosine(of_cells).max(1))
    logged, there = sparse.csr_matrix(profiles), np.ones(len(spots), bool)
    near = similar_cells(logged, there, seed=seed)
    stand_ins = replace(
        evidence, logged=logged, columns=np.arange(profiles.shape[1]), kept=there, similar=near
    )
    own = stand_ins.profiles(everyone, similar)
    similarity = Similarity.of(evidence, own)
    embedded = similarity.embed(own)
    noise = unit(rng.normal(size=embedded.shape).astype(np.float32))
    for level in NOISE:
        noisy = unit(embedded + np.float32(level) * noise)
        cosine = noisy @ similarity.spots.T
        cosine[everyone, spots] = -1
        if np.median(cosine.max(1)) <= wanted:
            break
    return embedded, noisy, similarity, float(level)
