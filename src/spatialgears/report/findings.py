"""The report's analyses, a section each: registration, patterns, markers, neighbours, mixing (section 4)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from spatialgears import analysis, plotting
from spatialgears.analysis import lookup
from spatialgears.analysis.annotate import MOST_SLIDES
from spatialgears.analysis.neighbors import matrix
from spatialgears.analysis.subject import Subject
from spatialgears.errors import InputError
from spatialgears.pipeline.pose import OnSlide, Pose, fit_pose
from spatialgears.plotting import canvas
from spatialgears.report.content import Section
from spatialgears.text import p_value

if TYPE_CHECKING:
    from anndata import AnnData
    from matplotlib.axes import Axes

logger = logging.getLogger(__name__)

FEWEST_CELLS, FEWEST_OF_TYPE, FEWEST_GENES = 50, 10, 30
MARKERS, LEVEL = 3, 0.05  # genes tested for each type, and the adjusted P below which one counts
GOOD, POOR = 0.7, 0.4  # agreement from which, and below which, a section says so
TURNED = 30.0  # degrees from which two poses are said to differ
NEAR = 3.0  # spots from its match within which a typical cell lies where the slide's frame may be used
MIXING = {"neighbour entropy": "neighbour_entropy_balanced", "iLISI": "ilisi_balanced"}
WORSE = 0.05  # change of a mixing score that is worth a warning
SAME = 0.02  # change of a mixing score that is none
DPI = 180  # of the figures, which are one or two columns of a journal wide
NO_TYPES = (
    "Markers and neighbouring types: the cells have no column of cell types. Put the types into their annotations as "
    '"cell_type" (in an .h5ad file, adata.obs["cell_type"]) and write the report again.'
)
NO_SLIDES = "Registration, patterns of genes, markers and mixing: no slides were given. Name them with --st."


def sections(
    subject: Subject,
    profiles: Callable[[], AnnData],
    *,
    laid: Sequence[OnSlide],
    trusted: bool,
) -> list[Section]:
    """A section for every analysis that can be made, and one that says what could not, and why.

    ``profiles`` gives spots and cells in plain expression and as the network sees them, for :func:`mixing`; ``laid`` is how the
    cells lie on each slide, as the map shows them; ``trusted`` says whether the self-checks allow single positions to be read.
    """
    jobs: list[tuple[str, Callable[[], Section]]] = []
    if len(subject.rows) < FEWEST_CELLS:
        return [Section("Not shown", f"Analyses of coordinates need {FEWEST_CELLS} cells or more.")]
    if subject.slides:
        jobs.append(("Cells on the slide", lambda: registration(subject, laid, trusted=trusted)))
        jobs.append(("Do genes keep their patterns?", lambda: patterns(subject)))
        if subject.types:
            jobs.append(("Markers near their cells", lambda: markers(subject)))
    if subject.types:
        jobs.append(("Which cell types are neighbours", lambda: neighbours(subject)))
    if subject.slides:
        jobs.append(("Do spots and cells mix?", lambda: mixing(profiles())))
    made = [_attempt(title, job) for title, job in jobs]
    missing = [
        words for words, given in ((NO_SLIDES, subject.slides), (NO_TYPES, subject.types)) if not given
    ]
    return [*made, Section("Not shown", "\n\n".join(missing))] if missing else made


def registration(subject: Subject, laid: Sequence[OnSlide], *, trusted: bool) -> Section:
    """The cells over the slide they fit best, in the pose of the map; later sections use that slide."""
    cells, matched = subject.cells, [one for one in laid if "scale" in one.matched]
    if not matched:
        raise next(
            (one.matched["failed"] for one in laid if one.matched),
            InputError("The cells could not be matched with any slide."),
        )
    agreed = {one.slide: pose_words(one.pose, fit_pose(one.matched)) for one in matched}
    rows = [
        {
            "Slide": one.slide,
            "Fit (0 to 1)": f"{one.matched['explained']:.2f}",
            "Median gap of a match (spot spacings)": f"{one.matched['residual']:.1f}",
            "Cells over tissue": f"{one.coverage:.0%}",
            "Pose by matching alone": agreed[one.slide] or "the same",
        }
        for one in matched
    ]
    best = max(matched, key=lambda one: one.matched["explained"])
    fit, title = {**best.matched, "coverage": best.coverage}, best.slide
    number = list(subject.titles).index(title)
    slide = subject.slides[number]
    cells.obsm["X_gears_slide"], cells.uns["reference"] = best.pose(cells.obsm["X_gears"]), number
    words = [
        f"The cells over the spots of {title}, in the pose of the map above. To check the pose, each cell, with its "
        "surroundings, was also matched to the most similar spots, and the motion that most matches agree on was taken.",
        f"{laid_words(fit, trusted=trusted)} {fit['explained']:.0%} of the spread of the matched positions is explained by "
        f"that motion (fit), and {fit['coverage']:.0%} of the cells lie over tissue, that is, within 1.5 spot spacings of "
        "a spot.",
    ]
    caution = ""
    if _agreed(fit) < POOR:
        caution = (
            f"The cells hardly match the spots of {title} where they lie: do not read them in its frame."
        )
    elif agreed[title]:
        caution = (
            f"On {title}, matching cells to spots by expression alone gives another pose ({agreed[title]}): the tissue may be "
            "symmetric, or the map turned wrongly."
        )
        words.append(caution)
    if len(subject.slides) > MOST_SLIDES:
        words.append(f"The first {MOST_SLIDES} of {len(subject.slides)} slides were tried.")
    ax = plotting.registration(cells, slide, color=_colour(subject), title=title)
    alt = f"Cells drawn over the spots of {title}"
    words.append(subject.extent)
    return drawn_section("Cells on the slide", words, ax, alt=alt, table=rows, caution=caution)


def pose_words(pose: Pose, other: Pose) -> str:
    """How another pose differs; empty if it hardly does."""
    if pose.mirrored != other.mirrored:
        return "mirrored"
    angle = pose.turned(other)
    return f"turned by {angle:.0f}°" if angle > TURNED else ""


def _colour(subject: Subject) -> str | None:
    """What cells are coloured by: their type, else their domain, else how sure their position is."""
    if subject.types:
        return subject.types
    if subject.cells.obs["gears_domain"].notna().any():
        return "gears_domain"
    return "gears_radius50" if np.isfinite(subject.cells.obs["gears_radius50"]).all() else None


def laid_words(fit: Mapping[str, Any], *, trusted: bool) -> str:
    """Whether cells can be read in the frame of the slide: only if matches agree and are near, and coordinates are trusted."""
    far = f"{fit['residual']:.0f} spots" if fit["residual"] >= 1.5 else "one spot or less"
    gap = f"A typical cell lies {far} from its match."
    if trusted and fit["residual"] <= NEAR and _agreed(fit) >= GOOD:
        return f"The matches agree: the cells can be read in the slide's own frame. {gap}"
    if _agreed(fit) < POOR:
        return f"The matches hardly agree: this pose may be wrong. {gap}"
    doubt = "" if trusted else " The self-check does not allow more."
    return f"The matches agree roughly: trust the overall pose, not details. {gap}{doubt}"


def _agreed(fit: Mapping[str, Any]) -> float:
    return float(min(fit["explained"], fit["coverage"]))


def patterns(subject: Subject) -> Section:
    """Moran's I of genes among the cells against that on the slide."""
    best = subject.cells.uns.get("reference", 0)
    analysis.spatial_expression(subject.cells, slide=subject.slides[best])
    found = subject.cells.uns["gears_moran"]
    kept = "kept" if found["agreement"] >= GOOD else "kept in part"
    if found["agreement"] < POOR:
        kept = "hardly kept: read the map with caution"
    words = [
        "A gene that forms a pattern on the slide should form one among the placed cells, and a gene that does not "
        "should not. Moran's I says how similar neighbours are in a gene (0: not at all). This check needs no labels and "
        "no known positions.",
        f"The order of the genes is {kept}. Over {len(found['table']):,} genes the rank correlation with "
        f"{subject.titles[best]} is {found['agreement']:.2f}.",
    ]
    table = found["table"]
    unseen = table[~subject.panel]
    # the model takes the most patterned genes for itself
    varied = unseen["slide"].std() >= 0.5 * table["slide"].std()
    if len(unseen) >= FEWEST_GENES and varied and unseen["reconstruction"].nunique() > 1:
        agreement = float(spearmanr(unseen["slide"], unseen["reconstruction"]).statistic)
        words[1] += f" Over the {len(unseen):,} of them that the model never used it is {agreement:.2f}."
    else:
        words[1] += (
            f" The model placed the cells by {subject.panel.sum():,} of them, which makes this figure too good."
        )
    ax = plotting.moran_agreement(subject.cells)
    alt = "Moran's I of each gene on the slide and in the reconstruction"
    caution = (
        "Genes that form patterns on the slide hardly do among the placed cells: read the map with caution."
    )
    words.append(subject.extent)
    caution = caution if found["agreement"] < POOR else ""
    return drawn_section("Do genes keep their patterns?", words, ax, alt=alt, caution=caution)


def markers(subject: Subject) -> Section:
    """Genes that mark a type among the cells: whether they are higher on the slide near where its cells were placed."""
    labels = subject.types or ""
    types = lookup.labels(subject.cells, labels)
    if types.remove_unused_categories().categories.size < 2:
        raise InputError("Markers need at least two cell types, and there is one type.")
    slide = subject.slides[subject.cells.uns.get("reference", 0)]
    found: dict[str, analysis.MarkerEnrichment] = {}
    for name, columns in top_genes(lookup.log_expression(subject.cells), types).items():
        genes = list(subject.cells.var_names[columns])
        with suppress(InputError):  # its cells lie nowhere or everywhere
            found[name] = analysis.marker_enrichment(
                subject.cells, slide, name, labels=labels, genes=genes, min_cells=None, alternative="greater"
            )
    if not found:
        raise InputError(
            f"No type with {FEWEST_OF_TYPE} cells or more inside the slides' range lies in a part of the slide only."
        )
    tests = pd.concat({name: one.table for name, one in found.items()})
    tests["pvalue_adj"] = lookup.adjusted(tests["pvalue"].to_numpy())
    words = [
        f"The {MARKERS} genes that mark each cell type best among the cells were looked up on the slide: are they higher in "
        "spots near its cells than in other spots (Mann-Whitney, adjusted after Benjamini and Hochberg)? A spot is near if "
        "it has more of them within 1.5 spot spacings than the median spot.",
        f"{(tests['pvalue_adj'] < LEVEL).sum()} of {len(tests)} are, at adjusted P below {LEVEL:g}. Neighbouring spots "
        "are correlated, so P is too small for any gene with a pattern: read it with the effect (0: no difference, 1: every "
        "spot near is higher than every other).",
    ]
    skipped = [str(name) for name in types.categories if name not in found]
    if skipped:
        words.append(
            f"Left out, with fewer than {FEWEST_OF_TYPE} cells inside the slides' range, near no spot, or evenly spread: "
            f"{', '.join(skipped[:12])}."
        )
    best = str(tests["effect"].groupby(level=0).mean().idxmax())
    words.append(f"Drawn is the type whose markers stand out most: {best}.")
    with rc_context(canvas.STYLE):
        figure = Figure(figsize=(canvas.PAGE, 2.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        plotting.marker_map(found[best], ax=left)
        plotting.marker_enrichment(replace(found[best], table=tests.loc[best]), ax=right)
    rows = [
        {
            "Cell type": name,
            "Cells": one.n_cells,
            "Spots near": int(one.near.sum()),
            "Markers (effect, adjusted P)": "; ".join(
                f"{gene} ({test['effect']:.2f}, P {p_value(test['pvalue_adj'])})"
                for gene, test in tests.loc[name].iterrows()
            ),
        }
        for name, one in found.items()
    ]
    alt = f"Spots near cells of type {best}, and its markers there and elsewhere"
    return drawn_section("Markers near their cells", [*words, subject.extent], left, alt=alt, table=rows)


def top_genes(x: Any, types: pd.Categorical) -> dict[str, np.ndarray]:
    """Columns of the genes that mark each type best: highest mean over that of all other cells, log-normalised."""
    known = np.flatnonzero(types.codes >= 0)
    onehot = np.eye(len(types.categories), dtype=np.float32)[types.codes[known]]  # (cells, types)
    sums, size = np.asarray((x[known].T @ onehot).T), onehot.sum(0)  # (types, genes), (types,)
    rest = (sums.sum(0) - sums) / np.maximum(size.sum() - size, 1)[:, None]
    gain = sums / np.maximum(size, 1)[:, None] - rest
    best = np.argsort(-gain, axis=1, kind="stable")[:, :MARKERS]
    return {name: best[i] for i, name in enumerate(types.categories) if size[i] >= FEWEST_OF_TYPE}


def neighbours(subject: Subject) -> Section:
    """Which types are next to each other more often than by chance."""
    cells, types = subject.cells, subject.types or ""
    known = bool(np.isfinite(cells.obs["gears_radius50"]).all())
    analysis.neighbors_by_type(
        cells, types, n_permutations=200, n_layouts=10, radius="gears_radius50" if known else None
    )
    table = cells.uns["gears_neighbors"]["table"]
    ratio, p = (matrix(table, name).to_numpy() for name in ("log2_ratio", "pvalue_adj"))
    names, upper = list(table["type"].unique()), np.triu_indices(len(ratio), 1)
    pairs = sorted(zip(*upper, strict=True), key=lambda pair: -ratio[pair])
    together = [pair for pair in pairs if ratio[pair] > 0 and p[pair] < LEVEL][:3]
    own = int(((np.diag(ratio) > 0) & (np.diag(p) < LEVEL)).sum())
    words = [
        "How often cells of one type have a cell of another among their six nearest, against the same with types "
        "shuffled over the cells"
        + (", in layouts that move each cell by its own uncertainty." if known else ". Coordinates are taken as exact."),
        f"{own} of {len(names)} types have neighbours of their own type more often than by chance. "
        + (
            "Different types that are neighbours most often: "
            + "; ".join(f"{names[i]} with {names[j]}" for i, j in together) + "."
            if together
            else "No two different types are neighbours more often than by chance."
        ),
    ]  # fmt: skip
    ax = plotting.neighbors_by_type(cells)
    alt = "Matrix of cell types: red where neighbours are more frequent than by chance"
    return drawn_section("Which cell types are neighbours", [*words, subject.extent], ax, alt=alt)


def mixing(profiles: AnnData) -> Section:
    """How well spots and cells mix, in plain expression and as the network sees them."""
    bases = list(profiles.obsm)
    by = ["spots or cells"] + (["slides"] if profiles.obs["slides"].nunique() > 1 else [])
    table = analysis.mixing(profiles, by, basis=bases)
    before, after = (table.loc[(basis, "spots or cells")] for basis in bases)
    words = [
        "Spots and single cells are measured differently. If the network could tell them apart, what it learnt from "
        "spots would not hold for cells. Before is plain expression; after is what the network takes in, with differences of "
        "depth and platform taken out. Spots of all slides are one group here, the cells the other, and both weigh the same.",
        mixing_words(before, after),
        f"Computed on {len(profiles):,} profiles, chosen at random.",
    ]
    heights = [2.6, 0.6 + 0.7 * len(by)]
    left, right = (profiles.obsm[basis] for basis in bases)
    with rc_context(canvas.STYLE):
        figure = Figure(figsize=(6.4, sum(heights)), layout="constrained")
        parts: Any = figure.subfigures(2, 1, height_ratios=heights)
        top, bottom = (part.subplots() for part in parts)
        plotting.embedding_before_after(
            left, right, profiles.obs["spots or cells"], label="", names=(bases[0], bases[1]), ax=top
        )
        plotting.mixing(table, ax=bottom)
    alt = "Spots and cells in both embeddings, and how well they mix"
    return drawn_section("Do spots and cells mix?", words, top, alt=alt, caution=unmixed(before, after))


def mixing_words(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """How well spots and cells mix, and by which scores worse than before; scores as :func:`analysis.mixing` has."""
    entropy, ilisi = (f"from {before[key]:.2f} to {after[key]:.2f}" for key in MIXING.values())
    words = (
        f"A nearest-neighbour classifier tells spots from cells with {before['probe']:.0%} accuracy before and "
        f"{after['probe']:.0%} after (50%: it cannot tell). Neighbour entropy goes {entropy}, iLISI {ilisi} (1: mixed)."
    )
    worse = [name for name, key in MIXING.items() if after[key] < before[key] - SAME]
    worse += ["the classifier"] if after["probe"] > before["probe"] + SAME else []
    return words + (f" By {' and '.join(worse)} they mix less after than before." if worse else "")


def unmixed(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """A warning where spots and cells mix much less after than before by two of three scores; otherwise empty."""
    drops = [before[key] - after[key] for key in MIXING.values()] + [after["probe"] - before["probe"]]
    if sorted(drops)[1] < WORSE:  # two scores of three
        return ""
    entropy = MIXING["neighbour entropy"]
    return (
        "Spots and cells mix less in what the network sees than in plain expression (neighbour entropy "
        f"{before[entropy]:.2f} before, {after[entropy]:.2f} after): what it learnt from spots may not hold for cells."
    )


def _attempt(title: str, job: Callable[[], Section]) -> Section:
    """The section, or the reason in its place: the report goes on."""
    try:
        return job()
    except InputError as error:
        logger.info("the report has no section %r: %s", title, error)
        return Section(title, f"This could not be computed. {error}")


def drawn_section(
    title: str, words: list[str], ax: Axes, *, alt: str, table: Any = (), caution: str = ""
) -> Section:
    """A section with the figure that holds these axes."""
    import matplotlib.pyplot as plt

    figure, stream = ax.get_figure(root=True), BytesIO()
    assert isinstance(figure, Figure)
    figure.savefig(stream, format="png", dpi=DPI)
    plt.close(figure)
    return Section(title, "\n\n".join(filter(None, words)), stream.getvalue(), alt, table, caution)
