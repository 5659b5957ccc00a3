"""Registration: lay the intrinsic geometry of the cells on a reference slide, in the slide's own frame and units."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import KDTree

from spatialgears.analysis import lookup
from spatialgears.analysis.correspondences import Matches, by_expression, by_shape, given
from spatialgears.analysis.similarity import robust_similarity, smooth_deformation
from spatialgears.errors import InputError
from spatialgears.metrics.points import spot_pitch
from spatialgears.runtime.seeds import numpy_rng

if TYPE_CHECKING:
    from anndata import AnnData

logger = logging.getLogger(__name__)

AMBIGUOUS = 0.9  # cost of the best pose over that of another, above which neither can be trusted


def register(
    adata: AnnData,
    slide: AnnData,
    *,
    method: Literal["expression", "gromov"] = "expression",
    matches: ArrayLike | None = None,
    scale: bool | float = True,
    deform: bool = False,
    layer: str | None = None,
    basis: str = "X_gears",
    spatial_key: str = "spatial",
    truth_key: str | None = None,
    outside: str | None = lookup.OUTSIDE,
    key_added: str = "X_gears_slide",
    seed: int = 0,
    copy: bool = False,
) -> AnnData | None:
    """Lay the cells on a slide: rotation, reflection, shift, scale, and optionally a smooth deformation.

    Coordinates are meaningful only up to rotation, reflection and shift. Cells are matched with positions on the slide, and the
    map that most matches agree on is taken. Outlying matches are ignored.

    Parameters
    ----------
    adata
        Cells with coordinates in ``obsm[basis]``.
    slide
        Spots with ``obsm[spatial_key]``.
    method
        How cells are matched: "expression", each cell and its surroundings with the most similar spots; "gromov",
        by the shapes of the two layouts alone (Gromov-Wasserstein, needs ``pip install "spatialgears[analysis]"``),
        which asks for a tissue that does not look the same turned or mirrored.
    matches
        Known matches instead: (m, 2) positions of cells in ``adata`` and of spots in ``slide``.
    scale
        False: coordinates are in units of this slide's RMS radius, as they are when the model was trained on it. A number:
        this many units of the slide per unit of the coordinates. True: fitted, or the RMS radius if that explains more.
        Errors in the matches make a fitted scale too small: cells lie nearer to the truth, but their layout is too tight.
    deform
        Bend the layout by a thin-plate spline, if that predicts held-out matches better.
    layer
        Where counts are read in both; default ``X``.
    basis, spatial_key
        Keys of the coordinates.
    truth_key
        Key of ``adata.obsm`` with true coordinates in the frame of the slide, if they are known: the error is reported.
    outside
        Column of ``obs`` that marks cells outside the slides' range: they are laid on the
        slide with the others, but are not matched by ``method`` and count in no measure of the fit. None: all cells
        count. Without the column ``"gears_outside"``, all do.
    key_added
        Key of the result in ``obsm``.
    seed
        The same seed gives the same result.
    copy
        Write into a copy and return it.

    Returns
    -------
    ``None``, or the copy. Writes

    ``obsm[key_added]``
        (n, 2) float64 places in the slide's frame and units. ``obsm["spatial"]`` is never touched.
    ``uns[key_added]``
        ``matrix`` (2, 2), ``scale``, ``shift`` (2,), with ``scale * X @ matrix + shift`` the rigid part;
        ``corners`` (2, 2), smallest and largest x and y of the spots, which identify the slide;
        ``relative_scale``, the scale over the slide's RMS radius; ``mirrored``; ``deformed``; ``pitch`` of the
        spots; and the quality of the fit: ``n_matches``, ``agreement`` (mean weight of the
        matches, 0 to 1), ``residual`` (median distance of a match from its place, in pitches),
        ``explained`` (share of the spread of the matched places that the map explains: 1 all, 0 or less none),
        ``coverage`` (share of cells within 1.5 pitches of a spot), with Gromov-Wasserstein ``ambiguity`` (near 1:
        another pose is as good), with ``truth_key`` ``error_median`` and ``error_mean`` in pitches.

    Notes
    -----
    At most 4,000 cells are matched (250 by shape), so time hardly grows with cells: 2 s for 100,000 on one core.

    Examples
    --------
    Cells of a simulated organ, turned and mirrored, and spots over the same organ:

    >>> import numpy as np, spatialgears as sg
    >>> tissue = sg.datasets.simulate_tissue(n_cells=800, n_genes=60, spots=60)
    >>> cells = tissue.cells
    >>> cells.obsm["truth"] = tissue.truth.obsm["spatial"]
    >>> slide = sg.datasets.pseudo_visium(cells, grid=(14, 10), spatial_key="truth")
    >>> cells.obsm["X_gears"] = sg.metrics.canonical(cells.obsm["truth"]) @ np.array([[0, 1], [1, 0]])
    >>> sg.tl.register(cells, slide, truth_key="truth")
    >>> fit = cells.uns["X_gears_slide"]
    >>> fit["mirrored"], fit["error_median"] < 0.5
    (True, True)
    """
    if method not in ("expression", "gromov"):
        raise InputError(f"There is no method {method!r}.", 'Choose "expression" or "gromov".')
    if key_added == "spatial":
        raise InputError('obsm["spatial"] is for measured places.', "Choose another key_added.")
    coords, spots = lookup.places(adata, basis), lookup.places(slide, spatial_key, "slide")
    truth = None if truth_key is None else lookup.places(adata, truth_key)
    kept = np.flatnonzero(lookup.counted(adata, outside))
    if matches is not None:
        found = given(matches, len(coords), spots)
    elif method == "gromov":
        found = by_shape(coords, kept, spots, seed=seed)
    else:
        found = by_expression(adata, slide, coords=coords, kept=kept, spots=spots, layer=layer, seed=seed)
    laid, fit = lay(coords, spots, found, scale=scale, deform=deform, seed=seed)
    fit["coverage"] = float((KDTree(spots).query(laid[kept])[0] <= 1.5 * fit["pitch"]).mean())
    fit["n_outside"] = len(coords) - len(kept)
    fit["corners"] = np.stack([spots.min(0), spots.max(0)])
    if truth is not None:
        error = np.linalg.norm(laid - truth, axis=1)[kept] / fit["pitch"]
        fit |= {"error_median": float(np.median(error)), "error_mean": float(error.mean())}
    logger.info(
        "%s matches lie %.1f pitches from their places; agreement %.2f; scale %.2f RMS radii of the slide",
        fit["n_matches"], fit["residual"], fit["agreement"], fit["relative_scale"],
    )  # fmt: skip
    if fit.get("ambiguity", 0) > AMBIGUOUS:
        logger.warning("another pose fits the shape of the slide as well (ambiguity %.2f)", fit["ambiguity"])
    adata = lookup.target(adata, copy)
    adata.obsm[key_added] = laid
    adata.uns[key_added] = fit | {"method": "given" if matches is not None else method}
    return adata if copy else None


def lay(
    coords: NDArray[np.float64],
    spots: NDArray[np.float64],
    matches: Matches,
    *,
    scale: bool | float,
    deform: bool,
    seed: int,
) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """The cells (n, 2) on the slide, and the map with its quality."""
    rng, pitch = numpy_rng(seed, "registration"), spot_pitch(spots)
    source, places = coords[matches.cells], matches.places
    if np.ptp(source, axis=0).max() == 0 or np.ptp(places, axis=0).max() == 0:
        raise InputError("All matches lie at one point.", "Check the places of cells and spots.")
    radius = float(np.sqrt(np.square(spots - spots.mean(0)).sum(1).mean()))
    fixed = radius if isinstance(scale, bool) else float(scale)
    if not 0 < fixed < np.inf:
        raise InputError(f"scale must be positive, found {scale}.", "Give True, False or a positive number.")
    fits = [
        robust_similarity(source, places, weights=matches.weights, scale=one, rng=rng)
        for one in ([None, fixed] if scale is True else [fixed])
    ]
    similarity, kept = min(fits, key=lambda one: matches.weights @ np.square(one[0](source) - places).sum(1))
    laid = similarity(coords)
    bend = (
        smooth_deformation(laid[matches.cells], places, weights=matches.weights * kept, rng=rng)
        if deform
        else None
    )
    if bend is not None:
        laid = bend(laid)
    residual = np.linalg.norm(laid[matches.cells] - places, axis=1) / pitch
    spread = matches.weights @ np.square(places - np.average(places, axis=0, weights=matches.weights)).sum(1)
    fit: dict[str, Any] = {
        "matrix": similarity.matrix,
        "scale": similarity.scale,
        "relative_scale": similarity.scale / radius,
        "shift": np.array([similarity.shift.real, similarity.shift.imag]),
        "mirrored": similarity.mirrored,
        "deformed": bend is not None,
        "pitch": pitch,
        "n_matches": len(residual),
        "agreement": float(kept.mean()),
        "residual": float(np.median(residual)),
        "explained": float(1 - matches.weights @ np.square(residual * pitch) / spread),
    }
    return laid, fit if matches.ambiguity is None else fit | {"ambiguity": matches.ambiguity}
