"""The result of a reconstruction: coordinates of all cells, their uncertainty, and ways into AnnData."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from spatialgears._version import __version__
from spatialgears.assembly.distances import dense_distances, nearest_cells, neighbour_matrix, pair_distances
from spatialgears.errors import InputError
from spatialgears.pipeline.cell_check import CellCheck
from spatialgears.pipeline.pose import OnSlide
from spatialgears.runtime.files import write_atomic
from spatialgears.text import not_a_formula, number, plain

if TYPE_CHECKING:
    from anndata import AnnData

#: Neighbours per cell in the graph written to ``obsp``.
GRAPH_NEIGHBORS = 15


#: Keys of ``obsm`` with samples begin so.
SAMPLE = "X_gears_sample"
#: Key of ``obsm`` with the cells on the slide they match best; with several slides, a number follows for each.
ON_SLIDE = "X_gears_slide"
#: Prefixes of what rests on the coordinates, in ``obs``, ``obsm`` and ``uns``.
OF_PLACES = ("X_gears", "gears_")
#: Columns that every table of coordinates begins with.
COLUMNS = ("cell", "x", "y", "radius50", "radius90", "outside")
#: What each slot holds.
SLOTS = {
    'obsm["X_gears"]': "predicted coordinates, in units of the training slides' RMS radius; only distances have a meaning",
    'obsm["X_gears_sample1"], ...': "alternative layouts drawn from the model, aligned to X_gears",
    'obs["gears_radius50"]': "radius around X_gears that holds the true position with 50% probability, in the same units",
    'obs["gears_uncertainty"]': "the same with 90% probability",
    'obs["gears_outside"]': "True: no slide shows expression like this cell's; do not use its position",
    'obsp["gears_distances"]': "distances to the 15 nearest cells",
    'obsp["gears_connectivities"]': "the same graph with ones, for scanpy (neighbors_key) and squidpy (connectivity_key)",
    'uns["gears"]': "version, status, self_check, warnings, cells_check (the check on cells by kept-out genes)",
}

COLUMNS_TOLD = {
    "gears_domain": 'spatial domain, "0" the largest; uns["gears_domain"]["table"] describes each',
    "gears_domain_noise": "True: expression in this domain does not differ from that of cells drawn at random",
}


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Coordinates of N cells, meaningful up to rotation, reflection and shift.

    Attributes
    ----------
    coords
        (N, 2) float32, in units of the training slides' RMS radius: the best guess of each cell's position. Cells with
        equal counts share one position. The origin is the mean of the cells; for fewer than a hundred, the mean of them and
        the spots they were placed with.
    radius50, radius90
        (N,) float32: the true position lies within this distance of ``coords`` with that probability, as calibrated on
        held-out spots.
    outside
        (N,) bool: no slide shows expression like this cell's; do not trust its coordinates and radii.
    samples
        (S, N, 2) float32: alternative layouts drawn from the model, aligned to ``coords``. Unlike the best guess, they are
        not moved to fill the tissue.
    slides
        Per training slide (n, 2): where its spots lie among the cells; those without counts are left out, and of more
        than 5,000 a random 5,000 stand for all.
    obs_names
        (N,) names of the cells.
    status
        What happened, in words.
    diagnostics
        Numbers by name.
    self_check
        What the checks say, a sentence each: the check on these cells first, then those on held-out spots.
    cell_check
        The check on cells: whether the placed cells show the spatial patterns of kept-out genes.
    warnings
        Reasons not to trust the coordinates, or some of them.
    laid
        How the cells lie on each slide: ``pose(coords)`` are coordinates of the slide.
    obs, obsm, uns
        What else :meth:`to_adata` writes: columns by name, such as ``gears_domain``, and entries of ``obsm`` and ``uns``.
    annotated
        Whether cells were matched with the slides, and domains looked for, as a run does.

    Examples
    --------
    >>> import spatialgears as sg
    >>> rec = sg.GEARS.load("out/model").reconstruct(cells)  # doctest: +SKIP
    >>> rec.coords, rec.radius90, rec.outside  # doctest: +SKIP
    """

    coords: NDArray[np.float32]
    radius50: NDArray[np.float32]
    radius90: NDArray[np.float32]
    outside: NDArray[np.bool_]
    samples: NDArray[np.float32]
    slides: list[NDArray[np.float32]]
    obs_names: NDArray[Any]
    status: str
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    self_check: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    cell_check: CellCheck | None = None
    laid: list[OnSlide] = field(default_factory=list)
    obs: Mapping[str, Any] = field(default_factory=dict)
    obsm: Mapping[str, Any] = field(default_factory=dict)
    uns: Mapping[str, Any] = field(default_factory=dict)
    annotated: bool = False

    def __repr__(self) -> str:
        return (
            f"Reconstruction of {number(len(self.coords), 'cell')} from {number(len(self.slides), 'slide')}: median 90% "
            f"radius {np.median(self.radius90):.2f}, {self.outside.sum():,} outside the slides' range, "
            f"{number(len(self.samples), 'sample')}; .to_adata(cells) writes it"
            + (f"; {number(len(self.warnings), 'warning')}, see .warnings" if self.warnings else "")
        )

    @property
    def uncertainty(self) -> NDArray[np.float32]:
        """(N,) the 90% radius of each cell."""
        return self.radius90

    def distances(self, pairs: ArrayLike) -> NDArray[np.float64]:
        """Distances of the given pairs of cells (P, 2), by position.

        Parameters
        ----------
        pairs
            Positions of cells (P, 2).

        Returns
        -------
        ndarray (P,)
            Distances in the units of ``coords``.

        Examples
        --------
        >>> rec.distances([[0, 1], [0, 2]])  # doctest: +SKIP
        """
        return pair_distances(self.coords, pairs)

    def nearest(self, k: int = GRAPH_NEIGHBORS) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """The k nearest cells of every cell and their distances, (N, k) each, without a dense matrix.

        Parameters
        ----------
        k
            How many.

        Returns
        -------
        tuple
            Positions (N, k) and distances (N, k), nearest first, without the cell itself.

        Examples
        --------
        >>> index, distance = rec.nearest(5)  # doctest: +SKIP
        """
        return nearest_cells(self.coords, k)

    def distance_matrix(self, *, memory_gb: float = 4.0) -> NDArray[np.float32]:
        """The dense matrix D (N, N) of section 3.5, if it fits in the memory given.

        Parameters
        ----------
        memory_gb
            Refused, with what to do instead, if the matrix needs more.

        Returns
        -------
        ndarray (N, N)
            Distances in the units of ``coords``.

        Examples
        --------
        >>> rec.distance_matrix(memory_gb=8)  # doctest: +SKIP
        """
        return dense_distances(self.coords, memory_gb=memory_gb)

    def to_adata(self, adata: AnnData, *, copy: bool = False) -> AnnData:
        """Write the coordinates into an AnnData with the same cells.

        Parameters
        ----------
        adata
            The cells, in the order they were given. Changed in place unless ``copy``.
        copy
            Write into a copy instead.

        Returns
        -------
        AnnData
            With ``obsm["X_gears"]``, and each sample as ``obsm["X_gears_sample1"]`` and so on;
            ``obs["gears_uncertainty"]`` (90% radius), ``obs["gears_radius50"]``, ``obs["gears_outside"]``;
            ``obsp["gears_distances"]`` and ``obsp["gears_connectivities"]``, a neighbour graph for scanpy
            (``neighbors_key="gears"``) and squidpy (``connectivity_key="gears"``); ``uns["gears"]``, with the self-check
            and the warnings in words, ``threads``, those of the fit, ``cells_check``: the figures of the check on these cells
            by kept-out genes, and ``read_me``: what each slot holds. ``obsm["X_gears_slide"]`` has the coordinates on
            the slide that the cells match best, in its own units, and ``uns["X_gears_slide"]`` which slide that is and
            how good the fit is, as :func:`spatialgears.tl.register` says it; with several slides
            ``X_gears_slide1`` and so on have those of each. After a run also ``obs["gears_domain"]`` and
            ``uns["gears_domain"]``, as :func:`spatialgears.tl.spatial_domains` writes them. Results
            that rest on other coordinates (``X_gears...`` and ``gears_...``) are removed.

        Examples
        --------
        >>> rec.to_adata(cells)  # obsm["X_gears"] and more, in place # doctest: +SKIP
        """
        if adata.n_obs != len(self.coords) or not np.array_equal(
            np.asarray(adata.obs_names, str), self.obs_names
        ):
            raise InputError(
                f"Expected the {len(self.coords):,} cells that were placed, in their order; found {adata.n_obs:,} cells"
                + (" with other names." if adata.n_obs == len(self.coords) else "."),
                "Pass the AnnData that was given to reconstruct(); subset it afterwards.",
            )
        if copy:
            from spatialgears.io.stored import copied, names_may_repeat

            with names_may_repeat():
                adata = copied(adata)
        if not np.array_equal(adata.obsm.get("X_gears", ()), self.coords):
            for room in ("obs", "obsm", "uns"):  # results of other places
                for key in [key for key in getattr(adata, room) if str(key).startswith(OF_PLACES)]:
                    del getattr(adata, room)[key]  # asked for anew: a view has become another object
        adata.obsm["X_gears"] = self.coords.copy()
        for key in [key for key in adata.obsm if key.startswith(SAMPLE)]:
            del adata.obsm[key]
        for i, sample in enumerate(self.samples, start=1):
            adata.obsm[f"{SAMPLE}{i}"] = sample.copy()
        adata.obs["gears_uncertainty"] = self.radius90
        adata.obs["gears_radius50"] = self.radius50
        adata.obs["gears_outside"] = self.outside
        k = min(GRAPH_NEIGHBORS, len(self.coords) - 1)
        measured = {
            name: value for name, value in self.diagnostics.items() if name != "profile"
        }  # no seconds
        uns: dict[str, Any] = {
            "version": __version__,
            "status": self.status,
            "unit": "RMS radius of the training slides",
            "diagnostics": json.dumps(measured, default=float),
            "self_check": "\n".join(self.self_check),
            "warnings": "\n".join(self.warnings),
        }
        if threads := self.diagnostics.get("threads"):
            uns["threads"] = int(threads)
        if self.cell_check is not None:
            uns["cells_check"] = self.cell_check.figures()
        if k > 0:
            distances = neighbour_matrix(self.coords, k)
            connected = distances.copy()
            connected.data = np.ones_like(connected.data)
            adata.obsp["gears_distances"] = distances
            adata.obsp["gears_connectivities"] = connected.maximum(connected.T).tocsr()
            uns |= {
                "connectivities_key": "gears_connectivities",
                "distances_key": "gears_distances",
                "params": {"n_neighbors": k, "method": "gears", "use_rep": "X_gears"},
            }
        told = dict(SLOTS)
        for key, one in self.on_slides().items():
            adata.obsm[key], adata.uns[key] = one.pose(self.coords), one.facts()
            words = f"coordinates on the slide {one.slide}, in its own units; uns: pose and fit"
            told[f'obsm["{key}"]'] = words
        for name, values in self.obs.items():
            adata.obs[name] = values
            told[f'obs["{name}"]'] = COLUMNS_TOLD.get(name, f"see uns[{name!r}]")
        adata.obsm.update(self.obsm)
        told |= {f'obsm["{key}"]': f'probability of each of uns["{key}"]["labels"]' for key in self.obsm}
        adata.uns.update(self.uns)
        adata.uns["gears"] = uns | {"read_me": "\n".join(f"{slot}: {words}" for slot, words in told.items())}
        return adata

    def on_slides(self) -> dict[str, OnSlide]:
        """How the cells lie on slides, by the key of ``obsm`` that has their coordinates there.

        Returns
        -------
        dict
            ``"X_gears_slide"``, the slide that the cells match best; with several slides also
            ``"X_gears_slide1"`` and so on, in their order.

        Examples
        --------
        >>> rec.on_slides()["X_gears_slide"].coverage  # doctest: +SKIP
        """
        if not self.laid:
            return {}
        best = max(self.laid, key=lambda one: (one.matched.get("explained", -np.inf), one.coverage))
        numbered = {f"{ON_SLIDE}{i}": one for i, one in enumerate(self.laid, start=1)}
        return {ON_SLIDE: best, **(numbered if len(numbered) > 1 else {})}

    def table(self) -> pd.DataFrame:
        """The coordinates as a table, as in ``places.csv``.

        Returns
        -------
        DataFrame
            Columns cell, x, y, radius50, radius90 and outside; for each slide ``x_on_NAME`` and ``y_on_NAME``, in
            its own units; and what else is known of the cells, such as their domain.

        Examples
        --------
        >>> rec.table().head()  # doctest: +SKIP
        """
        names = [not_a_formula(str(name)) for name in self.obs_names]
        columns = (names, *self.coords.T, self.radius50, self.radius90, self.outside)
        found: dict[str, Any] = dict(zip(COLUMNS, columns, strict=True))
        for one in self.laid:
            x, y = one.pose(self.coords).astype(np.float32).T
            found |= {f"x_on_{plain(one.slide)}": x, f"y_on_{plain(one.slide)}": y}
        for name, values in self.obs.items():
            column = pd.Series(values)
            text = not pd.api.types.is_numeric_dtype(column)
            found[name.removeprefix("gears_")] = (
                column.map(lambda one: not_a_formula(str(one)), na_action="ignore") if text else column
            ).to_numpy()
        return pd.DataFrame(found)

    def write(
        self, adata: AnnData, path: str | Path, *, source: str | Path | None = None, digest: str | None = None
    ) -> None:
        """Write the cells with coordinates to an ``.h5ad`` file, or the coordinates alone to a ``.csv``, whole or not at all.

        Parameters
        ----------
        adata
            The cells, in the order they were given; not modified. If they are on disk, they stay there: the file or zarr
            folder is copied, ``.X`` and layers as they are, and what :meth:`to_adata` adds is added to the copy.
        path
            The file to write. A ``.csv`` holds :meth:`table`. A name that a
            spreadsheet would take for a formula, since it begins with ``= + - @``, has an apostrophe before it.
        source
            Where the cells were read from. An ``.h5ad`` file or ``.zarr`` folder is then copied, as those on disk are: what
            was not read of it, such as other layers, is kept.
        digest
            SHA-256 of that source when it was read: if it has changed since, it is refused.

        Returns
        -------
        None
            The file is there, whole.

        Examples
        --------
        >>> rec.write(cells, "placed.h5ad")  # doctest: +SKIP
        """
        if (suffix := Path(path).suffix.lower()) not in (".h5ad", ".csv"):
            raise InputError(
                f"Expected a name that ends in .h5ad or .csv, found {path}.", "Choose one of them."
            )
        if suffix == ".csv":
            write_atomic(path, self.table().to_csv(index=False))
            return
        from anndata import AnnData

        from spatialgears.io.stored import names_may_repeat, source_of, store_at
        from spatialgears.io.writing import add_to_h5ad, write_h5ad

        source = source_of(adata) or (None if source is None else store_at(source))
        if source is not None:
            with names_may_repeat():
                added = self.to_adata(AnnData(obs=adata.obs.copy(), var=adata.var.copy()))
            add_to_h5ad(added, path, source=source, replacing=OF_PLACES, digest=digest)
        else:
            write_h5ad(self.to_adata(adata, copy=True), path)
