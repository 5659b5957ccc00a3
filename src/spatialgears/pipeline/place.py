"""From counts of cells to their places: stage D, samples, spacing and confidence."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.spatial import KDTree
from torch import Tensor

from spatialgears.assembly.assemble import Assembly, assemble, one_shot_memory
from spatialgears.assembly.canonical import canonical
from spatialgears.assembly.spacing import fill_footprint, footprint
from spatialgears.config import AssemblyConfig, Config
from spatialgears.geometry.ensemble import Ensemble, Mapper
from spatialgears.metrics.points import lay_on
from spatialgears.pipeline.fit import CellFeatures, Fitted
from spatialgears.runtime.processes import rank_and_size
from spatialgears.runtime.progress import Clock, Progress, silent
from spatialgears.runtime.seeds import child_seed, numpy_rng
from spatialgears.text import number
from spatialgears.types import Features

logger = logging.getLogger(__name__)

BLOCK = 20_000  # cells whose features are held at once
FOOTPRINT = 50_000  # points that show the tissue evenly filled
FEW_CELLS = 100  # fewer than this are placed beside spots: they do not show the network a tissue
FRAME_CELLS = 2000  # cells that are placed beside the anchors to find the slides' frames


@dataclass(frozen=True)
class Network:
    """The fitted network as stage D calls it: features, mask and seeds in, geometry out."""

    ensemble: Ensemble
    config: AssemblyConfig
    steps: int

    def __call__(self, features: Tensor, mask: Tensor, seeds: Tensor) -> Tensor:
        """V_pred (B, n, d)."""
        real = None if bool(mask.all()) else mask
        return self.ensemble.sample(
            features,
            real,
            steps=self.steps,
            sigma_start=self.config.sigma_start,
            seeds=seeds,
            guidance=self.config.guidance,
        )


def place(
    fitted: Fitted,
    counts: sparse.csr_matrix,
    config: Config,
    *,
    missing: NDArray[np.bool_],
    workers: int = 1,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Place cells with counts (N, G) on the model's genes.

    The best guess and the samples are computed side by side by ``workers`` threads, each by one alone: sums that are
    split over threads depend on their number, and so would the places.

    Returns
    -------
    The fields of :class:`~spatialgears.reconstruction.Reconstruction` but the names.
    """
    settings, seed = config.assembly, child_seed(config.seed, "place")
    features = fitted.features(counts, config, missing=missing)
    if len(features) < FEW_CELLS:
        features = features.beside(torch.cat([slide.features for slide in fitted.slides]))
    locality = None  # the space of the locality graph: Z itself where the network sees nothing else
    if settings.mode == "patches" and config.geometry.inputs == "embedding":
        locality = fitted.network.own(features[np.arange(len(features))]).numpy()
    network = Network(fitted.network, settings, steps=0 if settings.samples else settings.steps)
    refined = settings.steps and config.geometry.refiner != "none"  # otherwise there is nothing to draw from
    count = settings.samples if refined and counts.shape[0] <= settings.sample_cells else 0
    samples = np.zeros((count, len(features), 2), dtype=np.float32)
    refining = Network(fitted.network, settings, settings.steps)
    pool = ThreadPoolExecutor(
        _workers(workers, features, settings), initializer=torch.set_flush_denormal, initargs=(True,)
    )
    with pool:
        best = pool.submit(
            assemble, features, network, settings, locality=locality, seed=seed, progress=progress
        )
        drawn = [
            pool.submit(
                assemble, features, refining, settings, locality=locality, seed=child_seed(seed, "sample", s)
            )
            for s in range(len(samples))
        ]
        try:
            if rank_and_size()[1] > 1:  # processes must meet in one order
                wait([best, *drawn])
            return _laid(
                fitted,
                counts,
                config,
                features,
                seed=seed,
                best=best,
                drawn=drawn,
                samples=samples,
                each=pool.map,
                progress=progress,
            )
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _workers(workers: int, features: Features, settings: AssemblyConfig) -> int:
    """As many as were asked for and fit in memory side by side."""
    if rank_and_size()[1] > 1:
        return 1
    one, room = one_shot_memory(len(features), features.shape[1]), settings.memory_gb * 1e9
    if settings.mode == "patches":
        one *= min(1.0, settings.patch_batch * settings.patch_size / len(features))
    elif settings.mode == "auto" and one > room:
        one *= settings.core_cells / len(features)
    return max(1, min(workers, int(room / one)))


def _laid(
    fitted: Fitted,
    counts: sparse.csr_matrix,
    config: Config,
    features: CellFeatures,
    *,
    seed: int,
    best: Future[Assembly],
    drawn: list[Future[Assembly]],
    samples: NDArray[np.float32],
    each: Mapper,
    progress: Progress,
) -> dict[str, Any]:
    """Everything that follows from the layouts, as they come."""
    settings, found, n_cells = config.assembly, best.result(), counts.shape[0]
    coords, clock = found.coords.astype(np.float64), Clock()
    with clock("radii and samples"):
        radius50, radius90, outside = (
            values[:n_cells] for values in _confidence(fitted, features, seed=seed, each=each)
        )
        outside = outside | (np.asarray(abs(counts).sum(1)).ravel() == 0)
    with clock("spacing"):
        tissue, strength = slides_among_cells(fitted, features, coords, seed=seed), 0.0
        pitches = [slide.pitch for slide in fitted.slides]
        if settings.spacing and n_cells >= max(settings.spacing_cells, FEW_CELLS):
            even = footprint(tissue, FOOTPRINT, pitches=pitches, seed=seed)
            limit = None if fitted.confidence is None else radius50
            coords, strength = fill_footprint(
                coords, even, strength=settings.spacing, limit=limit, reach=settings.spacing_reach, seed=seed
            )
    with clock("samples"):
        for s, one in enumerate(drawn):
            samples[s] = _onto(one.result().coords.astype(np.float64), coords)
            progress("samples", s + 1, len(samples), {})
    placed, status = canonical(coords), found.status
    if n_cells < FEW_CELLS:
        status = f"{number(n_cells, 'cell')} placed beside {number(len(features) - n_cells, 'spot')} of the slides."
    diagnostics = {**found.diagnostics, "mode": found.mode, "spacing": strength}
    if n_cells >= settings.spacing_cells:  # fewer do not fill a tissue
        diagnostics["unfilled"] = unfilled(coords[:n_cells], tissue, pitches)
    diagnostics["profile"] = {**found.profile, **clock.seconds}
    turn = lay_on(coords - coords.mean(0), placed.coords)
    return {
        "coords": placed.coords[:n_cells].astype(np.float32),
        "radius50": radius50.astype(np.float32),
        "radius90": radius90.astype(np.float32),
        "outside": outside,
        "samples": ((samples[:, :n_cells] - coords.mean(0)) @ turn).astype(np.float32),
        "slides": [((spots - coords.mean(0)) @ turn).astype(np.float32) for spots in tissue],
        "status": status,
        "diagnostics": diagnostics,
    }


def _confidence(
    fitted: Fitted, features: CellFeatures, *, seed: int, each: Mapper
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
    """50% radius, 90% radius and whether no slide supports the cell, (N,) each."""
    if fitted.confidence is None:
        unknown = np.full(len(features), np.nan, dtype=np.float32)
        return unknown, unknown.copy(), np.zeros(len(features), dtype=bool)
    measured = features.as_measured()  # as the spots were that radii are learnt from
    spread = fitted.network.spread(measured, seed=seed, each=each)
    radius50, radius90 = (fitted.confidence.radii(spread, level) for level in (0.5, 0.9))
    parts = np.array_split(np.arange(len(features)), -(-len(features) // BLOCK))
    own = fitted.network.own
    outside = np.concatenate([fitted.confidence.outside(own(measured[part])) for part in parts])
    return radius50, radius90, outside


@torch.no_grad()
def slides_among_cells(
    fitted: Fitted, features: Features, coords: NDArray[np.float64], *, seed: int
) -> list[NDArray[np.float64]]:
    """Where the spots of each slide lie in the cells' frame, (n, 2) each.

    Some cells and the slide's anchors go through the network as one set. The cells tell how its frame lies to the
    coordinates, the anchors how the slide lies in its frame; a slide is moved rigidly.
    """
    some = np.sort(numpy_rng(seed, "frame").permutation(len(coords))[:FRAME_CELLS])
    target = coords[some]
    laid = []
    for slide in fitted.slides:
        both = torch.cat([torch.as_tensor(features[some]), slide.features])
        geometry = fitted.network(both[None])[0].double().numpy()
        cells, anchors = geometry[: len(some)], geometry[len(some) :]
        plane = lay_on(cells - cells.mean(0), target - target.mean(0))  # (d, 2)
        anchors = (anchors - cells.mean(0)) @ plane + target.mean(0)
        spots = slide.coords[slide.anchors]
        turn = lay_on(spots - spots.mean(0), anchors - anchors.mean(0))  # (2, 2)
        laid.append((slide.coords - spots.mean(0)) @ turn + anchors.mean(0))
    return laid


def unfilled(
    coords: NDArray[np.float64], slides: list[NDArray[np.float64]], pitches: Sequence[float]
) -> float:
    """Share of the slides' spots (n, 2), ``pitches`` apart, with no cell nearer than twice what even filling would give."""
    tree = KDTree(coords)
    shares = []
    for spots, pitch in zip(slides, pitches, strict=True):
        even = pitch * np.sqrt(max(1.0, len(spots) / len(coords)))
        shares.append(float((tree.query(spots)[0] > 2 * even).mean()))
    return float(np.mean(shares))


def _onto(source: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    centred = source - source.mean(0)
    return centred @ lay_on(centred, target - target.mean(0)) + target.mean(0)
