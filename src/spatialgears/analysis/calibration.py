"""Probabilities of transferred labels that are right as often as they say.

Labels of cells are not known, those of spots are. Spots stand in for cells: their counts are drawn anew at the depth of cells,
noise makes them as unlike other spots as cells are, and their place is displaced as a cell's is. Each is then labelled by all
other spots. How much likeness counts, and the power that probabilities are taken to, are those that predict the labels best.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from spatialgears.analysis.evidence import Evidence, Likeness, Settings, similar_cells, unit, weighed
from spatialgears.runtime.seeds import numpy_rng

logger = logging.getLogger(__name__)

SPOTS, CELLS = 1500, 1500  # that are looked at
LIKENESS = (7.0, 14.0, 28.0, 56.0)
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
    profiles, everyone = evidence.spots[spots], np.arange(len(spots))
    if evidence.depth is not None:
        depth = rng.choice(np.maximum(evidence.depth[cells], 1), len(spots))[:, None]
        drawn = rng.poisson(np.expm1(profiles) / evidence.target * depth)
        profiles = np.log1p(drawn / depth * evidence.target).astype(np.float32)
    of_cells = evidence.profiles(cells, settings.similar)
    wanted = np.median(Likeness.of(evidence, of_cells).cosine(of_cells).max(1))
    logged, there = sparse.csr_matrix(profiles), np.ones(len(spots), bool)
    similar = similar_cells(logged, there, seed=seed)
    stand_ins = replace(
        evidence, logged=logged, columns=np.arange(profiles.shape[1]), kept=there, similar=similar
    )
    own = stand_ins.profiles(everyone, settings.similar)
    likeness = Likeness.of(evidence, own)
    embedded = likeness.embed(own)
    noise = unit(rng.normal(size=embedded.shape).astype(np.float32))
    for level in NOISE:
        cosine: NDArray[np.float32] = unit(embedded + np.float32(level) * noise) @ likeness.spots.T
        with_others = cosine.copy()
        with_others[everyone, spots] = -1
        if np.median(with_others.max(1)) <= wanted:
            break
    return cosine
