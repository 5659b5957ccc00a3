"""A simulated organ: sections measured in spots, and dissociated cells whose positions are known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse
from scipy.spatial import cKDTree

from spatialgears.datasets.anatomy import BOX, CELL_TYPES, DOMAINS, Anatomy, Site
from spatialgears.datasets.programmes import Genes, count, draw_states
from spatialgears.datasets.spots import lay_spots, membership
from spatialgears.datasets.tissue import Tissue
from spatialgears.errors import InputError
from spatialgears.runtime.seeds import numpy_rng

_MICROMETRES = 1000.0  # per unit of the anatomy: the organ is nearly 3 mm long
_SECTION_STEP = 0.12  # depth between sections, in radii of the organ
_SPOT_FRACTION = 0.55
_CELLS_PER_SPOT = 8
_BLEED = 0.12  # share of a spot's RNA that comes from the spots around it
_CHUNK = 20_000  # cells expressed and counted at a time


def simulate_tissue(
    *,
    n_cells: int = 3000,
    n_genes: int = 300,
    n_sections: int = 2,
    spots: int = 600,
    cell_depth: float = 1000,
    spot_depth: float = 5000,
    shift: float = 1.0,
    composition_shift: float = 0.0,
    deformation: float = 0.03,
    dispersion: float = 0.3,
    dropout: float = 0.1,
    unpaired: bool = False,
    n_donors: int = 1,
    seed: int = 0,
) -> Tissue:
    """Simulate a bean-shaped organ: sections in spots, and dissociated cells with their hidden places.

    The organ has a capsule, two layers of cortex, a medulla and a folded lumen with its lining; follicles
    and a pole region lie across the layers, vessels pierce them, capillaries run through them, and immune
    cells are scattered. Layers blur into each other, and one parenchymal type gives way to another along
    the organ. Genes follow markers of types, domains, axes and morphogen gradients, patches, or cell states
    that have nothing to do with place.

    The sections are cut at equal steps of depth. **The cells come from the middle of the stack**: from
    between the two middle sections when ``n_sections`` is even, from the plane of the middle section (but
    they are other cells than those under its spots) when it is odd. A cell's true place is its place in
    that plane.

    Parameters
    ----------
    n_cells, n_genes, n_sections
        Sizes.
    spots
        About how many spots each section has, on a hexagonal grid as Visium's: the pitch follows from it.
    cell_depth, spot_depth
        About the median counts of a cell and of a spot.
    shift
        Size of the platform effect between spots and cells; zero: none. It scales the gene-wise factors of
        capture (``exp(N(0, 0.5))`` at one), how much more or less each programme shows, changes of the
        types' own profiles and the stress of dissociation; slides differ among themselves by a fifth of it.
    composition_shift
        How much the composition of the cells departs from the tissue's: types are captured with a relative
        efficiency of ``exp(N(0, composition_shift))``.
    deformation
        Smooth deformation of each section against the anatomy, as a share of the organ's radius. Sections
        are besides rotated, shifted and scaled at random: their units are arbitrary.
    dispersion
        Negative-binomial dispersion of a gene in a cell (median over the genes).
    dropout
        Chance that a weakly expressed gene is lost in a cell besides what low depth loses.
    unpaired
        The cells come from another individual: other proportions, layers, follicles, composition and gene
        levels.
    n_donors
        Individuals that ``n_sections`` slides each are of, named in their ``uns["donor"]``; they differ as the cells'
        individual does from the first with ``unpaired``.
    seed
        The same seed and arguments give the same tissue.

    Returns
    -------
    Tissue
        ``slides`` (int32 CSR counts, ``obsm["spatial"]``, ``obs["n_cells"]``, ``obs["domain"]``), ``cells``
        (int32 CSR counts, ``obs["cell_type"]``, no coordinates), ``truth`` (``obsm["spatial"]`` in
        micrometres, ``obs["cell_type"]``, ``obs["domain"]``). ``var["programme"]`` says what each gene
        follows.

    Examples
    --------
    >>> tissue = simulate_tissue(n_cells=200, n_genes=60, spots=100)
    >>> tissue.cells.shape, len(tissue.slides), "spatial" in tissue.cells.obsm
    ((200, 60), 2, False)
    """
    _check_integers(n_cells=(n_cells, 10, 10**8), n_genes=(n_genes, 40, 10**5), seed=(seed, 0, 2**32 - 1))
    _check_integers(n_sections=(n_sections, 1, 50), n_donors=(n_donors, 1, 50), spots=(spots, 30, 10**6))
    _check_range(cell_depth=(cell_depth, 1, 1e6), spot_depth=(spot_depth, 1, 1e7), shift=(shift, 0, 10))
    _check_range(composition_shift=(composition_shift, 0, 5), deformation=(deformation, 0, 0.1))
    _check_range(dispersion=(dispersion, 0, 10), dropout=(dropout, 0, 0.95))
    anatomy = Anatomy.draw(numpy_rng(seed, "anatomy"))
    genes = Genes.draw(numpy_rng(seed, "genes"), n_genes, dispersion=dispersion)
    slides = []
    for i in range(n_donors * n_sections):
        donor, cut = divmod(i, n_sections)
        rng, own, levels = numpy_rng(seed, "section", i), anatomy, genes
        if donor:
            drawn = numpy_rng(seed, "donor", donor)
            own, levels = anatomy.relative(drawn), genes.shifted(drawn, 0.5)
        section, z = own.deformed(rng, deformation), (cut - (n_sections - 1) / 2) * _SECTION_STEP
        seen = levels.shifted(rng, 0.2 * shift)
        slides.append(_slide(section, z, seen, spots=spots, depth=spot_depth, rng=rng))
        if n_donors > 1:
            slides[-1].uns["donor"] = f"donor {donor + 1}"
    rng = numpy_rng(seed, "cells")
    bias = composition_shift * rng.normal(size=len(CELL_TYPES))
    genes = genes.shifted(numpy_rng(seed, "platform"), shift)
    if unpaired:
        other = numpy_rng(seed, "individual")
        anatomy, genes = anatomy.relative(other), genes.shifted(other, 0.5)
        bias += 0.5 * other.normal(size=len(CELL_TYPES))
    population = _settle(anatomy, 0.0, n_cells, bias=bias, rng=rng)
    counts = _count_cells(population, genes, depth=cell_depth, stress=0.8 * shift, dropout=dropout, rng=rng)
    return Tissue(slides, *_cells(population, counts, genes))


@dataclass(frozen=True)
class _Population:
    """Cells in a section plane."""

    points: np.ndarray  # (n, 2), in units of the anatomy
    cell_type: np.ndarray  # (n,) index into CELL_TYPES
    site: Site

    def __getitem__(self, index: np.ndarray | slice) -> _Population:
        return _Population(self.points[index], self.cell_type[index], self.site[index])


def _settle(anatomy: Anatomy, z: float, n: int, *, bias: np.ndarray, rng: np.random.Generator) -> _Population:
    """Exactly ``n`` evenly spaced cells of the tissue, types preferred by ``exp(bias)``.

    A jittered hexagonal lattice holds three candidates for each cell wanted; a weighted draw without
    replacement (Gumbel's trick) takes ``n`` of them.
    """
    area, (x0, y0), (x1, y1) = _extent(anatomy, z)
    spacing = np.sqrt(area / (3.2 * n) * 2 / np.sqrt(3))
    x, y = np.meshgrid(np.arange(x0, x1, spacing), np.arange(y0, y1, spacing * np.sqrt(3) / 2))
    x[1::2] += spacing / 2
    points = np.column_stack([x.ravel(), y.ravel()])
    points += rng.normal(scale=0.22 * spacing, size=points.shape)
    points = points[anatomy.inside(points, z)]
    site = anatomy.at(points, z)
    cell_type = (rng.random((len(points), 1)) > np.cumsum(site.types, axis=1)[:, :-1]).sum(1)
    chosen = np.argpartition(-(bias[cell_type] + rng.gumbel(size=len(points))), n - 1)[:n]
    return _Population(points, cell_type, site)[rng.permutation(chosen)]


def _extent(anatomy: Anatomy, z: float) -> tuple[float, np.ndarray, np.ndarray]:
    """Area of the tissue and the corners of a box around it, from a grid of 62,500 points."""
    x = np.linspace(-BOX, BOX, 250)
    grid = np.stack(np.meshgrid(x, x), axis=-1).reshape(-1, 2)
    tissue = grid[anatomy.inside(grid, z)]
    step = x[1] - x[0]
    return len(tissue) * step**2, tissue.min(0) - step, tissue.max(0) + step


def _slide(
    anatomy: Anatomy, z: float, genes: Genes, *, spots: int, depth: float, rng: np.random.Generator
) -> AnnData:
    """One section: its cells, laid on a slide at random, summed under the spots, captured and counted."""
    disc_share = np.pi / 4 * _SPOT_FRACTION**2 / (np.sqrt(3) / 2)  # of the slide's area
    n_cells = int(spots * _CELLS_PER_SPOT / disc_share)
    population = _settle(anatomy, z, n_cells, bias=np.zeros(len(CELL_TYPES)), rng=rng)
    angle, scale = rng.uniform(0, 2 * np.pi), _MICROMETRES * np.exp(rng.normal(scale=0.15))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    coords = scale * (population.points @ turn.T + rng.normal(size=2))
    pitch = scale * np.sqrt(_extent(anatomy, z)[0] / spots * 2 / np.sqrt(3))
    columns, rows = np.rint(np.ptp(coords, axis=0) / (pitch * np.array([1, np.sqrt(3) / 2]))).astype(int) + 1
    centres, spot = lay_spots(coords, grid=(columns, rows), spot_fraction=_SPOT_FRACTION, layout="hex")
    n_under = np.bincount(spot[spot >= 0], minlength=len(centres))
    kept = np.flatnonzero(n_under >= 2)
    under = np.flatnonzero(np.isin(spot, kept))
    sums = membership(spot[under], kept, dtype=float)  # (spots, cells under them)
    population = population[under]
    site = population.site
    rna = sums @ genes.means(
        population.cell_type, site.domains, site.fields, draw_states(rng, len(under), stress=0)
    )
    around = cKDTree(centres[kept]).query(centres[kept], k=7)[1][:, 1:]
    rna = (1 - _BLEED) * rna + _BLEED * rna[around].mean(1)  # (spots, G)
    total = rna.sum(1, keepdims=True)
    rna *= depth / np.median(total) * np.exp(rng.normal(scale=0.2, size=total.shape))
    domain = np.asarray(sums @ site.domains).argmax(1)
    return AnnData(
        count(rng, rna, dispersion=genes.dispersion / 4),
        obs=pd.DataFrame(
            {"n_cells": n_under[kept], "domain": pd.Categorical.from_codes(domain, DOMAINS)},
            index=[f"spot_{i}" for i in range(len(kept))],
        ),
        var=_var(genes),
        obsm={"spatial": centres[kept]},
    )


def _count_cells(
    population: _Population,
    genes: Genes,
    *,
    depth: float,
    stress: float,
    dropout: float,
    rng: np.random.Generator,
) -> sparse.csr_matrix:
    """Counts of dissociated cells (n, G), a chunk at a time."""
    chunks = []
    for start in range(0, len(population.points), _CHUNK):
        part = population[start : start + _CHUNK]
        n = len(part.points)
        mean = genes.means(
            part.cell_type, part.site.domains, part.site.fields, draw_states(rng, n, stress=stress)
        )
        mean *= depth * np.exp(rng.normal(scale=0.45, size=(n, 1)))
        chunks.append(count(rng, mean, dispersion=genes.dispersion, dropout=dropout))
    return sparse.vstack(chunks, format="csr")


def _cells(population: _Population, counts: sparse.csr_matrix, genes: Genes) -> tuple[AnnData, AnnData]:
    """The cells as the method sees them, and the truth."""
    names = [f"cell_{i}" for i in range(counts.shape[0])]
    cell_type = pd.Categorical.from_codes(population.cell_type, list(CELL_TYPES))
    domain = pd.Categorical.from_codes(population.site.domains.argmax(1), DOMAINS)
    cells = AnnData(counts, obs=pd.DataFrame({"cell_type": cell_type}, index=names), var=_var(genes))
    truth = AnnData(
        obs=pd.DataFrame({"cell_type": cell_type, "domain": domain}, index=names),
        obsm={"spatial": _MICROMETRES * population.points},
    )
    return cells, truth


def _var(genes: Genes) -> pd.DataFrame:
    return pd.DataFrame({"programme": pd.Categorical(genes.programme)}, index=genes.names)


def _check_integers(**arguments: tuple[int, int, int]) -> None:
    for name, (value, _, _) in arguments.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise InputError(f"{name} must be an integer, found {value!r}.", f"Change {name}.")
    _check_range(**arguments)


def _check_range(**arguments: tuple[float, float, float]) -> None:
    for name, (value, low, high) in arguments.items():
        if not low <= value <= high:
            raise InputError(f"{name} must lie in [{low:,g}, {high:,g}], found {value!r}.", f"Change {name}.")
