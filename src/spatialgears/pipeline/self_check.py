"""The self-check: how well held-out spots are placed, compared with a simple reference, in plain words.

The true position of a user's cells is unknown, that of spots is known. A model that cannot place held-out spots will not
place cells. One that can may still fail on cells: the self-check does not see how cells differ from spots. The check on
cells (``cell_check``) does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist, squareform
from scipy.stats import rankdata

from spatialgears.metrics import evaluate
from spatialgears.metrics.wording import MAIN
from spatialgears.runtime.seeds import numpy_rng
from spatialgears.validate.donors import ALONE, Donors

Verdict = Literal["good", "fair", "weak", "none"]
#: Smallest Spearman correlation of distances for each verdict; below the last there is no signal to speak of.
LEVELS: tuple[tuple[float, Verdict], ...] = ((0.75, "good"), (0.5, "fair"), (0.2, "weak"))
#: A correlation that chance reaches more often than this is no signal, however large.
CHANCE = 0.001
PERMUTATIONS, TESTED = 999, 250  # of the permutation test, and the most spots it uses
JACKKNIFED = 1000  # the most spots used for the standard error of the gain
#: The metrics on which model and reference are compared, and whether higher is better.
HIGHER_IS_BETTER = {name: higher for name, (_, higher, _) in MAIN.items()}
MISSED_SLIDE = "Held-out slide"  # titles of checks on slides that were left out as a whole begin with this
#: What a verdict means for spots, where those near each other stay so and where they do not.
MEANING: Mapping[Verdict, tuple[str, str]] = {
    "good": (
        "near ones stay near, and long distances are about right",
        "long distances are about right; which spots are neighbours is less certain",
    ),
    "fair": (
        "near ones mostly stay near; read long distances with care",
        "the large-scale layout is right; do not rely on which spots are neighbours",
    ),
    "weak": (
        "near ones mostly stay near; do not rely on long distances",
        "the layout is right only in outline; read it with care",
    ),
}
ANYWHERE = 1.34  # RMS radii: nine tenths of a disk are within this of its centre
LOCAL = 0.8  # edge AUC from which neighbouring spots are said to stay neighbours
FEWEST_SPOTS = 10  # held-out spots of a slide that are worth a self-check
SPATIAL = 0.1  # Moran's I from which a gene is called spatial
FEW_SPATIAL = 10  # fewer such genes are worth a warning
STRONGEST, WEAK = 50, 0.15  # the strongest genes, and the mean Moran's I below which their signal is weak


@dataclass(frozen=True)
class SelfCheck:
    """Scores of one held-out set of spots."""

    title: str  # what was held out
    #: Rows of :func:`spatialgears.metrics.evaluate` for the model and for the simple reference.
    model: Mapping[str, float]
    reference: Mapping[str, float] = field(default_factory=dict)
    verdict: Verdict = "none"  # ``good``, ``fair``, ``weak`` or ``none``: no spatial signal was found
    words: str = ""  # what that means
    p_value: float = 0.0  # how often spots with shuffled positions would correlate as well
    n_spots: int = 0  # how many were held out
    gain_error: float = 0.0  # standard error of the model's Spearman correlation less the reference's

    @property
    def sentence(self) -> str:
        """What was held out and what that says."""
        return f"{self.title}: {self.words}"

    def __repr__(self) -> str:
        return f"{self.title}: {self.verdict}, Spearman {self.model['spearman']:.2f}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "title": self.title,
            "model": dict(self.model),
            "reference": dict(self.reference),
            "verdict": self.verdict,
            "words": self.words,
            "p_value": self.p_value,
            "n_spots": self.n_spots,
            "gain_error": self.gain_error,
        }


def score(
    title: str, predicted: NDArray[Any], truth: NDArray[Any], *, reference: NDArray[Any] | None = None
) -> SelfCheck:
    """Score predicted positions (n, 2) of held-out spots against the true ones, and put the result into words."""
    k = min(20, (len(truth) - 2) // 2)
    model = _evaluate(predicted, truth, k=k)
    simple = {} if reference is None else _evaluate(reference, truth, k=k)
    chance = p_value(predicted, truth)
    verdict = judge(model["spearman"], chance)
    error = 0.0 if reference is None else gain_error(predicted, reference, truth)
    words = _words(model, simple, verdict, n_spots=len(truth), error=error)
    return SelfCheck(title, model, simple, verdict, words, chance, len(truth), error)


def _evaluate(predicted: NDArray[Any], truth: NDArray[Any], *, k: int) -> dict[str, float]:
    """The scores; NaN if all predicted positions coincide or are not finite."""
    spread = float(np.ptp(predicted, axis=0).max())
    if not spread > 1e-9 * float(np.abs(predicted).max()):
        return dict.fromkeys(evaluate(truth, truth, k=k), float("nan"))
    return evaluate(predicted, truth, k=k)


def judge(spearman: float, chance: float = 0.0) -> Verdict:
    """The verdict for a Spearman correlation of distances, and the probability that chance reaches it."""
    if chance > CHANCE:
        return "none"
    return next((word for level, word in LEVELS if spearman >= level), "none")


def trusted(checks: Sequence[SelfCheck]) -> bool:
    """Whether held-out spots support the coordinates: there are self-checks, and all of them are fair or good."""
    return bool(checks) and {judge(one.model["spearman"], one.p_value) for one in checks} <= {"good", "fair"}


def p_value(predicted: NDArray[Any], truth: NDArray[Any], *, seed: int = 0) -> float:
    """Mantel's permutation test of predicted (n, 2) against true distances, one-sided.

    If expression says nothing about position, the true positions of held-out spots can be permuted among them. The p-value
    is the share of permutations, the identity included, whose rank correlation of distances is at least the observed one.
    At most 250 spots are used; O(250^2) for each of 999 permutations.
    """
    rng = numpy_rng(seed, "chance")
    some = np.sort(rng.permutation(len(truth))[:TESTED])
    first, second = np.triu_indices(len(some), 1)
    places, true = (np.asarray(points, dtype=np.float64)[some] for points in (predicted, truth))
    if not np.isfinite(places).all():
        return 1.0
    found = _ranks(pdist(places))
    ranks = squareform(_ranks(pdist(true)))
    observed = float(found @ ranks[first, second])
    orders = [rng.permutation(len(some)) for _ in range(PERMUTATIONS)]
    permuted = np.array([found @ ranks[order[first], order[second]] for order in orders])
    return float((1 + (permuted >= observed - 1e-9 * abs(observed)).sum()) / (1 + PERMUTATIONS))


def gain_error(
    predicted: NDArray[Any], reference: NDArray[Any], truth: NDArray[Any], *, seed: int = 0
) -> float:
    """Standard error of the gain in Spearman of distances over the reference: a jackknife over spots, O(n^2).

    Each of at most 1,000 spots is left out in turn, with all its pairs; ranks are kept. 0 where there are no scores.
    """
    some = np.sort(numpy_rng(seed, "jackknife").permutation(len(truth))[:JACKKNIFED])
    points = [np.asarray(part, dtype=np.float64)[some] for part in (predicted, reference, truth)]
    model, simple, true = (squareform(_ranks(pdist(part))) for part in points)
    n_pairs = (len(some) - 1) * (len(some) - 2) / 2

    def without(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum (n,) of products over the pairs that lack each spot, about the means."""
        xy, x, y = (part.sum() / 2 - part.sum(1) for part in (x * y, x, y))
        return xy - x * y / n_pairs

    with np.errstate(invalid="ignore", divide="ignore"):
        spread = np.sqrt(without(true, true))
        gain = (
            without(model, true) / np.sqrt(without(model, model))
            - without(simple, true) / np.sqrt(without(simple, simple))
        ) / spread
    error = float(np.sqrt((len(some) - 1) * gain.var()))
    return error if np.isfinite(error) else 0.0


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    ranks = rankdata(values)
    centred: NDArray[np.float64] = (ranks - ranks.mean()) / len(ranks)
    return centred


def _words(
    model: Mapping[str, float],
    reference: Mapping[str, float],
    verdict: Verdict,
    *,
    n_spots: int,
    error: float,
) -> str:
    near = model["edge_auc"] >= LOCAL
    if verdict == "none" and model["spearman"] >= LEVELS[-1][0]:
        text = (
            f"No spatial signal was found: {model['spearman']:.2f} is what chance reaches with so few spots. Do not use "
            "the coordinates unless a larger held-out set confirms them."
        )
    elif verdict == "none":
        text = "No spatial signal was found: expression does not predict where these spots lie. Do not use the coordinates."
    else:
        text = f"{verdict.capitalize()}, for spots: {MEANING[verdict][0 if near else 1]}."
    text += f" This rests on {n_spots:,} spots."
    if reference:
        gain, margin = model["spearman"] - reference["spearman"], max(0.01, 2 * error)
        scores = (
            f"({model['spearman']:.2f} against {reference['spearman']:.2f}, rank correlation of distances)"
        )
        if abs(gain) > margin:
            compared = "better" if gain > 0 else "worse"
            text += f" The model is {compared} than a simple nearest-neighbour reference {scores}"
        else:
            text += f" The difference to a simple nearest-neighbour reference {scores} is within the error"
        sides = [
            np.sign(model[name] - reference[name]) * (1 if higher else -1)
            for name, higher in HIGHER_IS_BETTER.items()
        ]
        text += f"; the model is ahead on {sides.count(1)} of {len(sides)} metrics."
    return text


def not_held_out(spots: bool, slides: bool, *, donors: Donors) -> list[str]:
    """Warnings about what is not tested because no spots, no whole slide or no whole donor is held out."""
    if not spots:
        return [
            "No self-check: no spots are held out (slides too small, or geometry.crossfit = 0). Only the check on cells, if "
            "there is one, says how good the places are."
        ]
    if slides and donors.count > 1:
        return []
    if slides:
        return [
            f"All slides are of one donor ({donors.names[0]}): how well cells of another donor are placed was not checked."
        ]
    if len(donors.names) == 1:
        return [
            "There is one slide: how well cells of another section or donor are placed was not checked. They may be placed "
            "worse than the held-out spots."
        ]
    return [
        "No slide is held out as a whole (geometry.slide_steps = 0, as in the preset quick), so how well cells of another "
        "section are placed, and whether radii hold for them, was not checked."
    ]


def weak_signal(morans_i: NDArray[Any]) -> list[str]:
    """A warning if the panel's genes (G,), or all but a few of them, hardly vary in space."""
    strongest = np.sort(morans_i)[-STRONGEST:]
    mean = float(strongest.mean()) if len(strongest) else 0.0
    if mean >= WEAK:
        spatial = int((morans_i > SPATIAL).sum())
        few = f"Only {spatial} genes vary over the slides (Moran's I above {SPATIAL})."
        return [few] if spatial < FEW_SPATIAL else []
    return [
        f"Weak spatial signal: the {len(strongest)} most spatial genes have a mean Moran's I of only {mean:.2f}."
    ]


def warnings(
    checks: Sequence[SelfCheck],
    *,
    morans_i: NDArray[Any],
    donors: Donors = ALONE,
    outside: NDArray[np.bool_] | None = None,
    unfilled: float | None = None,
    spaced: bool = True,
    radius90: NDArray[Any] | None = None,
) -> list[str]:
    """Reasons not to trust a reconstruction that can be seen without the truth.

    ``morans_i`` (G,) is that of the panel's genes. ``outside`` (N,) marks cells whose expression no slide supports.
    ``unfilled`` is the share of the slides' tissue near which no cell was placed; None where the cells are too few to
    fill it. ``spaced`` says whether cells were spread over that tissue (``assembly.spacing`` above 0). ``radius90`` (N,)
    is in RMS radii of the slides.
    """
    missed = any(check.title.startswith(MISSED_SLIDE) for check in checks)
    found = not_held_out(bool(checks), missed, donors=donors)
    worst = min((float(np.nan_to_num(check.model["spearman"])) for check in checks), default=1.0)
    verdicts = {judge(check.model["spearman"], check.p_value) for check in checks}
    if "none" in verdicts:
        found.append(
            "No spatial signal: held-out spots are not placed better than by chance. Do not use the coordinates."
        )
    elif "weak" in verdicts:
        found.append(f"Weak self-check: held-out distances correlate only {worst:.2f} with the truth.")
    if checks and all(
        check.reference
        and check.reference["spearman"] > check.model["spearman"] + max(0.03, 2 * check.gain_error)
        for check in checks
    ):
        found.append("A simple nearest-neighbour reference places held-out spots better than the model does.")
    found += weak_signal(morans_i)
    if outside is not None and outside.mean() > 0.1:
        found.append(
            f"Strong domain shift: {outside.mean():.0%} of the cells resemble no spot. Do not trust their "
            "coordinates and radii."
        )
    if unfilled is not None and unfilled > 0.25:
        found.append(
            f"Composition mismatch: no cell was placed near {unfilled:.0%} of the slides' tissue. Either those cells were "
            "not sampled, or they were put elsewhere. "
            + (
                "If the cells are a part of the tissue, such as one sorted type, give gears run or gears reconstruct "
                "--set assembly.spacing=0."
                if spaced
                else "If the cells are a part of the tissue, this is expected, as assembly.spacing is 0."
            )
        )
    typical = float(np.median(radius90)) if radius90 is not None and len(radius90) else 0.0
    if typical >= ANYWHERE:
        found.append(
            f"Wide radii: the 90% radius of a typical cell is {typical:.2f} RMS radii of the slides, no less than if every "
            "cell were put at the centre. Read the layout as a whole, not single cells."
        )
    return found
