"""Data in, data out: one ``read`` for every format, and files that are written whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spatialgears.io.reading import read
from spatialgears.io.spatialdata import from_spatialdata, to_spatialdata
from spatialgears.io.writing import write_groups, write_h5ad
from spatialgears.validate.sections import split_slides

if TYPE_CHECKING:
    from anndata import AnnData

__all__ = ["from_spatialdata", "read", "split_sections", "to_spatialdata", "write_groups", "write_h5ad"]


def split_sections(adata: AnnData, by: str = "auto", *, spatial_key: str = "spatial") -> dict[str, AnnData]:
    """The sections of a file that holds several, each as a slide of its own, as ``--split`` gives them.

    Distances between spots of two sections mean nothing, so a model is given the sections one by one.

    Parameters
    ----------
    adata
        Spots of all sections; not modified.
    by
        Column of ``.obs`` that names the sections. "auto" takes a column that is named so (sample, library_id, ...),
        else barcodes that repeat, else gaps of more than five spot spacings.
    spatial_key
        Key of ``.obsm`` with the coordinates.

    Returns
    -------
    dict
        Name of the section to its spots; one entry if there seems to be one section.

    Examples
    --------
    >>> import anndata as ad, spatialgears as sg
    >>> a, b = sg.datasets.simulate_tissue(n_cells=200, n_genes=60, spots=100).slides
    >>> both = ad.concat({"a": a, "b": b}, label="sample", index_unique="-")
    >>> list(sg.io.split_sections(both, "sample"))
    ['a', 'b']
    """
    parts, names, _ = split_slides([adata], [""], by, spatial_key=spatial_key)
    return dict(zip([name.strip() for name in names], parts, strict=True))
