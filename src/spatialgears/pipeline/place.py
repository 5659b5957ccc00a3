"""From counts of cells to coordinates: stage D (section 3.5), samples, spacing and radii."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.spatial import KDTree
from torch import Tensor

from spatialgears.assembly.assemble import Assembly, assemble, in_one_pass, pass_bytes
from spatialgears.assembly.canonical import canonical
from spatialgears.assembly.measure import BATCH
from spatialgears.assembly.spacing import fill_footprint, footprint, group_mean
from spatialgears.config import AssemblyConfig, Config
from spatialgears.geometry.ensemble import Ensemble, Mapper
from spatialgears.geometry.features import FeatureRows, Features
from spatialgears.geometry.model import Proposal
from spatialgears.metrics.points import lay_on
from spatialgears.pipeline.features import CellFeatures, OtherCounts
from spatialgears.pipeline.fitted import Fitted
from spatialgears.pipeline.noise import is_noise
from spatialgears.runtime.processes import rank_and_size
from spatialgears.runtime.progress import Clock, Progress, silent
from spatialgears.runtime.seeds import child_seed, numpy_rng
from spatialgears.text import number
from spatialgears.validate.order import cell_keys

BLOCK = 20_000  # cells whose features are held at once
FOOTPRINT = 50_000  # points that show the tissue evenly filled
FEW_CELLS = 100  # fewer are placed together with spots: alone they do not make up a tissue
FRAME_CELLS = 2000  # cells that are placed together with the anchors to find the slides' frames


@dataclass(frozen=True)
class Network:
    """The fitted network as stage D calls it: features, mask and seeds in, geometry out."""

    ensemble: Ensemble
    config: AssemblyConfig
    steps: int
    proposal: _Once | None = None

    def __call__(self, features: Features, mask: Tensor, seeds: Tensor) -> Tensor:
        """V_pred (B, n, d)."""
        real = None if bool(mask.all()) else mask
        return self.ensemble.sample(
            features,
            real,
            steps=self.steps,
            sigma_start=self.config.sigma_start,
            seeds=seeds,
            proposal=None
            if self.proposal is None
            else self.proposal(lambda: self.ensemble.propose(features, real)),
        )


class _Once:
    """The proposal for all cells as one set, computed by the first thread that asks for it."""

    def __init__(self) -> None:
        self._lock, self._value = Lock(), cast("Proposal | None", None)

    def __call__(self, compute: Callable[[], Proposal]) -> Proposal:
        with self._lock:
            if self._value is None:
                self._value = compute()
            return self._value


@dataclass(frozen=True, eq=False)
class Placement:
    """Where N cells were placed; the attributes are those of :class:`~spatialgears.reconstruction.Reconstruction`."""

    coords: NDArray[np.float32]
    radius50: NDArray[np.float32]
    radius90: NDArray[np.float32]
    outside: NDArray[np.bool_]
    samples: NDArray[np.float32]
    slides: list[NDArray[np.float32]]
    status: str
    diagnostics: dict[str, Any]

    def as_given(self, cells: NDArray[np.int64], fitted: Fitted) -> Placement:
        """The placement with cells back at these positions (N,), and slides and spots as they were given to the fit."""
        back = np.argsort(cells)
        return replace(
            self,
            coords=self.coords[back],
            radius50=self.radius50[back],
            radius90=self.radius90[back],
            outside=self.outside[back],
            samples=self.samples[:, back],
            slides=[self.slides[i][fitted.slides[i].given] for i in fitted.order],
        )


def place(
    fitted: Fitted,
    counts: sparse.csr_matrix,
    config: Config,
    *,
    missing: NDArray[np.bool_],
    others: OtherCounts | None = None,
    workers: int = 1,
    progress: Progress = silent,
) -> Placement:
    """Place cells with counts (N, G) on the model's genes, of which some (G,) may be ``missing``.

    Radii are those of held-out spots or donors; :mod:`~spatialgears.pipeline.radii` calibrates them for cells.

    ``workers`` threads compute the best guess and the samples in parallel, each in one thread: a sum split over threads is
    rounded differently for another number of threads, and coordinates would depend on it.
    """
    settings, seed = config.assembly, child_seed(config.seed, "place")
    features = fitted.features(counts, config, missing=missing, others=others)
    if len(features) < FEW_CELLS:
        features = features.beside(Features.cat([slide.features for slide in fitted.slides]))
    locality = locality_space(features, config) if settings.mode == "patches" else None
    refined = settings.steps and config.geometry.refiner != "none"  # otherwise there is nothing to sample
    n_samples = settings.samples if refined and counts.shape[0] <= settings.sample_cells else 0
    proposal = _Once() if n_samples and in_one_pass(features, settings) else None
    guess = Network(fitted.network, settings, 0 if settings.samples else settings.steps, proposal)
    sample = Network(fitted.network, settings, settings.steps, proposal)
    pool = ThreadPoolExecutor(
        _workers(workers, features, settings), initializer=torch.set_flush_denormal, initargs=(True,)
    )
    with pool:
        best = pool.submit(
            assemble, features, guess, settings, locality=locality, seed=seed, progress=progress
        )
        drawn = [
            pool.submit(
                assemble, features, sample, settings, locality=locality, seed=child_seed(seed, "sample", s)
            )
            for s in range(n_samples)
        ]
        try:
            if rank_and_size()[1] > 1:  # collective calls must come in the same order in all processes
                wait([best, *drawn])
            found = _Placing(fitted, features, counts, config, seed)
            return found.finish(best, drawn, each=pool.map, progress=progress)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def locality_space(features: FeatureRows, config: Config) -> NDArray[np.float32] | None:
    """(N, h) the space of the locality graph: the embedding, where the generators see nothing else; ``None``: stage D's own."""
    return features[np.arange(len(features))].seen.numpy() if config.geometry.inputs == "embedding" else None


def _workers(workers: int, features: FeatureRows, settings: AssemblyConfig) -> int:
    """How many layouts to compute in parallel: as many as requested and as fit in memory."""
    if rank_and_size()[1] > 1:
        return 1
    one, room = len(features) * pass_bytes(features.width), settings.memory_gb * 1e9
    if settings.mode == "patches":
        one *= min(1.0, BATCH * settings.patch_size / len(features))
    elif settings.mode == "auto" and one > room:
        one *= settings.core_cells / len(features)
    return max(1, min(workers, int(room / one)))


@dataclass(frozen=True)
class _Placing:
    """The steps after the layouts: radii, spacing, samples, canonical pose."""

    fitted: Fitted
    features: CellFeatures
    counts: sparse.csr_matrix
    config: Config
    seed: int

    def finish(
        self, best: Future[Assembly], drawn: list[Future[Assembly]], *, each: Mapper, progress: Progress
    ) -> Placement:
        """The placement, from the best guess and the samples."""
        found, n_cells, clock = best.result(), self.counts.shape[0], Clock()
        group = self._copies()
        coords = group_mean(found.coords, group)
        with clock("radii and samples"):
            radius50, radius90, outside = _confidence(self.fitted, self.features, seed=self.seed, each=each)
            both = group_mean(np.stack([radius50, radius90], axis=1), group)[:n_cells]
            radius50, radius90 = both.T.astype(np.float32)
            noise = is_noise(self.fitted, self.counts, self.config, missing=self.features.missing)
            outside = outside[:n_cells] | noise | (np.asarray(abs(self.counts).sum(1)).ravel() == 0)
        with clock("spacing"):
            slides = slides_among_cells(self.fitted, self.features, coords, seed=self.seed)
            coords, strength = self._spaced(coords, slides, radius50, group)
        samples = np.zeros((len(drawn), len(self.features), 2), dtype=np.float32)
        with clock("samples"):
            for s, one in enumerate(drawn):
                source = one.result().coords.astype(np.float64)
                source -= source.mean(0)
                samples[s] = source @ lay_on(source, coords - coords.mean(0)) + coords.mean(0)
                progress("samples", s + 1, len(samples), {})
        diagnostics = {**found.diagnostics, "mode": found.mode, "spacing": strength, "noise": noise}
        if n_cells >= self.config.assembly.spacing_cells:  # fewer do not fill a tissue
            pitches = [slide.pitch for slide in self.fitted.slides]
            diagnostics["unfilled"] = unfilled(coords[:n_cells], slides, pitches)
        diagnostics["profile"] = {**found.profile, **clock.seconds}
        placed, centre = canonical(coords), coords.mean(0)
        turn = lay_on(coords - centre, placed.coords)
        return Placement(
            coords=placed.coords[:n_cells].astype(np.float32),
            radius50=radius50.astype(np.float32),
            radius90=radius90.astype(np.float32),
            outside=outside,
            samples=((samples[:, :n_cells] - centre) @ turn).astype(np.float32),
            slides=[((spots - centre) @ turn).astype(np.float32) for spots in slides],
            status=found.status if n_cells >= FEW_CELLS else self._few(n_cells),
            diagnostics=diagnostics,
        )

    def _copies(self) -> NDArray[np.int64]:
        """A number for every cell and every spot beside them. Cells with equal counts share one, and so a position."""
        others = self.features.others
        more = () if others is None else (others.counts, others.genes)
        keys = cell_keys(self.counts, self.fitted.panel.genes, *more)
        group = np.unique(keys, return_inverse=True)[1]
        return np.append(group, group.max() + 1 + np.arange(len(self.features) - len(group)))

    def _spaced(
        self,
        coords: NDArray[np.float64],
        slides: list[NDArray[np.float64]],
        radius50: NDArray[np.float32],
        group: NDArray[np.int64],
    ) -> tuple[NDArray[np.float64], float]:
        """Coordinates moved part of the way to fill the slides evenly, and how far; 0 for too few cells to fill a tissue."""
        settings = self.config.assembly
        if not settings.spacing or self.counts.shape[0] < max(settings.spacing_cells, FEW_CELLS):
            return coords, 0.0
        pitches = [slide.pitch for slide in self.fitted.slides]
        even = footprint(slides, FOOTPRINT, pitches=pitches, seed=self.seed)
        return fill_footprint(
            coords,
            even,
            strength=settings.spacing,
            group=group,
            limit=None if self.fitted.confidence is None else radius50,
            reach=settings.spacing_reach,
            seed=self.seed,
        )

    def _few(self, n_cells: int) -> str:
        beside = number(len(self.features) - n_cells, "spot")
        return f"{number(n_cells, 'cell')} placed beside {beside} of the slides."


def _confidence(
    fitted: Fitted, features: CellFeatures, *, seed: int, each: Mapper
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
    """50% radius, 90% radius and whether no slide supports the cell, (N,) each."""
    if fitted.confidence is None:
        unknown = np.full(len(features), np.nan, dtype=np.float32)
        return unknown, unknown.copy(), np.zeros(len(features), dtype=bool)
    measured = features.as_measured()  # like the spots that calibrate the radii
    spread = fitted.network.spread(measured, seed=seed, each=each)
    radius50, radius90 = (fitted.confidence.radii(spread, level) for level in (0.5, 0.9))
    parts = np.array_split(np.arange(len(features)), -(-len(features) // BLOCK))
    outside = np.concatenate([fitted.confidence.outside(measured[part].seen) for part in parts])
    return radius50, radius90, outside


@torch.no_grad()
def slides_among_cells(
    fitted: Fitted, features: FeatureRows, coords: NDArray[np.float64], *, seed: int
) -> list[NDArray[np.float64]]:
    """Where the spots of each slide lie in the cells' frame, (n, 2) each.

    Some cells and the slide's anchors go through the network as one set. Procrustes alignment of these cells takes the
    set's frame to the cells' coordinates; that of the anchors takes the slide into this frame. A slide is moved rigidly.
    """
    some = np.sort(numpy_rng(seed, "frame").permutation(len(coords))[:FRAME_CELLS])
    target = coords[some]
    laid = []
    for slide in fitted.slides:
        both = Features.cat([features[some], slide.features])
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
