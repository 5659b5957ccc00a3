"""What a run's analyses look at: some of the cells at their places, and the slides, on the genes they share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from anndata import AnnData

from spatialgears.errors import InputError
from spatialgears.expression.panel import Panel
from spatialgears.reconstruction import Reconstruction
from spatialgears.runtime.seeds import numpy_rng
from spatialgears.text import similar_names
from spatialgears.validate.counts import to_csr

if TYPE_CHECKING:
    from scipy import sparse

MOST_CELLS = 20_000  # cells looked at: more change no figure by what an eye can see
MOST_GENES = 2000
MOST_TYPES = 60
OF_IMAGE = ("library_id", "array_row", "array_col")  # columns that say which image, and in which unit
#: Names of columns with cell types, letters only, the surest first; "celltype" may also be a part of the name.
TYPE_NAMES = (
    "celltype",
    "celltypes",
    "annotation",
    "annotations",
    "cluster",
    "clusters",
    "leiden",
    "louvain",
)


@dataclass(frozen=True, eq=False)
class Subject:
    """What is analysed."""

    #: Counts of shared genes, ``obsm["X_gears"]``, radii, the mark of cells outside, and types if there are any.
    cells: AnnData
    slides: Sequence[AnnData]  # counts of shared genes and ``obsm["spatial"]``
    titles: Sequence[str]  # what to call the slides
    types: str | None  # column of ``cells.obs`` with cell types, or None
    panel: np.ndarray  # (G,) whether the model used the gene
    rows: np.ndarray  # (m,) which of all cells these are
    #: How many there are of which ``cells`` holds some.
    n_cells: int
    n_genes: int

    @property
    def extent(self) -> str:
        """What was looked at, in words; empty if that is everything."""
        parts = []
        if len(self.rows) < self.n_cells:
            parts.append(f"{len(self.rows):,} of the {self.n_cells:,} cells, chosen at random")
        if self.cells.n_vars < self.n_genes:
            parts.append(f"{self.cells.n_vars:,} of the {self.n_genes:,} genes that cells and slides share")
        return f"Computed on {' and '.join(parts)}." if parts else ""


def subject_of(
    placed: Reconstruction,
    cells: AnnData,
    slides: Sequence[AnnData],
    *,
    titles: Sequence[str],
    panel: Panel,
    spatial_key: str,
    types: str | None,
    seed: int,
) -> Subject:
    """Cells and slides on the genes that all of them have once, neither changed."""
    rows = np.sort(numpy_rng(seed, "report cells").permutation(cells.n_obs)[:MOST_CELLS])
    names = [pd.Index(np.asarray(one.var_names, str)) for one in (cells, *slides)]
    shared = names[0]
    for index in names:
        shared = shared[shared.isin(index[~index.duplicated(keep=False)])]
    known = np.asarray(shared.isin(panel.genes))
    order = np.argsort(~known, kind="stable")  # the model's genes first, half of what is looked at or more
    rest = numpy_rng(seed, "report genes").permutation(order[known.sum() :])
    half = max(MOST_GENES // 2, MOST_GENES - len(rest))
    chosen = np.sort(np.concatenate([order[: known.sum()][:half], rest])[:MOST_GENES])
    genes = shared[chosen]
    obs = pd.DataFrame(
        {"gears_radius50": placed.radius50[rows], "gears_outside": placed.outside[rows]},
        index=rows.astype(str),
    )
    types = types_column(cells.obs) if types is None else types
    require_types(cells, types)
    if types is not None:
        obs[types] = cells.obs[types].iloc[rows].map(str, na_action="ignore").astype(object).to_numpy()
    return Subject(
        AnnData(_counts(cells, genes, rows), obs, pd.DataFrame(index=genes), obsm={"X_gears": placed.coords[rows]}),
        [_slide(one, genes, spatial_key) for one in slides],
        titles,
        types,
        known[chosen],
        rows,
        cells.n_obs,
        len(shared),
    )  # fmt: skip


def require_types(cells: AnnData, types: str | None) -> None:
    """Refuse a column of cell types that the cells do not have, or that is of names or numbers instead."""
    if types is None:
        return
    if types not in cells.obs:
        there = ", ".join(map(str, cells.obs)) or "none"
        raise InputError(f"The cells have no column {types!r}; there are: {there}.", "Name one of them.")
    if (kinds := cells.obs[types].nunique()) > MOST_TYPES:
        raise InputError(
            f"The column {types!r} has {kinds:,} values, more than the {MOST_TYPES} types that a report can tell apart.",
            "Name the column of cell types.",
        )


def require_genes(cells: AnnData, genes: Sequence[str]) -> list[str]:
    """The genes to show, each once; genes that the cells do not have are refused."""
    wanted = [genes] if isinstance(genes, str) else list(dict.fromkeys(map(str, genes)))
    names = pd.Index(np.asarray(cells.var_names, str))
    missing = [gene for gene in wanted if gene not in names]
    if missing:
        near = similar_names(missing[0], names)
        raise InputError(
            f"The cells have no gene {', '.join(map(repr, missing[:5]))}.",
            f"Did you mean {' or '.join(map(repr, near))}?"
            if near
            else f"They have {', '.join(names[:5])}, ...",
        )
    return wanted


def types_column(obs: pd.DataFrame) -> str | None:
    """The column that holds cell types, by its name and that it has labels of a few kinds."""
    found: dict[int, str] = {}
    for name, values in obs.items():
        letters = re.sub(r"[^a-z]", "", str(name).lower())
        rank = TYPE_NAMES.index(letters) if letters in TYPE_NAMES else 1 if "celltype" in letters else None
        text = not pd.api.types.is_float_dtype(values) and not pd.api.types.is_bool_dtype(values)
        if rank is not None and text and 1 < values.nunique() <= MOST_TYPES:
            found.setdefault(rank, str(name))
    return found[min(found)] if found else None


def _slide(slide: AnnData, genes: pd.Index, spatial_key: str) -> AnnData:
    coords = np.asarray(slide.obsm[spatial_key], dtype=np.float64)[:, :2]
    obs = slide.obs[[name for name in OF_IMAGE if name in slide.obs]]
    uns = {"spatial": slide.uns["spatial"]} if "spatial" in slide.uns else {}  # the tissue image
    return AnnData(
        _counts(slide, genes),
        obs.set_axis(np.arange(slide.n_obs).astype(str)),
        pd.DataFrame(index=genes),
        obsm={"spatial": coords},
        uns=uns,
    )


def _counts(adata: AnnData, genes: pd.Index, rows: np.ndarray | None = None) -> sparse.csr_matrix:
    column = pd.Series(np.arange(adata.n_vars), np.asarray(adata.var_names, str))
    return to_csr(adata.X, column[~column.index.duplicated()][genes].to_numpy(), rows)
