"""From prepared inputs to a fitted model: encoder, generators, nearest spots, held-out evaluation, in the paper's order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from spatialgears.config import Config
from spatialgears.expression.inputs import random_rows
from spatialgears.expression.other_genes import MOST_CELLS, OtherGenes
from spatialgears.expression.pull import Pull
from spatialgears.expression.signal import shared_by_neighbours
from spatialgears.expression.training import EncoderFit, train_encoder
from spatialgears.expression.views import SpotViews, cell_standardiser
from spatialgears.geometry.ensemble import Ensemble
from spatialgears.geometry.features import Features
from spatialgears.geometry.nearest import NearestSpots, nearest_places
from spatialgears.geometry.training import GeometryFit, train_geometry
from spatialgears.metrics.points import spot_pitch
from spatialgears.pipeline.evaluation import choose_average, choose_reach, evaluate_held_out
from spatialgears.pipeline.features import CellView, OtherCounts, SpotFeatures
from spatialgears.pipeline.fitted import Fitted, KeptSlide
from spatialgears.pipeline.foreseen import require_sets
from spatialgears.pipeline.gene_reading import CheckedSlide
from spatialgears.pipeline.kept_out import check_cells
from spatialgears.pipeline.prepare import Prepared
from spatialgears.runtime.progress import Progress, silent
from spatialgears.runtime.seeds import child_seed, numpy_rng, torch_rng
from spatialgears.runtime.training import make_fabric
from spatialgears.validate.new_cells import FitRecord

if TYPE_CHECKING:
    from lightning_fabric import Fabric

ANCHORS = 512  # spots per slide whose features are kept, to find the slide's frame among the cells
#: Views averaged per spot that cells are pulled towards; the most such spots.
MEAN_VIEWS, MEAN_VIEWS_OF = 8, 4000
NEAREST_OF = 10_000  # spots, as measured, among which cells find the nearest
NOISE_CELLS = 2000  # cells that show how much generators differ
FOOTPRINT = 5000  # spots per slide whose coordinates are kept


@dataclass(frozen=True)
class _Run:
    """How to train: the configuration, the engine, threads, and where checkpoints and progress go."""

    config: Config
    fabric: Fabric
    checkpoint: Path | None
    data: str
    workers: int
    progress: Progress

    @property
    def seed(self) -> int:
        return self.config.seed


def fit_model(
    prepared: Prepared,
    config: Config,
    *,
    checkpoint: Path | None = None,
    workers: int = 1,
    progress: Progress = silent,
) -> Fitted:
    """Train stages A to C, evaluate on the spots that were held out, then on the cells by genes that are kept out.

    Resumable checkpoints are written to the folder ``checkpoint`` if one is given. ``workers`` threads train models in
    parallel.
    """
    require_sets(config, len(prepared.slides))
    data = "" if checkpoint is None else prepared.inputs.digest()
    run = _Run(prepared.likeness.training(config), make_fabric(config), checkpoint, data, workers, progress)
    encoder = _fit_encoder(prepared, run)
    views = _spot_views(prepared, config)
    signal = shared_by_neighbours(
        views,
        prepared.slides,
        config.panel_settings,
        seed=config.seed,
        shared_genes=len(prepared.inputs.genes),
    )
    spots = SpotFeatures(
        views, signal, encoder.encoder if encoder else None, config.geometry.inputs == "embedding"
    )
    view = _cell_view(prepared, spots, config)
    some_cells = _some_cells(prepared, view, config)
    geometry = _fit_geometry(prepared, spots, run)
    nearest = _fit_nearest(prepared, spots, geometry, some_cells, config)
    average = _how_far_averaged(prepared, spots, geometry, nearest, config)
    if nearest is not None:
        nearest.share.fill_(1 - average)
    network = Ensemble(geometry.members, nearest).eval()
    checks, confidence = evaluate_held_out(
        geometry,
        spots,
        prepared.slides,
        seed=config.seed,
        titles=prepared.inputs.titles,
        donors=prepared.inputs.donors,
        order=prepared.order,
        nearest=nearest,
        noise=network.noise(some_cells, seed=config.seed) if len(geometry.members) > 1 else 0.0,
    )
    of_encoder = {} if encoder is None else encoder.history
    reach = float(nearest.reach) if nearest else None
    fitted = Fitted(
        view=view,
        network=network,
        slides=_keep_slides(prepared, spots, seed=config.seed),
        confidence=confidence,
        checks=checks,
        history=geometry.history | {f"encoder/{name}": one for name, one in of_encoder.items()},
        warnings=prepared.warnings,
        embedding={} if encoder is None else encoder.summary() | {"reach": reach},
        inputs=FitRecord.of(prepared.spots, _cells(prepared), forms=prepared.inputs.forms, raw=prepared.raw),
        folds=prepared.folds,
        donors=prepared.inputs.donors,
        matched=prepared.matched,
        average=average,
        order=prepared.order,
        threads=torch.get_num_threads(),
    )
    check = check_cells(fitted, _cells(prepared), config, others=_others(prepared, view), progress=progress)
    return replace(fitted, cell_check=check)


def _fit_encoder(prepared: Prepared, run: _Run) -> EncoderFit | None:
    """Stage A's encoder, where its embedding is used."""
    if not run.config.geometry.uses_embedding:
        return None
    return train_encoder(
        prepared.spots,
        [_cells(prepared)],
        prepared.panel,
        coords=prepared.slides,
        config=run.config,
        seed=child_seed(run.seed, "encoder"),
        raw=prepared.raw,
        fabric=run.fabric,
        checkpoint=run.checkpoint,
        data=run.data,
        progress=run.progress,
        place=nearest_places,
        wholes=prepared.inputs.donors.left_out,
    )


def _spot_views(prepared: Prepared, config: Config) -> SpotViews:
    depths = np.asarray(_cells(prepared).sum(1)).ravel()
    seed = child_seed(config.seed, "views")
    return SpotViews(
        prepared.spots, depths, prepared.panel, config=config.panel_settings, seed=seed, raw=prepared.raw
    )


def _cell_view(prepared: Prepared, spots: SpotFeatures, config: Config) -> CellView:
    """How cells are preprocessed: like spots, but standardised among themselves and pulled a little towards similar spots."""
    pulls = config.expression.pull > 0 and not spots.embedding_only and spots.signal is None
    view = CellView(
        panel=prepared.panel,
        standardiser=cell_standardiser(
            _cells(prepared), prepared.panel, config.panel_settings, raw=prepared.raw
        ),
        raw=prepared.raw,
        axes=None if spots.signal is None else spots.signal.axes,
        pull=Pull.fit(mean_views(spots.views, seed=config.seed), config.expression.pull) if pulls else None,
        encoder=spots.encoder,
    )
    return replace(view, other_genes=_other_genes(prepared, view, config))


def _other_genes(prepared: Prepared, view: CellView, config: Config) -> OtherGenes | None:
    """What genes that only the cells have say of the panel, learnt on a sample of the cells."""
    cells = _cells(prepared)
    if prepared.others is None:
        return None
    rows = np.sort(numpy_rng(config.seed, "other genes").permutation(cells.shape[0])[:MOST_CELLS])
    x = view.expression(cells[rows], config)
    return OtherGenes.fit(
        prepared.others[rows], prepared.inputs.other_genes, x, config.expression.other_genes
    )


def _others(prepared: Prepared, view: CellView) -> OtherCounts | None:
    """Counts of the cells of the fit in the other genes that are used."""
    if view.other_genes is None or prepared.others is None:
        return None
    genes = view.other_genes.genes
    columns = np.searchsorted(prepared.inputs.other_genes, genes)
    return OtherCounts(prepared.others[:, columns], genes, np.zeros(len(genes), dtype=bool))


def _some_cells(prepared: Prepared, view: CellView, config: Config) -> Features:
    """A sample of the cells, as measured: they show how much generators differ."""
    cells = _cells(prepared)
    rows = np.sort(numpy_rng(config.seed, "noise").permutation(cells.shape[0])[:NOISE_CELLS])
    return replace(view, pull=None).features(cells[rows], config)


def _fit_geometry(prepared: Prepared, spots: SpotFeatures, run: _Run) -> GeometryFit:
    """Stages B and C."""
    return train_geometry(
        spots.seen,
        prepared.slides,
        spots.width,
        folds=prepared.folds,
        config=run.config,
        seed=child_seed(run.seed, "geometry"),
        noise=None if spots.signal is None else spots.signal.noise,
        fabric=run.fabric,
        checkpoint=run.checkpoint,
        data=run.data,
        workers=run.workers,
        progress=run.progress,
    )


def _fit_nearest(
    prepared: Prepared, spots: SpotFeatures, geometry: GeometryFit, some_cells: Features, config: Config
) -> NearestSpots | None:
    """The spots that cells are moved towards, and the search radius around the generators' positions."""
    if not config.geometry.uses_nearest or spots.encoder is None:
        return None
    views, seed = spots.views, config.seed
    shown = random_rows(prepared.spots, rng=numpy_rng(seed, "nearest"), limit=NEAREST_OF)
    some = torch.from_numpy(np.concatenate([views.rows[s].start + rows for s, rows in enumerate(shown)]))
    coords = torch.from_numpy(np.concatenate(prepared.slides))
    bank = spots.encoder.embed(views.clean(some))
    nearest = NearestSpots(bank, coords[some], views.group[some], some)
    reach = choose_reach(nearest, geometry, spots, prepared.slides, some_cells, seed=seed)
    nearest.reach.fill_(reach)
    return nearest


def _how_far_averaged(
    prepared: Prepared,
    spots: SpotFeatures,
    geometry: GeometryFit,
    nearest: NearestSpots | None,
    config: Config,
) -> float:
    """How far cells are moved towards the mean of similar ones: by co-expression, or by left-out donors."""
    likeness, folds = prepared.likeness, geometry.slide_folds
    if not likeness.by_donors or folds is None:
        return likeness.average
    return choose_average(nearest, folds, spots, prepared.slides, seed=config.seed, most=likeness.average)


def mean_views(views: SpotViews, *, seed: int) -> Tensor:
    """The mean (m, G) of several views of each of some spots, or of all."""
    spots = torch.randperm(views.n_spots, generator=torch_rng(seed, "pull"))[:MEAN_VIEWS_OF].sort().values
    total = torch.zeros(len(spots), views.n_genes)
    for view in range(MEAN_VIEWS):
        total += views.draw(spots, torch_rng(seed, "pull", view))
    return total / MEAN_VIEWS


def _keep_slides(prepared: Prepared, spots: SpotFeatures, *, seed: int) -> list[KeptSlide]:
    starts = np.cumsum([0, *map(len, prepared.slides)])
    kept = []
    slides = zip(prepared.spots, prepared.slides, prepared.frames, strict=True)
    for s, (counts, coords, frame) in enumerate(slides):
        rng = numpy_rng(seed, "kept spots", s)
        chosen = np.sort(rng.permutation(len(coords))[:FOOTPRINT])
        anchors = np.sort(rng.permutation(len(chosen))[:ANCHORS])
        index = torch.from_numpy(starts[s] + chosen[anchors])
        pitch = spot_pitch(coords) * np.sqrt(len(coords) / len(chosen))
        features = spots.draw(index, torch_rng(seed, "anchors", s))
        own_seed = child_seed(seed, "checked", s)
        checked = CheckedSlide.of(
            counts[chosen],
            coords[chosen],
            prepared.panel,
            raw=prepared.raw,
            counted=not prepared.matched,
            seed=own_seed,
        )
        given = np.argsort(prepared.rows[s][chosen])
        kept.append(KeptSlide(coords[chosen], anchors, features, frame, float(pitch), given, checked))
    return kept


def _cells(prepared: Prepared) -> sparse.csr_matrix:
    assert prepared.cells is not None  # a fit has cells: validation sees to it
    return prepared.cells
