"""Labels of spots for cells, with probabilities that are right as often as they say.

Labels of cells are not known, those of spots are. Spots stand in for cells: their counts are drawn anew at the depth of cells.

- They train a classifier of expression.
- Made as unlike other spots as cells are by noise, and displaced as cells are, each is labelled by the weights of all other
  spots. How much likeness counts there, and the power that probabilities are taken to, are those that predict the labels best.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from spatialgears.analysis.evidence import (
    CHUNK,
    PARTS,
    Evidence,
    Likeness,
    Settings,
    similar_cells,
    unit,
    weighed,
)
from spatialgears.runtime.seeds import numpy_rng

logger = logging.getLogger(__name__)

SPOTS, CELLS = 1500, 1500  # that are looked at
LIKENESS = (7.0, 14.0, 28.0, 56.0)
TRAINED = 3000  # spots that train a classifier
SHARE = 0.3  # of a profile that comes from similar cells, for the classifier
PENALTIES = (1.0, 3.0, 10.0, 30.0)  # inverse strengths
POWERS = np.geomspace(0.25, 16, 43)
NOISE = np.linspace(0, 3, 31)
FLOOR = 1e-3  # added to a probability, so that single spots do not decide


@dataclass(frozen=True, eq=False)
class StandIns:
    """Spots that stand in for cells."""

    settings: Settings  # how the cells are weighed
    #: (n, M) as of cells with all spots; None where they do not count.
    cosine: NDArray[np.float32] | None
    distance: NDArray[np.float32] | None
    labels: NDArray[np.float64]  # (M, L) one where a spot has the label
    true: NDArray[np.int64]  # (n,) their own labels
    sharing: sparse.csr_matrix  # (M, M) from :meth:`Evidence.sharing`

    @classmethod
    def of(cls, evidence: Evidence, settings: Settings, labels: sparse.csr_matrix, *, seed: int) -> StandIns:
        """Some spots of the slide, as noisy and as uncertain as its cells."""
        rng = numpy_rng(seed, "calibration")
        spots = np.sort(rng.permutation(len(evidence.coords))[:SPOTS])
        cells = np.sort(rng.permutation(np.flatnonzero(evidence.kept))[:CELLS])
        itself, cosine, distance = (np.arange(len(spots)), spots), None, None
        if settings.likeness:
            cosine = _cosine(evidence, settings, spots, cells, rng=rng, seed=seed)
            cosine[itself] = -1
        if settings.place and evidence.laid is not None and evidence.spread is not None:
            spread = rng.choice(evidence.spread[evidence.kept], len(spots))
            laid = evidence.coords[spots] + spread[:, None] * rng.normal(size=(len(spots), 2))
            distance = replace(evidence, laid=laid, spread=spread).distance(np.arange(len(spots)))
            distance[itself] = distance.max() + 100
        known = labels.toarray()
        return cls(settings, cosine, distance, known, known[spots].argmax(1), evidence.sharing())

    def calibrated(self, free: bool) -> tuple[Settings, float]:
        """Settings, with another likeness if it is ``free``, and the power of the probabilities."""
        strengths = LIKENESS if free and self.cosine is not None else (self.settings.likeness,)
        tried = [self._fitted(replace(self.settings, likeness=one)) for one in strengths]
        _, settings, power = max(tried, key=lambda one: one[0])
        logger.info(
            "labels of spots choose likeness %g, and probabilities to the power %.2g",
            settings.likeness,
            power,
        )
        return settings, power

    def _fitted(self, settings: Settings) -> tuple[float, Settings, float]:
        """Mean log-likelihood of the labels, the settings, and the power with which it is highest."""
        table = weighed(settings, self.cosine, self.distance, self.sharing) @ self.labels
        rows = np.arange(len(self.true))
        likely = [float(np.log(sharpened(table, power)[rows, self.true] + FLOOR).mean()) for power in POWERS]
        best = int(np.argmax(likely))
        return likely[best], settings, float(POWERS[best])


def sharpened(table: NDArray[np.float64], power: float) -> NDArray[np.float64]:
    """Rows to a power, with the sums they had."""
    mass = table.sum(1, keepdims=True)
    share = (table / np.maximum(mass, 1e-300)) ** power
    found: NDArray[np.float64] = mass * share / np.maximum(share.sum(1, keepdims=True), 1e-300)
    return found


def classified(
    evidence: Evidence, labels: sparse.csr_matrix, *, seed: int
) -> tuple[NDArray[np.float64], float]:
    """Probabilities (N, L) of the cells' labels by a classifier that was trained on spots, and how far to go by it.

    The classifier is a logistic regression on spots that are as noisy as cells; its penalty is chosen by cross-validation. It
    counts fully, 1, where cells are as like the spots as spots thinned to their depth are, and half where they are so unlike
    that noise as large as the signal would be needed.
    """
    rng, known = numpy_rng(seed, "classifier"), labels.toarray()
    there = known.any(0)
    found = np.zeros((len(evidence.kept), known.shape[1]))
    if there.sum() == 1:
        found[:, there] = 1
        return found, 1.0
    spots = np.sort(rng.permutation(len(evidence.coords))[:TRAINED])
    cells = np.sort(rng.permutation(np.flatnonzero(evidence.kept))[:CELLS])
    embedded, _, _, level = _as_cells(evidence, SHARE, spots, cells, rng=rng, seed=seed)
    true = known[spots].argmax(1)
    model = _regression(embedded, true, max(PENALTIES, key=lambda one: _likely(embedded, true, one, rng)))
    likeness = Likeness.of(evidence, evidence.profiles(cells, SHARE))
    counted = np.flatnonzero(evidence.kept)
    for start in range(0, len(counted), CHUNK):
        rows = counted[start : start + CHUNK]
        found[np.ix_(rows, model.classes_)] = model.predict_proba(
            likeness.embed(evidence.profiles(rows, SHARE))
        )
    return found, 1 - min(level, 1.0) / 2


def _regression(x: NDArray[np.float32], true: NDArray[np.int64], penalty: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=penalty, max_iter=500).fit(x, true)


def _likely(
    x: NDArray[np.float32], true: NDArray[np.int64], penalty: float, rng: np.random.Generator
) -> float:
    """Mean log-likelihood of labels in parts that the regression has not seen."""
    part, likely = rng.permutation(len(x)) % PARTS, np.log(np.full(len(x), FLOOR))
    for number in range(PARTS):
        rest, mine = part != number, np.flatnonzero(part == number)
        if len(np.unique(true[rest])) < 2:
            continue
        model = _regression(x[rest], true[rest], penalty)
        column = np.searchsorted(model.classes_, true[mine]).clip(max=len(model.classes_) - 1)
        right = model.classes_[column] == true[mine]
        likely[mine] = np.log(model.predict_proba(x[mine])[np.arange(len(mine)), column] * right + FLOOR)
    return float(likely.mean())


def _cosine(
    evidence: Evidence,
    settings: Settings,
    spots: NDArray[np.int64],
    cells: NDArray[np.int64],
    *,
    rng: np.random.Generator,
    seed: int,
) -> NDArray[np.float32]:
    """(n, M) of some spots with all; those with others are as high as those of cells."""
    embedded, noise, likeness, level = _as_cells(evidence, settings.similar, spots, cells, rng=rng, seed=seed)
    found: NDArray[np.float32] = unit(embedded + np.float32(level) * noise) @ likeness.spots.T
    return found


def _as_cells(
    evidence: Evidence,
    similar: float,
    spots: NDArray[np.int64],
    cells: NDArray[np.int64],
    *,
    rng: np.random.Generator,
    seed: int,
) -> tuple[NDArray[np.float32], NDArray[np.float32], Likeness, float]:
    """Some spots (n, h) at the depth of cells, noise (n, h), what compares them, and the level of noise that cells have beside.

    With noise of that level the likeness of spots to their most similar other spot is that of cells.
    """
    profiles, everyone = evidence.spots[spots], np.arange(len(spots))
    if evidence.depth is not None:
        depth = rng.choice(np.maximum(evidence.depth[cells], 1), len(spots))[:, None]
        drawn = rng.poisson(np.expm1(profiles) / evidence.target * depth)
        profiles = np.log1p(drawn / depth * evidence.target).astype(np.float32)
    of_cells = evidence.profiles(cells, similar)
    wanted = np.median(Likeness.of(evidence, of_cells).cosine(of_cells).max(1))
    logged, there = sparse.csr_matrix(profiles), np.ones(len(spots), bool)
    near = similar_cells(logged, there, seed=seed)
    stand_ins = replace(
        evidence, logged=logged, columns=np.arange(profiles.shape[1]), kept=there, similar=near
    )
    own = stand_ins.profiles(everyone, similar)
    likeness = Likeness.of(evidence, own)
    embedded = likeness.embed(own)
    noise = unit(rng.normal(size=embedded.shape).astype(np.float32))
    for level in NOISE:
        cosine = unit(embedded + np.float32(level) * noise) @ likeness.spots.T
        cosine[everyone, spots] = -1
        if np.median(cosine.max(1)) <= wanted:
            break
    return embedded, noise, likeness, float(level)
