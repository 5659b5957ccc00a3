"""Calibrate radii for cells, which are placed less accurately than held-out spots.

Where donors were left out, their errors calibrate the radii of cells of another donor. Held-out spots calibrate the radii of
cells of the slides' own donors.

In three cases no spot shows how large the errors of cells are: cells that may be of another donor while none was left out;
donors that were not named, so that a left-out slide may have a sister section among the training slides; and cells of the
slides' donors that differ from the spots, for example by platform, and are averaged for it. The check on cells then
estimates the error (:func:`expected_error`). If that exceeds the radii, all radii are widened by one factor.

Other radii are widened only if the check is weak or worse. The check never narrows them. The factor is :data:`WIDER` if
cells could not be checked and may be of another donor while none was left out.

50% radii of cells of the slides' donors are then shortened by a tenth (:data:`HELD_OUT`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from spatialgears.pipeline.cell_check import CellCheck
from spatialgears.pipeline.fitted import Fitted
from spatialgears.pipeline.place import Placement
from spatialgears.validate.donors import CellsFrom

#: Median error of cells if the check finds no signal, in RMS radii. Fitted to 34 runs of ``quick`` whose cells differ
#: from the slides; ``gears bench cell-check`` prints such a fit.
LARGEST = 0.95
LEAST = 0.05  # direct mapping that reaches less says nothing
#: Error of cells of another donor over that of held-out spots, both in units of their spread. Learnt on pairs of donors with
#: known positions (``gears bench donors``); the page on results says how well radii then hold.
WIDER = 1.7
#: 50% radius of cells of the slides' donors over that of held-out spots; chosen on runs with known positions, which the page
#: on results lists. 90% radii hold as they are.
HELD_OUT = 0.9


def calibrated(placed: Placement, fitted: Fitted, check: CellCheck, *, cells_from: CellsFrom) -> Placement:
    """The placement with its radii, so far those of held-out spots or donors, calibrated for these cells.

    ``diagnostics["widened"]`` is the factor by which the check on cells widened them.
    """
    half, most = _by_donor(fitted, cells_from)
    placed = replace(placed, radius50=half * placed.radius50, radius90=most * placed.radius90)
    known = placed.radius50[np.isfinite(placed.radius50)]
    factor = 1.0
    if check.checked and len(known):
        named = fitted.donors.stated and donors_left_out(fitted)
        known_errors = not fitted.average if cells_from == "same-donor" else named
        if not known_errors or check.verdict in ("weak", "none"):
            factor = max(1.0, expected_error(check) / float(np.median(known)))
    elif cells_from != "same-donor" and not donors_left_out(fitted):
        factor = WIDER
    shorter = HELD_OUT if cells_from == "same-donor" else 1.0
    return replace(
        placed,
        radius50=(shorter * factor * placed.radius50).astype(np.float32),
        radius90=(factor * placed.radius90).astype(np.float32),
        diagnostics={**placed.diagnostics, "cells_from": cells_from, "widened": factor},
    )


def expected_error(check: CellCheck) -> float:
    """Median error of cells, in RMS radii of a slide, estimated from the check on them.

    It falls as kept-out genes approach the geometric mean of the ceiling and direct mapping. The ceiling alone is too strict
    where the platform differs: genes are then predicted poorly even from correctly placed cells, and by direct mapping, too.
    """
    return float(LARGEST * (1 - reached(check.r, check.reference, check.ceiling)))


def reached(r: float, reference: float, ceiling: float) -> float:
    """Share, from 0 to 1, that ``r`` is of the geometric mean of direct mapping and the ceiling."""
    return float(np.clip(r / np.sqrt(max(reference, r, LEAST) * ceiling), 0, 1))


def _by_donor(fitted: Fitted, cells_from: CellsFrom) -> tuple[float, float]:
    """Factors that turn 50% and 90% radii calibrated on left-out donors into those of these cells.

    Cells of the slides' donors get the radii of held-out spots. Cells of another donor get at least these: a left-out slide
    that was a sister section may have been placed better than held-out spots.
    """
    if fitted.confidence is None or not donors_left_out(fitted):
        return 1.0, 1.0
    quantile, least = fitted.confidence.quantile, 0.0 if cells_from == "same-donor" else 1.0
    half, most = (max(least, quantile(level, own=True) / quantile(level)) for level in (0.5, 0.9))
    return half, most


def donors_left_out(fitted: Fitted) -> bool:
    """Whether radii were calibrated on donors that were left out."""
    return fitted.donors.count > 1 and fitted.folds.left_out > 0


def words(fitted: Fitted, placed: Mapping[str, Any]) -> str:
    """For which cells the radii hold, in words, from the diagnostics of a placement."""
    cells_from, factor = placed.get("cells_from", "unknown"), float(placed.get("widened", 1.0))
    if fitted.confidence is None:
        return ""
    checked = f" The check on cells widened them {factor:.1f}-fold." if factor > 1.05 else ""
    one = fitted.donors.count == 1
    if cells_from == "same-donor":
        return f"Radii hold for cells of {'this donor' if one else 'the donors of the slides'} only.{checked}"
    if donors_left_out(fitted):
        whole = "." if fitted.donors.stated else ", each slide being taken as a donor of its own."
        return f"Radii are calibrated on donors that were left out{whole}{checked}"
    why = "the slides are of one donor" if one else "no donor was left out"
    text = f"Radii rest on held-out spots and on the check on cells: {why}, and the cells "
    if factor == WIDER:
        text = f"Radii are widened {WIDER:g}-fold: {why}, and the cells "
        checked = ""
    whose = "are of another." if cells_from == "other-donor" else "may be of another."
    return f"{text}{whose}{checked}"
