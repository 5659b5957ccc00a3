"""Two samples on one slide: which cell types moved, and into which regions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats
from scipy.spatial import KDTree

from spatialgears.analysis import lookup
from spatialgears.errors import InputError
from spatialgears.metrics.points import spot_pitch
from spatialgears.runtime.seeds import numpy_rng

if TYPE_CHECKING:
    from anndata import AnnData

DIRECTIONS, STEPS = 12, 40  # along which layouts are compared, and at how many points of each
PERMUTATIONS = 999
MOST_CELLS = 5000  # of a type in each sample that are compared
FEWEST = 10
ALL = "all cells"


def compare(
    first: AnnData,
    second: AnnData,
    slide: AnnData,
    *,
    key: str = "cell_type",
    regions: str | None = None,
    n_draws: int = 200,
    level: float = 0.9,
    spatial_key: str = "spatial",
    radius: str | None = "gears_radius50",
    outside: str | None = lookup.OUTSIDE,
    seed: int = 0,
) -> pd.DataFrame:
    """Compare where two samples of cells lie on one slide: before and after, ill and healthy.

    Intervals come from bootstrap samples of the cells, each moved by its own uncertainty. P comes from a permutation test: how
    often are the layouts of a type as different when its cells are assigned to the samples at random? Layouts are blurred by
    the uncertainty of each cell first. P says whether they differ, the interval how far.

    Parameters
    ----------
    first, second
        Cells laid on the slide, as in the ``cells.h5ad`` of two runs on it, or after :func:`spatialgears.tl.register`.
    slide
        The slide, with ``obsm[spatial_key]``.
    key
        Column of both ``obs`` with cell types.
    regions
        Column of ``slide.obs`` with regions: compares the share of each type in each region. A cell is in the region of the
        nearest spot.
    n_draws
        Draws for intervals.
    level
        Probability that an interval should hold.
    spatial_key
        Key of the spots' coordinates.
    radius
        Column of ``obs`` with 50% radii; None: coordinates are taken as exact.
    outside
        Column of ``obs`` that marks cells outside the slides' range, which are left out.
    seed
        The same seed gives the same result.

    Returns
    -------
    DataFrame
        Without regions a row per type, and one of all cells: ``n_first``, ``n_second``, ``moved`` (distance of the centres, in
        spot pitches) with ``low`` and ``high`` along that way, ``x`` and ``y`` of that motion, ``distance`` (sliced
        Wasserstein distance of the two layouts, in pitches), ``pvalue`` and ``pvalue_adj`` (Benjamini-Hochberg). With
        regions a row per type and region: ``first`` and ``second`` (shares of the type's cells), ``difference`` with
        ``low`` and ``high``.

    Notes
    -----
    Place both samples in one run, on one map. Each of two runs has errors of its own that all cells of a type share: P then
    counts these as biology, and a shift of *all cells* is most likely an error of the registration. P assumes that cells are
    independent. With one sample per condition it says that these two samples differ, not that the conditions do.

    Examples
    --------
    >>> import numpy as np, spatialgears as sg
    >>> tissue = sg.datasets.simulate_tissue(n_cells=400, n_genes=60, spots=80)
    >>> cells, slide = tissue.cells, tissue.slides[0]
    >>> cells.obsm["X_gears_slide"] = tissue.truth.obsm["spatial"]
    >>> after = cells.copy()
    >>> moved = (after.obs["cell_type"] == "parenchyma A").to_numpy()
    >>> after.obsm["X_gears_slide"][moved] += 500
    >>> table = sg.tl.compare(cells, after, slide, radius=None, n_draws=50)
    >>> table.index[table["pvalue_adj"] < 0.05].tolist()
    ['parenchyma A']
    """
    if n_draws < 20 or not 0 < level < 1:
        raise InputError(
            f"n_draws must be 20 or more and level lie between 0 and 1, found {n_draws} and {level}."
        )
    spots = lookup.places(slide, spatial_key, "slide")
    pitch = spot_pitch(spots)
    samples = [
        _sample(one, slide, key, radius, outside, spatial_key, name)
        for one, name in ((first, "first"), (second, "second"))
    ]
    kinds = sorted({*samples[0][2], *samples[1][2]})
    ends = [(1 - level) / 2, (1 + level) / 2]
    rows: dict[Any, dict[str, float]] = {}
    area = None if regions is None else (KDTree(spots), lookup.labels(slide, regions, "slide"))
    for kind in [*kinds, ALL]:
        rng = numpy_rng(seed, "compare", str(kind))
        parts = [_some(one, kind, rng) for one in samples]
        sizes = [
            int((np.ones(len(types), bool) if kind == ALL else types == kind).sum())
            for _, _, types in samples
        ]
        if min(len(coords) for coords, _ in parts) < FEWEST:
            if area is None:
                rows[kind] = {"n_first": sizes[0], "n_second": sizes[1]}
            continue
        draws = [_draw(parts, rng) for _ in range(n_draws)]
        if area is None:
            rows[kind] = {"n_first": sizes[0], "n_second": sizes[1], **_moved(parts, draws, pitch, ends, rng)}
        else:
            rows |= {(kind, name): row for name, row in _shares(draws, *area, ends=ends).items()}
    table = pd.DataFrame.from_dict(rows, orient="index")
    if area is None:
        table.index.name = key
        if "pvalue" in table:
            own = table.index != ALL
            table.loc[own, "pvalue_adj"] = lookup.adjusted(table.loc[own, "pvalue"].to_numpy())
        return table
    table.index = pd.MultiIndex.from_tuples(table.index, names=[key, regions])
    return table


def _sample(
    adata: AnnData,
    slide: AnnData,
    key: str,
    radius: str | None,
    outside: str | None,
    spatial_key: str,
    name: str,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[Any]]:
    """Places on the slide (n, 2), their spread (n,) in units of the slide, and types (n,)."""
    types = lookup.labels(adata, key, name)
    kept = lookup.counted(adata, outside) & (types.codes >= 0)
    where = lookup.slide_key(adata, slide, spatial_key=spatial_key)
    coords = lookup.places(adata, where, name)[kept]
    spread = np.zeros(len(coords))
    if radius is not None:
        fit = adata.uns.get(where, {})
        if "scale" not in fit:
            raise InputError(
                f"{name} does not say how long the radii are on the slide (uns[{where!r}] has no scale).",
                "Lay the cells on it with sg.tl.register(cells, slide), or take places as exact: radius=None.",
            )
        spread = lookup.spreads(adata, radius, kept) * float(fit["scale"])
    return coords, spread, np.asarray(types.astype(object))[kept]


def _some(
    sample: Any, kind: str, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    coords, spread, types = sample
    rows = np.arange(len(types)) if kind == ALL else np.flatnonzero(types == kind)
    rows = rows[rng.permutation(len(rows))[:MOST_CELLS]]
    return coords[rows], spread[rows]


def _draw(parts: Any, rng: np.random.Generator) -> list[NDArray[np.float64]]:
    """A bootstrap sample of either, each cell moved by its own uncertainty."""
    drawn = []
    for coords, spread in parts:
        rows = rng.integers(len(coords), size=len(coords))
        drawn.append(coords[rows] + spread[rows, None] * rng.normal(size=coords.shape))
    return drawn


def _moved(
    parts: Any, draws: Any, pitch: float, ends: list[float], rng: np.random.Generator
) -> dict[str, float]:
    motion = (parts[1][0].mean(0) - parts[0][0].mean(0)) / pitch
    way = motion / max(float(np.linalg.norm(motion)), 1e-12)
    lengths = [(two.mean(0) - one.mean(0)) @ way / pitch for one, two in draws]
    low, high = np.quantile(lengths, ends)
    coords, spread = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    distance, pvalue = _different(coords, spread, len(parts[0][0]), rng)
    return {
        "moved": float(np.linalg.norm(motion)),
        "low": float(low),
        "high": float(high),
        "x": float(motion[0]),
        "y": float(motion[1]),
        "distance": distance / pitch,
        "pvalue": pvalue,
    }


def _different(
    coords: NDArray[np.float64], spread: NDArray[np.float64], n_first: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Sliced Wasserstein distance of the first cells from the others, blurred by their spread, and P by permutation."""
    angles = np.pi * np.arange(DIRECTIONS) / DIRECTIONS
    along = coords @ np.stack([np.cos(angles), np.sin(angles)])  # (n, directions)
    ends = along.min(0), along.max(0)
    grid = np.linspace(*ends, STEPS + 1)[:-1] + (ends[1] - ends[0]) / (2 * STEPS)  # (steps, directions)
    width = np.maximum(spread, 1e-9 * (ends[1] - ends[0]).max() + 1e-300)
    below = stats.norm.cdf((grid - along[:, None]) / width[:, None, None])  # how much of each cell lies below
    below = below.reshape(len(coords), -1).astype(np.float32)
    share = np.repeat([1 / n_first, -1 / (len(coords) - n_first)], [n_first, len(coords) - n_first])
    permuted = np.stack([share, *(rng.permutation(share) for _ in range(PERMUTATIONS))]).astype(np.float32)
    step = np.tile((ends[1] - ends[0]) / STEPS, STEPS)
    found = np.abs(permuted @ below) @ step.astype(np.float32) / DIRECTIONS
    as_large = found[1:] >= found[0] * (1 - 1e-5)
    return float(found[0]), float((1 + as_large.sum()) / (1 + PERMUTATIONS))


def _shares(
    draws: Any, tree: KDTree, labels: pd.Categorical, *, ends: list[float]
) -> dict[str, dict[str, float]]:
    n = len(labels.categories)
    shares = np.empty((len(draws), 2, n))
    for i, pair in enumerate(draws):
        for j, coords in enumerate(pair):
            codes = labels.codes[tree.query(coords)[1]]
            shares[i, j] = np.bincount(codes[codes >= 0], minlength=n) / max((codes >= 0).sum(), 1)
    mean, difference = shares.mean(0), shares[:, 1] - shares[:, 0]
    low, high = np.quantile(difference, ends, axis=0)
    return {
        str(name): {
            "first": float(mean[0, i]),
            "second": float(mean[1, i]),
            "difference": float(difference[:, i].mean()),
            "low": float(low[i]),
            "high": float(high[i]),
        }
        for i, name in enumerate(labels.categories)
    }
