"""Several sections in one file: found by a column, by repeated barcodes, by gaps, or by lattices that lie over each other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.spatial import KDTree

from spatialgears.errors import InputError
from spatialgears.text import similar_names

if TYPE_CHECKING:
    from anndata import AnnData

#: Columns of ``.obs`` that name sections, as files of several sections have them.
SECTIONS = {
    f"{what}{end}"
    for what in ("slide", "section", "slice", "library", "sample", "batch")
    for end in ("", "_id", "_name")
} | {"orig.ident"}

LEAST, SHARE = 30, 0.1  # spots of a part, and its share of them, from which it may be a section
GAP = 5.0  # spot spacings between two parts of one file that are far apart
#: Spot spacings of an empty strip along x or y, across the whole slide; ``gears bench thresholds`` prints what sections have.
STRIP = 1.6
NEAREST = 24  # neighbours among which those of the same lattice are looked for
STEP = 0.01  # relative step of the distances that are tried for the pitch of a lattice
RING, NEIGHBOURS, CONTRAST = 0.05, 2.5, 2.0  # width of the ring, neighbours in it, times those beside it
OTHERS = 3  # neighbours of a second lattice that are nearer than the own; more are those of one lattice
BARCODE = re.compile(r"[ACGT]{10,}|\d+x\d+")


def section_column(adata: AnnData, least: int = LEAST) -> str | None:
    """The column of ``.obs`` that names several parts of at least so many spots, as sections are named."""
    region = dict(adata.uns.get("spatialdata_attrs", {})).get("region_key")
    for column in adata.obs.columns:
        if str(column).lower() in SECTIONS or column == region:
            sizes = adata.obs[column].value_counts()
            if 1 < (sizes >= least).sum() <= len(adata) // least:
                return str(column)
    return None


def found_sections(adata: AnnData, coords: np.ndarray) -> tuple[pd.Series, str] | None:
    """A label for each spot (n,) and how the sections were told apart; None if there seems to be one section.

    Spots in small pieces go with the section that is nearest.
    """
    column = section_column(adata)
    if column is not None:
        return adata.obs[column].astype(str), f".obs[{column!r}] names several parts"
    for labels, how in (
        (repeated_barcodes(adata.obs_names), "barcodes repeat"),
        (apart(coords), f"there are gaps of more than {GAP:g} spot spacings"),
        (beside(coords), f"empty strips of more than {STRIP:g} spot spacings cross the slide"),
    ):
        if labels is not None:
            return pd.Series(labels + 1, adata.obs_names).astype(str), how
    return None


def repeated_barcodes(names: pd.Index) -> np.ndarray | None:
    """The section (n,) by what stands around barcodes that occur several times, as they do on two slides of one kind."""
    core = names.astype(str).str.extract(f"({BARCODE.pattern})", expand=False)
    if core.isna().any() or not core.duplicated().any():
        return None
    rest = [name.replace(code, "", 1) for name, code in zip(names.astype(str), core, strict=True)]
    labels, _ = pd.factorize(pd.Index(rest))
    alone = not pd.DataFrame({"code": core, "part": labels}).duplicated().any()
    return labels if alone and len(_large(labels)) else None


def apart(coords: np.ndarray) -> np.ndarray | None:
    """The part (n,) of spots (n, 2) between which there is a wide gap; None if there is one."""
    tree = KDTree(coords)
    pitch = float(np.median(tree.query(coords, k=2)[0][:, 1]))
    pairs = tree.query_pairs(GAP * pitch, output_type="ndarray") if pitch > 0 else np.empty((0, 2), int)
    graph = sparse.coo_matrix((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), (len(coords),) * 2)
    return _sections(coords, connected_components(graph, directed=False)[1])


def beside(coords: np.ndarray) -> np.ndarray | None:
    """The part (n,) of spots (n, 2) between which empty strips run along x or y, as where files were put side by side."""
    pitch = np.median(KDTree(coords).query(coords, k=2)[0][:, 1])
    order = np.argsort(coords, axis=0, kind="stable")
    steps = np.diff(np.take_along_axis(coords, order, axis=0), axis=0, prepend=coords.min(0)[None])
    strips = np.empty_like(order)
    np.put_along_axis(strips, order, np.cumsum(steps > STRIP * pitch, axis=0), axis=0)
    return _sections(coords, np.unique(strips, axis=0, return_inverse=True)[1].ravel())


def widest_strip(coords: np.ndarray) -> float:
    """The widest empty strip along x or y, in spot spacings, that leaves a tenth of the spots (n, 2) on either side."""
    pitch = np.median(KDTree(coords).query(coords, k=2)[0][:, 1])
    steps = np.diff(np.sort(coords, axis=0), axis=0)[len(coords) // 10 : -len(coords) // 10]
    return float(steps.max() / pitch)


def overlaid(coords: np.ndarray) -> bool:
    """Whether spots (n, 2) lie on two lattices that lie over each other.

    At the pitch of a lattice a spot has several neighbours, and at distances a little shorter or longer far fewer. On one
    lattice none is nearer than that; on two, those of the other lattice are.
    """
    distance = KDTree(coords).query(coords, k=min(NEAREST, len(coords) - 1) + 1)[0][:, 1:]
    least = np.median(distance[:, 0])
    if not least > 0:
        return False
    tried = least * np.exp(np.arange(0, np.log(np.median(distance[:, -1]) / least), STEP))
    rings = np.array(
        [
            [np.mean(np.sum(np.abs(distance / (one * ring) - 1) <= RING, 1)) for ring in (0.88, 1, 1.13)]
            for one in tried
        ]
    )
    sharp = (rings[:, 1] >= NEIGHBOURS) & (rings[:, 1] >= CONTRAST * rings[:, ::2].max(1))
    nearer = np.median(np.sum(distance < (1 - RING) * tried[sharp.argmax()], axis=1))
    return bool(sharp.any() and 1 <= nearer <= OTHERS)


def _large(labels: np.ndarray) -> np.ndarray:
    """Labels of parts that are large enough for sections; empty if there are not two."""
    sizes = np.bincount(labels)
    kept = np.flatnonzero(sizes >= max(LEAST, SHARE * len(labels)))
    return kept if len(kept) > 1 else kept[:0]


def _sections(coords: np.ndarray, part: np.ndarray) -> np.ndarray | None:
    """The large ones of some parts (n,), every spot in the one that is nearest; None if there is one."""
    large = _large(part)
    if not len(large):
        return None
    known = np.flatnonzero(np.isin(part, large))
    nearest = KDTree(coords[known]).query(coords)[1]
    return np.searchsorted(large, part[known][nearest])


def split_slides(
    slides: Sequence[AnnData],
    names: Sequence[str],
    by: str | None,
    *,
    spatial_key: str = "spatial",
    donors: Sequence[str] | None = None,
) -> tuple[list[AnnData], list[str], Sequence[str] | None]:
    """The sections of every slide as slides of their own, what to call them, and their donors; inputs are not modified.

    ``by`` is None to leave all as they are, a column of ``.obs`` that names sections, or "auto". The donor of a slide is
    that of all its sections.
    """
    from spatialgears.validate import title_of

    found: list[AnnData] = []
    called: list[str] = []
    source: list[int] = []
    for i, (slide, name) in enumerate(zip(slides, names, strict=True)):
        labels = None if by is None else _labels(slide, name, by, spatial_key)
        if labels is None or labels.nunique() < 2:
            found, called, source = [*found, slide], [*called, name], [*source, i]
            continue
        for label in dict.fromkeys(labels):
            found.append(slide[np.flatnonzero(labels == label)].to_memory())
            called.append(f"{title_of(name)} {label}")
            source.append(i)
    if by not in (None, "auto") and len(found) == len(slides):
        raise InputError(
            f"--split {by}: every slide has one value in .obs[{by!r}], so there is nothing to split.",
            "Leave --split out.",
        )
    each = donors is not None and len(donors) == len(slides)
    return found, called, [donors[i] for i in source] if donors is not None and each else donors


def _labels(slide: AnnData, name: str, by: str, spatial_key: str) -> pd.Series | None:
    if by == "auto":
        from spatialgears.validate.coordinates import coordinates_of

        sections = found_sections(slide, coordinates_of(slide, spatial_key, name)[0])
        return None if sections is None else sections[0]
    if by not in slide.obs:
        near = similar_names(by, slide.obs.columns)
        listed = ", ".join(map(str, slide.obs.columns[:12])) or "no columns"
        raise InputError(
            f"{name}: --split expects a column of .obs, found {by!r}; .obs has {listed}.",
            f"Did you mean {near[0]!r}?" if near else "Name one of these, or say --split auto.",
        )
    values = slide.obs[by]
    if values.isna().any():
        raise InputError(
            f"{name}: {int(values.isna().sum()):,} of {len(values):,} spots have no value in .obs[{by!r}].",
            "Give each spot its section, or leave these spots out.",
        )
    return values.astype(str)
