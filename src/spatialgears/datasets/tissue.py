"""The shape every data set comes in: slides with coordinates, cells without, and the truth apart."""

from __future__ import annotations

from dataclasses import dataclass

from anndata import AnnData


@dataclass(frozen=True)
class Tissue:
    """Slides to learn from, cells to place, and the answer kept apart.

    Attributes
    ----------
    slides
        One AnnData per section (spots x genes) with ``obsm["spatial"]``.
    cells
        What is to be placed (cells x genes); it holds no coordinates, nor anything else that gives the
        place away.
    truth
        The same ``obs_names`` as ``cells``, no genes: ``obsm["spatial"]`` where places are known, and
        labels in ``obs``.

    Examples
    --------
    >>> import spatialgears as sg
    >>> tissue = sg.datasets.simulate_tissue(n_cells=200, n_genes=60, spots=100)
    >>> list(tissue.cells.obs_names) == list(tissue.truth.obs_names)
    True
    """

    slides: list[AnnData]
    cells: AnnData
    truth: AnnData
