"""The verdict of a run in one sentence, and the few numbers that stand beside the map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from spatialgears.pipeline import self_check as selfcheck
from spatialgears.pipeline.cell_check import MANY_UNMATCHED, CellCheck
from spatialgears.report.content import Level
from spatialgears.text import number
from spatialgears.validate.batches import CONFOUNDED

if TYPE_CHECKING:
    from spatialgears.reconstruction import Reconstruction

MOSTLY = 0.5  # share of cells that no slide supports from which the map as a whole is not to be used
ORDER: tuple[Level, ...] = ("none", "weak", "fair", "good")
#: By kept-out genes: what may be read from the map, and what the cells show.
BY_CELLS: dict[str, tuple[str, str]] = {
    "good": ("Regions and neighbourhoods on this map can be read", "show the patterns of genes"),
    "fair": (
        "Regions on this map can be read, single cells cannot",
        "show, in outline, the patterns of genes",
    ),
    "weak": ("Only the large-scale layout of this map can be read", "show little of the patterns of genes"),
    "none": ("Do not use this map", "do not show the patterns of genes"),
}
#: By held-out spots alone: what may be read from the map; the second where spots that are neighbours do not stay so.
BY_SPOTS: dict[Level, tuple[str, str]] = {
    "fair": (
        "The layout can be read, long distances only roughly",
        "The large-scale layout can be read; neighbourhoods cannot",
    ),
    "weak": (
        "Only neighbourhoods can be read, and only for groups of cells",
        "Only the outline of the layout can be read",
    ),
    "none": ("Do not use this map", "Do not use this map"),
}


def verdict(
    cells: CellCheck | None,
    spots: Sequence[selfcheck.SelfCheck],
    outside: np.ndarray,
    *,
    warnings: Sequence[str] = (),
) -> tuple[Level, str]:
    """One word and one sentence on how far to trust the map.

    The check on the cells decides. Where there is none, the worst check on held-out spots does, and nothing is called
    good; nor where batches are confounded with position, which no check can detect. ``outside`` (n,) marks cells that no slide
    supports; ``warnings`` are those of the result.
    """
    level, words = _by_checks(cells, spots, outside)
    if level == "good" and any(CONFOUNDED in text for text in warnings):
        return "fair", (
            "Batches are confounded with position (see the warnings), so spatial patterns may be technical: read this map only "
            "with knowledge of the batches."
        )
    return level, words


def _by_checks(
    cells: CellCheck | None, spots: Sequence[selfcheck.SelfCheck], outside: np.ndarray
) -> tuple[Level, str]:
    if len(outside) and outside.mean() > MOSTLY:
        words = f"no slide shows expression like that of {outside.mean():.0%} of the cells"
        return "none", f"Do not use this map: {words}."
    if cells is not None and cells.verdict == "good" and cells.unmatched >= MANY_UNMATCHED:
        return "fair", (
            f"{BY_CELLS['fair'][0]}: about {cells.unmatched:.0%} of the cells fit their position no better than others would, "
            f"by genes that the placing did not see (r = {cells.r:.2f} over all cells; noise allows {cells.ceiling:.2f})."
        )
    if cells is not None and cells.verdict in BY_CELLS:
        advice, shown = BY_CELLS[cells.verdict]
        return cells.verdict, (  # type: ignore[return-value]
            f"{advice}: the placed cells {shown} that the placing did not see (r = {cells.r:.2f}; noise "
            f"allows {cells.ceiling:.2f})."
        )
    if not spots:
        return "unknown", "The quality of this map is unknown: neither cells nor spots could be checked."
    worst = min(
        spots, key=lambda one: (ORDER.index(_level(one)), float(np.nan_to_num(one.model["spearman"])))
    )
    how = {"good": "well", "fair": "fairly well", "weak": "poorly", "none": ""}[_level(worst)]
    level = "fair" if _level(worst) == "good" else _level(worst)  # spots are not cells
    advice = BY_SPOTS[level][0 if worst.model["edge_auc"] >= selfcheck.LOCAL else 1]
    what = "spots of held-out slides" if worst.title.startswith(selfcheck.MISSED_SLIDE) else "held-out spots"
    if level == "none":
        return level, f"{advice}: {what} were placed no better than by chance."
    return level, (
        f"{advice}: {what} were placed {how} (rank correlation of distances "
        f"{worst.model['spearman']:.2f}), and the cells themselves could not be checked."
    )


def _level(check: selfcheck.SelfCheck) -> Level:
    return selfcheck.judge(check.model["spearman"], check.p_value)


def numbers(
    placed: Reconstruction,
    checks: Sequence[selfcheck.SelfCheck],
    *,
    n_spots: Sequence[int],
    spacing: float | None,
) -> list[tuple[str, str]]:
    """Cells, spots, typical error, checks and cells outside the slides' range: name and value."""
    rows = [("Cells placed", f"{len(placed.coords):,}")]
    if n_spots:
        rows.append((f"Spots on {number(len(n_spots), 'slide')}", f"{sum(n_spots):,}"))
    half, most = (float(np.median(radius)) for radius in (placed.radius50, placed.radius90))
    if np.isfinite(half):
        said = (
            f"{half / spacing:.1f} spot spacings (90%: {most / spacing:.1f})"
            if spacing
            else f"{half:.2f} RMS radii of the slide (90%: {most:.2f})"
        )
        own = placed.diagnostics.get("cells_from") == "same-donor"
        typical = "A typical cell of the slides' donors" if own else "A typical cell"
        rows.append((f"{typical} lies, with 50% probability, within", said))
    cells = placed.cell_check
    if cells is not None and cells.checked:
        rows.append(("Kept-out genes, r (noise allows)", f"{cells.r:.2f} ({cells.ceiling:.2f})"))
    if checks:
        scores = [float(one.model["spearman"]) for one in checks]
        simple = [float(one.reference["spearman"]) for one in checks if one.reference]
        rows.append(("Held-out spots, rank correlation of distances", _range(scores)))
        if len(simple) == len(checks):
            rows.append(("The same by a simple reference", _range(simple)))
    if placed.outside.any():
        rows.append(
            ("Cells that no slide supports", f"{placed.outside.sum():,} ({placed.outside.mean():.1%})")
        )
    return rows


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"
