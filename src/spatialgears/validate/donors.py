"""The donor of each slide. Leaving out one slide of a donor tests another section of it, not another donor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from spatialgears.errors import InputError
from spatialgears.text import number

if TYPE_CHECKING:
    from anndata import AnnData

KEY = "donor"  # of ``uns``, or of a column of ``obs``
CellsFrom = Literal["same-donor", "other-donor", "unknown"]


@dataclass(frozen=True)
class Donors:
    """The donor of each slide."""

    names: tuple[str, ...]  # one per slide, in their order; slides of one donor have the same
    stated: bool = False  # whether they were given; otherwise each slide is taken as a donor of its own

    @property
    def count(self) -> int:
        """How many there are."""
        return len(set(self.names))

    @property
    def left_out(self) -> list[int]:
        """The number of what is left out together with each slide: its donor, or the slide where all are of one donor."""
        if self.count == 1:
            return list(range(len(self.names)))
        order = list(dict.fromkeys(self.names))
        return [order.index(name) for name in self.names]

    @property
    def words(self) -> str:
        """What a command says of them."""
        if len(self.names) == 1:
            return "one donor" + (f" ({self.names[0]})" if self.stated else "")
        if not self.stated:
            return "each slide is taken as a donor of its own; name donors with --donor (donors=) if some share one"
        return f"{number(self.count, 'donor')} ({', '.join(dict.fromkeys(self.names))})"

    def question(self, slide: int) -> str:
        """Which question the score of a slide that was left out as a whole answers."""
        if not self.stated:
            return (
                "No donors were given, so each slide counts as a donor of its own. If others here are of the same donor, this "
                "is how well another section of it is placed, not another donor."
            )
        name = self.names[slide]
        if self.count == 1:
            return (
                f"Other slides of donor {name} were seen: this is how well another section of this donor is placed, not "
                "another donor."
            )
        return f"No slide of donor {name} was seen: this is how well another donor is placed."


ALONE = Donors(("unnamed",))  # one slide of which nothing is known


def donors_of(slides: Sequence[AnnData], given: Sequence[str] | None, names: Sequence[str]) -> Donors:
    """The donor of each slide: as given, else as ``uns["donor"]`` or a constant column ``obs["donor"]`` says.

    A slide of which nothing is known is a donor of its own.
    """
    if given is not None:
        given = [given] if isinstance(given, str) else [str(name) for name in given]
        if len(given) != len(slides) or not all(name.strip() for name in given):
            raise InputError(
                f"Expected the name of a donor for each of {number(len(slides), 'slide')}, found {given}.",
                "Give donors=[...] (--donor NAME, once per --st), in the order of the slides; slides of one donor have the "
                "same name.",
            )
        return Donors(tuple(name.strip() for name in given), stated=True)
    found = [_own(slide, names[i]) for i, slide in enumerate(slides)]
    own = (name if name is not None else f"that of {names[i]}" for i, name in enumerate(found))
    return Donors(tuple(own), stated=any(name is not None for name in found))


def whose_cells(cells: AnnData, donors: Donors, said: str | None = None) -> CellsFrom:
    """Whether cells are of the slides' donors: as said, else as a donor in their ``uns`` or ``obs`` tells."""
    if said is not None:
        known = get_args(CellsFrom)
        if said not in known:
            raise InputError(
                f"cells_from (--cells-from) is {said!r}.", f"Choose {', '.join(known[:-1])} or {known[-1]}."
            )
        return said  # type: ignore[return-value]
    found = _named(cells)
    if not found:
        return "unknown"
    return "same-donor" if donors.stated and set(found) <= set(donors.names) else "other-donor"


def _own(slide: AnnData, name: str) -> str | None:
    """What a slide says of its donor itself."""
    values = _named(slide)
    if len(values) > 1:
        raise InputError(
            f"{name}: .obs[{KEY!r}] names {len(values)} donors ({', '.join(values[:4])}); expected one for a slide.",
            "Give the spots of each donor as a slide of its own, or say whose the slide is with donors= (--donor).",
        )
    return values[0] if values else None


def _named(adata: AnnData) -> list[str]:
    """The donors that an AnnData names."""
    if isinstance(said := adata.uns.get(KEY), str) and said.strip():
        return [said.strip()]
    return [] if KEY not in adata.obs else list(adata.obs[KEY].dropna().astype(str).str.strip().unique())
