"""How similar slides and cells are, and how far cells are therefore averaged with similar cells.

Cells of another donor differ from the slides by more than noise: their co-expression differs. Three things then help.
Each cell is averaged with similar cells. Its position moves less towards its most similar spots. Training stops earlier,
because networks learn details of the slides' donor last.

Cells of the slides' own donor lose accuracy by this. It is therefore done only where co-expression agrees poorly, or where
the user says that the cells are of another donor. Left-out donors, if any, decide how far
(:func:`~spatialgears.pipeline.evaluation.choose_average`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spatialgears.config import Config

#: Agreement of co-expression from which cells are not averaged, and up to which they are averaged in full.
ALIKE, UNLIKE = 0.85, 0.75
AVERAGE = 0.65  # how far cells that differ from the slides move towards similar cells
VIEWS = 250  # per spot, at which training ends if cells are averaged at least half as far


class Likeness(NamedTuple):
    """How far cells are averaged with similar cells, and why."""

    #: Share by which each profile moves towards the mean of its most similar cells. Above 0, the profile is not pulled
    #: towards similar spots, and the position moves less towards theirs.
    average: float = 0.0
    words: str = ""  # the reason, for the report; empty if the user set ``average``, or if it is 0
    by_donors: bool = False  # whether left-out donors decide how far, up to ``average``

    @classmethod
    def of(
        cls, coexpression: float | None, config: Config, *, other_donor: bool = False, left_out: bool = False
    ) -> Likeness:
        """From the agreement of co-expression (None: unknown), unless ``expression.average`` is set.

        Cells stated to be of an ``other_donor`` are averaged at least half as far as the most different ones.
        ``left_out`` says whether any donors are left out.
        """
        said = config.expression.average
        if said != "auto":
            return cls(said)
        if coexpression is None or (coexpression >= ALIKE and not other_donor):
            return cls()
        why = f"Slides and cells differ as much as two donors do (agreement of co-expression {coexpression:.2f})"
        if coexpression >= ALIKE:
            why = "The cells are of another donor than the slides"
        if left_out:
            words = (
                f"{why}: left-out donors decide how far each cell is moved towards the mean of similar cells."
            )
            return cls(AVERAGE, words, by_donors=True)
        share = float(np.clip((ALIKE - coexpression) / (ALIKE - UNLIKE), 0.5 * other_donor, 1))
        average = round(AVERAGE * share, 2)
        words = (
            f"{why}: each cell is moved {average:.0%} of the way to the mean of similar cells, "
            "and its position moves less towards similar spots."
        )
        if average >= AVERAGE / 2:
            words += " Training on one slide is shorter, too."
        return cls(average, words)

    def training(self, config: Config) -> Config:
        """The configuration for training, which is shorter if cells are averaged far enough."""
        views = config.geometry.views
        if self.average < AVERAGE / 2 or 0 < views <= VIEWS:
            return config
        return config.model_copy(update={"geometry": config.geometry.model_copy(update={"views": VIEWS})})
