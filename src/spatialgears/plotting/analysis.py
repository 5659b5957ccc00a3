"""Maps of what :mod:`spatialgears.analysis` finds: domains, registration, markers, smoothed genes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from spatialgears.analysis import lookup
from spatialgears.errors import InputError
from spatialgears.plotting import canvas, maps, palette, tissue
from spatialgears.plotting.values import SLIDE_UNIT, color_values, coordinates, domain_names, slot
from spatialgears.text import p_value

if TYPE_CHECKING:
    from anndata import AnnData
    from matplotlib.axes import Axes

    from spatialgears.analysis.markers import MarkerEnrichment

NEAR, OTHER = palette.CATEGORICAL[1], palette.CATEGORICAL[0]


@canvas.for_paper
def spatial_domains(
    adata: AnnData,
    *,
    key: str = "gears_domain",
    basis: str = "X_gears",
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the cells by domain; domains that are noise are grey.

    A domain is named after a cell type if at least half of its cells are of that type.

    Parameters
    ----------
    adata
        Cells on which ``sg.tl.spatial_domains`` was run.
    key
        Its ``key_added``.
    basis
        Key of the places, the one given to it.
    title, ax
        As in :func:`reconstruction`.

    Returns
    -------
    Axes
        A map as :func:`reconstruction` draws it, with the domains in the legend.

    Examples
    --------
    >>> import spatialgears as sg
    >>> tissue = sg.datasets.simulate_tissue(n_cells=200, n_genes=60, spots=100)
    >>> cells = tissue.cells
    >>> cells.obsm["X_gears"] = sg.metrics.canonical(tissue.truth.obsm["spatial"])  # or rec.to_adata(cells)
    >>> sg.tl.spatial_domains(cells, labels="cell_type")
    >>> ax = sg.pl.spatial_domains(cells)
    >>> ax.get_legend().get_title().get_text()
    'domain'
    """
    table = slot(adata, key, "sg.tl.spatial_domains(adata)")["table"]
    noise = table["noise"].to_numpy(bool) if "noise" in table else np.zeros(len(table), bool)
    names = domain_names(table)
    named = pd.Categorical(adata.obs[key]).rename_categories(
        dict(zip(map(str, table.index), names, strict=True))
    )
    grey = {name for name, one in zip(names, noise, strict=True) if one}
    named = named.remove_categories(list(grey.intersection(named.categories)))
    color = pd.Series(named, adata.obs_names, name="domain")
    return maps.draw_map(adata, color=color, basis=basis, title=title, ax=ax)


@canvas.for_paper
def registration(
    adata: AnnData,
    slide: AnnData,
    *,
    color: Any = None,
    basis: str = "X_gears_slide",
    spatial_key: str = "spatial",
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the cells over the slide they were laid on, in the slide's units, and over its tissue image where it has one.

    The image is taken from ``slide.uns["spatial"]``, as Space Ranger folders, scanpy and squidpy give it. A scale bar is drawn
    where the size of a pixel is known.

    Parameters
    ----------
    adata, slide
        Cells of a run's ``cells.h5ad``, or on which ``sg.tl.register`` was run, and the slide.
    color
        Colour of the cells, as in :func:`reconstruction`.
    basis, spatial_key
        Keys of the places.
    title, ax
        As in :func:`reconstruction`.

    Returns
    -------
    Axes
        A map in units of the slide, the spots in light grey under the cells.

    Examples
    --------
    >>> import spatialgears as sg
    >>> tissue = sg.datasets.simulate_tissue(n_cells=200, n_genes=60, spots=100)
    >>> cells, slide = tissue.cells, tissue.slides[0]
    >>> cells.obsm["X_gears"] = sg.metrics.canonical(tissue.truth.obsm["spatial"])  # or rec.to_adata(cells)
    >>> sg.tl.register(cells, slide)
    >>> ax = sg.pl.registration(cells, slide, color="cell_type")
    >>> ax.get_xlabel()
    'x (units of the slide)'
    """
    cells, spots = lookup.on_slide(adata, slide, basis, spatial_key), coordinates(slide, spatial_key)
    values, label = color_values(adata, color)
    ax = canvas.axes_or_new(ax, **maps.figure_size(spots, values, legend=True))
    behind = tissue.tissue_of(slide, spatial_key=spatial_key)
    if behind.image is None:
        ax.scatter(
            spots[:, 0],
            spots[:, 1],
            s=1.6 * canvas.point_size(ax, len(spots)),
            color="#EDEDED",
            linewidths=0,
            rasterized=True,
        )
    canvas.points(ax, cells, values, label=label, size=0.8 * canvas.point_size(ax, len(cells)))
    canvas.map_axes(ax, title=title, unit=SLIDE_UNIT)
    tissue.underlay(ax, behind)
    return ax


@canvas.for_paper
def spots(
    adata: AnnData,
    color: Any = None,
    *,
    slide: AnnData | None = None,
    layer: str | None = None,
    spatial_key: str = "spatial",
    size: float | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes | list[Axes]:
    """Draw the spots of a slide by a column of ``obs`` or a gene, over its tissue image where it has one.

    Parameters
    ----------
    adata
        Spots with ``obsm[spatial_key]``: a slide, or what ``sg.tl.impute`` and ``sg.tl.abundance`` give.
    color
        As in :func:`reconstruction`; a list of names gives a panel each.
    slide
        Where the image is taken from; default: ``adata`` itself.
    layer, size, title, ax
        As in :func:`reconstruction`.
    spatial_key
        Key of the places.

    Returns
    -------
    Axes or list of Axes
        Maps in units of the slide, with a scale bar where these are known.

    Examples
    --------
    >>> import spatialgears as sg
    >>> slide = sg.datasets.simulate_tissue(n_cells=200, n_genes=60, spots=100).slides[0]
    >>> ax = sg.pl.spots(slide, "domain")
    >>> ax.get_xlabel()
    'x (units of the slide)'
    """
    behind = tissue.tissue_of(adata if slide is None else slide, spatial_key=spatial_key)
    drawn = maps.reconstruction(
        adata, color=color, basis=spatial_key, layer=layer, size=size, title=title, ax=ax
    )
    for one in drawn if isinstance(drawn, list) else [drawn]:
        tissue.underlay(one, behind)
    return drawn


@canvas.for_paper
def marker_map(found: MarkerEnrichment, *, title: str | None = None, ax: Axes | None = None) -> Axes:
    """Draw which spots are near the predicted cells of the type (figure 4, left).

    Parameters
    ----------
    found
        What ``sg.tl.marker_enrichment`` returned.
    title, ax
        As in :func:`reconstruction`.

    Returns
    -------
    Axes
        A map in units of the slide: spots near the cells in colour, the others grey, both counted in the legend.

    Examples
    --------
    >>> import spatialgears as sg
    >>> tissue = sg.datasets.simulate_tissue(n_cells=200, n_genes=60, spots=100)
    >>> cells, slide = tissue.cells, tissue.slides[0]
    >>> cells.obsm["X_gears"] = sg.metrics.canonical(tissue.truth.obsm["spatial"])  # or rec.to_adata(cells)
    >>> sg.tl.register(cells, slide)
    >>> found = sg.tl.marker_enrichment(cells, slide, "medullary", labels="cell_type", genes=["Gene01", "Gene02"])
    >>> ax = sg.pl.marker_map(found)
    >>> ax.get_legend().get_title().get_text()
    'spots'
    """
    near = found.near.to_numpy()
    names = [f"near {found.cell_type} ({near.sum():,})", f"other ({(~near).sum():,})"]
    ax = canvas.axes_or_new(ax, **maps.figure_size(found.coords, pd.Series(names), legend=True))
    size = canvas.point_size(ax, len(near))
    for rows, color in ((~near, palette.MISSING), (near, NEAR)):
        x, y = found.coords[rows].T
        ax.scatter(x, y, s=size, color=color, linewidths=0, rasterized=len(near) >= 1000)
    canvas.swatches(ax, names, [NEAR, palette.MISSING], title="spots")
    canvas.map_axes(ax, title=title, unit=SLIDE_UNIT)
    return ax


@canvas.for_paper
def marker_enrichment(
    found: MarkerEnrichment,
    *,
    genes: Sequence[str] | None = None,
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw expression in spots near the cells of a type beside that in other spots (figure 4, right).

    Parameters
    ----------
    found
        What ``sg.tl.marker_enrichment`` returned.
    genes
        Genes to draw; default: the eight of largest effect.
    title, ax
        As in :func:`reconstruction`.

    Returns
    -------
    Axes
        Two boxes per gene, under its adjusted P and log2 fold change.

    Examples
    --------
    >>> import spatialgears as sg
    >>> tissue = sg.datasets.simulate_tissue(n_cells=200, n_genes=60, spots=100)
    >>> cells, slide = tissue.cells, tissue.slides[0]
    >>> cells.obsm["X_gears"] = sg.metrics.canonical(tissue.truth.obsm["spatial"])  # or rec.to_adata(cells)
    >>> sg.tl.register(cells, slide)
    >>> found = sg.tl.marker_enrichment(cells, slide, "medullary", labels="cell_type", genes=["Gene01", "Gene02"])
    >>> ax = sg.pl.marker_enrichment(found, genes=["Gene02", "Gene01"])
    >>> [text.get_text() for text in ax.get_xticklabels()]
    ['Gene02', 'Gene01']
    """
    if genes is None:
        genes = list(found.table.loc[found.values.columns, "effect"].abs().nlargest(8).index)
    genes = [genes] if isinstance(genes, str) else list(genes)
    missing = [gene for gene in genes if gene not in found.values]
    if missing and missing[0] in found.table.index:
        raise InputError(
            f"Values of {missing[0]!r} were not kept: {len(found.values.columns)} genes have a larger effect.",
            f"Name it: sg.tl.marker_enrichment(..., genes=[{missing[0]!r}]).",
        )
    if missing:
        raise InputError(f"{missing[0]!r} was not tested; tested were {', '.join(found.table.index[:12])}.")
    ax = canvas.axes_or_new(ax, width=max(canvas.COLUMN, 1.2 + 0.65 * len(genes)), height=2.7)
    near = found.near.to_numpy()
    for offset, rows, color in ((-0.2, near, NEAR), (0.2, ~near, OTHER)):
        boxes = ax.boxplot(
            [found.values.loc[rows, gene] for gene in genes],
            positions=np.arange(len(genes)) + offset,
            widths=0.34,
            patch_artist=True,
            manage_ticks=False,
            medianprops={"color": "black"},
            flierprops={"marker": ".", "markersize": 2, "markeredgecolor": "#777777", "rasterized": True},
        )
        for box in boxes["boxes"]:
            box.set(facecolor=color, alpha=0.75, linewidth=0.8)
    top = found.values[list(genes)].max().to_numpy()
    for x, (gene, y) in enumerate(zip(genes, top, strict=True)):
        row = found.table.loc[gene]
        words = f"P {p_value(row['pvalue_adj'])}\nlog2 FC {row['log2fc']:.2f}"
        ax.text(x, y + 0.03 * top.max(), words, ha="center", va="bottom", fontsize="x-small")
    ax.set_ylim(top=1.2 * top.max())
    ax.set_xticks(range(len(genes)), genes)
    for text in ax.get_xticklabels():
        text.set_parse_math(False)
    ax.set_ylabel(found.unit)
    canvas.swatches(ax, [f"near {found.cell_type}", "other spots"], [NEAR, OTHER], title="")
    canvas.plain(ax)
    canvas.set_title(ax, title)
    return ax


@canvas.for_paper
def spatial_expression(
    adata: AnnData,
    gene: str | Sequence[str],
    *,
    basis: str = "X_gears",
    title: str | None = None,
    ax: Axes | None = None,
) -> Axes | list[Axes]:
    """Draw genes as smoothed over the reconstruction.

    Parameters
    ----------
    adata
        Cells on which ``sg.tl.spatial_expression`` was run with these genes.
    gene
        Its name, or several: one panel each.
    basis
        Key of the places, the one given to it.
    title, ax
        As in :func:`reconstruction`.

    Returns
    -------
    Axes or list of Axes
        A map as :func:`reconstruction` draws it, in colours of the smoothed values; one for each of several genes.

    Examples
    --------
    >>> import spatialgears as sg
    >>> tissue = sg.datasets.simulate_tissue(n_cells=200, n_genes=60, spots=100)
    >>> cells = tissue.cells
    >>> cells.obsm["X_gears"] = sg.metrics.canonical(tissue.truth.obsm["spatial"])  # or rec.to_adata(cells)
    >>> cells.obs["gears_radius50"] = 0.1
    >>> sg.tl.spatial_expression(cells, "Gene01")
    >>> ax = sg.pl.spatial_expression(cells, "Gene01", title="Gene01")
    >>> ax.get_title()
    'Gene01'
    """
    smoothed = adata.obsm.get("gears_expression")
    genes = [gene] if isinstance(gene, str) else list(gene)
    missing = [one for one in genes if smoothed is None or one not in smoothed]
    if missing:
        has = "nothing" if smoothed is None else ", ".join(map(str, smoothed.columns[:12]))
        raise InputError(
            f"{missing[0]!r} was not smoothed; there is {has}.",
            f"Run sg.tl.spatial_expression(adata, {genes}).",
        )
    values = [pd.Series(smoothed[one].to_numpy(), adata.obs_names, name=f"{one}, smoothed") for one in genes]
    if isinstance(gene, str):
        return maps.draw_map(adata, color=values[0], basis=basis, title=title, ax=ax)
    return maps.draw_maps(adata, values, titles=[title] * len(values), ax=ax, basis=basis)
