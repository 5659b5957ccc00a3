"""What follows from how alike cells and slides are, before anything is learnt.

Cells of another donor differ from the slides in more than noise: their genes go together differently. What a single cell has
of its own then says less about its place than what it shares with similar cells, its most similar single spots less than what
the generators make of all, and what networks learn late in training are details of the slides' donor. Cells of the slides' own
donor lose by such caution, so the agreement of co-expression decides, and whether the cells are said to be of another donor.
Where donors are left out, they decide how far it goes (:func:`~spatialgears.pipeline.evaluation.choose_average`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spatialgears.config import Config

#: Agreement of co-expression from which cells are taken as they are, and up to which they are averaged in full.
ALIKE, UNLIKE = 0.85, 0.75
AVERAGE = 0.65  # how far cells that are unlike the slides move towards similar cells
VIEWS = 250  # of each spot, after which training ends where cells are averaged at least half as far


class Likeness(NamedTuple):
    """How cells are treated for the likeness of slides and cells."""

    #: How far each cell's profile moves towards the mean of the cells most similar to it. Then it does not move towards similar
    #: spots, and its position moves the less towards theirs.
    average: float = 0.0
    words: str = ""  # why; empty where it was set, or is not done
    by_donors: bool = False  # whether donors that are left out decide how far, up to ``average``

    @classmethod
    def of(
        cls, coexpression: float | None, config: Config, *, other_donor: bool = False, left_out: bool = False
    ) -> Likeness:
        """By the agreement of co-expression, which may be unknown, unless the configuration says how far.

        Cells that are said to be of an ``other_donor`` are averaged at least half as far as the most unlike ones.
        ``left_out`` says whether any donors are left out.
        """
        said = config.expression.average
        if said != "auto":
            return cls(said)
        if coexpression is None or (coexpression >= ALIKE and not other_donor):
            return cls()
        why = f"Slides and cells differ as donors do (agreement of co-expression {coexpression:.2f})"
        if coexpression >= ALIKE:
            why = "The cells are of another donor than the slides"
        if left_out:
            words = f"{why}: donors that are left out decide how far each cell is moved to the mean of similar cells."
            return cls(AVERAGE, words, by_donors=True)
        share = float(np.clip((ALIKE - coexpression) / (ALIKE - UNLIKE), 0.5 * other_donor, 1))
        average = round(AVERAGE * share, 2)
        words = (
            f"{why}: each cell is moved {average:.0%} of the way to the mean of similar cells, "
            "and its position the less towards similar spots."
        )
        if average >= AVERAGE / 2:
            words += " Training on one slide is shorter, too."
        return cls(average, words)

    def training(self, config: Config) -> Config:
        """The configuration of training, which is shorter where cells are averaged."""
        views = config.geometry.views
        if self.average < AVERAGE / 2 or 0 < views <= VIEWS:
            return config
        return config.model_copy(update={"geometry": config.geometry.model_copy(update={"views": VIEWS})})
