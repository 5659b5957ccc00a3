"""Radii by whose the cells are: cells of another donor are placed less well than held-out spots of the slides say.

Where donors were left out, their errors calibrate the radii of cells of another donor, and held-out spots those of cells
of the slides' own donors. Where none was, as with one donor, radii from the slides are multiplied by :data:`WIDER` for cells
that may be of another donor.
"""

from __future__ import annotations

from spatialgears.pipeline.fitted import Fitted
from spatialgears.validate.donors import CellsFrom

#: Error of cells of another donor over that of held-out spots, both in units of their spread. Learnt on pairs of donors with
#: known positions (``gears bench donors``); the page on results says how well radii then hold.
WIDER = 1.7


def factors(fitted: Fitted, cells_from: CellsFrom) -> tuple[float, float]:
    """What the 50% and the 90% radii, as calibrated by what was left out, are multiplied with."""
    confidence = fitted.confidence
    if confidence is None or donors_left_out(fitted) == (cells_from != "same-donor"):
        return 1.0, 1.0
    if not donors_left_out(fitted):
        return WIDER, WIDER
    half, most = (confidence.quantile(level, own=True) / confidence.quantile(level) for level in (0.5, 0.9))
    return half, most


def donors_left_out(fitted: Fitted) -> bool:
    """Whether radii were calibrated on donors that were left out."""
    return fitted.donors.count > 1 and fitted.folds.left_out > 0


def words(fitted: Fitted, cells_from: CellsFrom) -> str:
    """For whose cells the radii hold."""
    if fitted.confidence is None:
        return ""
    one = fitted.donors.count == 1
    if cells_from == "same-donor":
        return f"Radii hold for cells of {'this donor' if one else 'the donors of the slides'} only."
    if donors_left_out(fitted):
        return "Radii are calibrated on donors that were left out" + (
            "." if fitted.donors.stated else ", each slide being taken as a donor of its own."
        )
    why = "the slides are of one donor" if one else "no donor was left out"
    text = f"Radii are widened {WIDER:g}-fold: {why}, and the cells "
    if cells_from == "other-donor":
        return text + "are of another. How well another donor is placed was not checked."
    return text + (
        "may be of another, on which nothing was checked. If they are not, say so with --cells-from same-donor "
        "(cells_from=)."
    )
