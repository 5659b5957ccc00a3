"""From valid inputs to a fitted model: panel, views, geometry, self-check and confidence, in the paper's order."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from spatialgears.assembly.confidence import Confidence
from spatialgears.config import Config
from spatialgears.expression.encoder import Encoder
from spatialgears.expression.inputs import random_rows
from spatialgears.expression.normalise import Standardiser
from spatialgears.expression.panel import WHOLE_TRANSCRIPTOME, Panel, build_panel
from spatialgears.expression.pull import Pull
from spatialgears.expression.signal import shared_by_neighbours
from spatialgears.expression.training import EncoderFit, train_encoder
from spatialgears.expression.views import SpotViews, cell_features, cell_standardiser
from spatialgears.geometry.ensemble import Ensemble
from spatialgears.geometry.heldout import Draw
from spatialgears.geometry.model import GeometryModel
from spatialgears.geometry.nearest import NearestSpots, nearest_places
from spatialgears.geometry.training import held_out, train_geometry
from spatialgears.metrics.points import spot_pitch
from spatialgears.pipeline.evaluation import examine, set_reach
from spatialgears.pipeline.foreseen import foreseen, require_sets
from spatialgears.pipeline.self_check import SelfCheck
from spatialgears.runtime.progress import Progress, silent, tell_odd
from spatialgears.runtime.seeds import child_seed, numpy_rng, torch_rng
from spatialgears.runtime.training import make_fabric
from spatialgears.storage.model_folder import StoredModel, flatten, part
from spatialgears.supervision.slides import Frame, canonicalise
from spatialgears.validate import ValidInputs
from spatialgears.validate.new_cells import Remembered

logger = logging.getLogger(__name__)

ANCHORS = 512  # spots per slide whose features are kept, to find the slide's frame among the cells
MEAN_VIEWS, MEAN_VIEWS_OF = 8, 4000  # views averaged of a spot that cells are pulled to, and such spots
NEAREST_OF = 10_000  # spots, as measured, among which cells find the nearest
NOISE_CELLS = 2000  # cells that show how much generators differ
FOOTPRINT = 5000  # spots per slide whose places are kept
DENSE_CELLS = 4096  # cells with all their genes at once, where only their embedding is wanted


@dataclass(frozen=True, eq=False)
class Slide:
    """What a fitted model keeps of a slide: its outline, and some spots as they look to the network.

    Attributes
    ----------
    coords
        (n, 2) canonical places of its spots, a sample of them when there are many.
    anchors
        (a,) some of these, whose features are kept.
    features
        (a, f) a view of each anchor.
    frame
        The way from canonical coordinates back to the slide's own.
    pitch
        How far apart neighbours would be if these spots filled the tissue evenly.
    """

    coords: NDArray[np.float64]
    anchors: NDArray[np.int64]
    features: Tensor
    frame: Frame
    pitch: float


@dataclass(frozen=True, eq=False)
class Fitted:
    """Everything that placing cells needs, and nothing of the training data but a sample of spots."""

    panel: Panel
    raw: bool
    standardiser: Standardiser
    signal: Tensor | None
    pull: Pull | None
    encoder: Encoder | None
    network: Ensemble
    slides: list[Slide]
    confidence: Confidence | None
    checks: list[SelfCheck]
    history: dict[str, list[float]]
    warnings: list[str]
    embedding: dict[str, Any]
    remembered: Remembered | None = None  # models of older versions have none

    def features(
        self, counts: sparse.csr_matrix, config: Config, *, missing: NDArray[np.bool_]
    ) -> CellFeatures:
        """What the network sees of cells with these counts (N, G); a missing gene is taken as average."""
        panel = self.panel
        if self.raw and missing.any() and self.remembered is not None:  # the others are no larger for it
            sums = self.remembered.cells
            panel = replace(panel, target=panel.target * float(sums[~missing].sum() / sums.sum()))
        return CellFeatures(self, panel, counts, config, missing, self.pull)

    def tensors(self) -> dict[str, Tensor]:
        """The numbers, by name, for a model folder."""
        tensors = flatten("network", self.network.state_dict())
        tensors |= {
            "panel.weights": torch.from_numpy(self.panel.weights),
            "panel.morans_i": torch.from_numpy(np.asarray(self.panel.morans_i)),
            "cells.mean": self.standardiser.mean,
            "cells.std": self.standardiser.std,
        }
        for i, slide in enumerate(self.slides):
            tensors |= {
                f"slide{i}.coords": torch.from_numpy(slide.coords),
                f"slide{i}.anchors": torch.from_numpy(slide.anchors),
                f"slide{i}.features": slide.features,
                f"slide{i}.centre": torch.from_numpy(np.asarray(slide.frame.centre)),
                f"slide{i}.scale": torch.tensor(slide.frame.scale, dtype=torch.float64),
                f"slide{i}.pitch": torch.tensor(slide.pitch, dtype=torch.float64),
            }
        if self.signal is not None:
            tensors["panel.signal"] = self.signal
        if self.pull is not None:
            tensors |= {"pull.bank": self.pull.bank, "pull.axes": self.pull.axes}
        if self.encoder is not None:
            tensors |= flatten("encoder", self.encoder.state_dict())
        if self.confidence is not None:
            tensors |= flatten("confidence", self.confidence.tensors())
        if self.remembered is not None:
            arrays = self.remembered.arrays()
            tensors |= flatten("inputs", {name: torch.from_numpy(array) for name, array in arrays.items()})
        return tensors

    def meta(self) -> dict[str, Any]:
        """The facts, for ``meta.json``."""
        return {
            "raw": self.raw,
            "target": self.panel.target,
            "members": len(self.network.members),
            "slides": len(self.slides),
            "checks": [check.to_dict() for check in self.checks],
            "warnings": self.warnings,
            "embedding": self.embedding,
            "history": self.history,
        }

    @classmethod
    def restore(cls, stored: StoredModel) -> Fitted:
        """A fitted model from what :mod:`spatialgears.storage.model_folder` read."""
        tensors, meta, config = stored.tensors, stored.meta, stored.config
        encoder = Encoder.from_state(state).freeze() if (state := part("encoder", tensors)) else None
        signal = tensors.get("panel.signal")
        n_features = seen_by_network(torch.zeros(1, len(stored.genes)), None, encoder, config).shape[1]
        network = build_network(n_features, int(meta["members"]), config)
        if spots := part("network.nearest", tensors):
            network.nearest = NearestSpots(**spots)
        network.load_state_dict(part("network", tensors))
        slides = []
        for i in range(int(meta["slides"])):
            one = part(f"slide{i}", tensors)
            frame = Frame(one["centre"].numpy(), float(one["scale"]))
            coords = one["coords"].numpy()
            pitch = float(one["pitch"]) if "pitch" in one else spot_pitch(coords)  # of an older version
            slides.append(Slide(coords, one["anchors"].numpy(), one["features"], frame, pitch))
        confidence = part("confidence", tensors)
        remembered = {name: one.numpy() for name, one in part("inputs", tensors).items()}
        return cls(
            panel=Panel(
                stored.genes,
                tensors["panel.weights"].numpy(),
                tensors["panel.morans_i"].numpy(),
                float(meta["target"]),
            ),
            raw=bool(meta["raw"]),
            standardiser=Standardiser(tensors["cells.mean"], tensors["cells.std"]),
            signal=signal,
            pull=Pull(one["bank"], one["axes"], config.expression.pull)
            if (one := part("pull", tensors))
            else None,
            encoder=encoder,
            network=network.eval(),
            slides=slides,
            confidence=Confidence.from_tensors(confidence) if confidence else None,
            checks=[SelfCheck(**check) for check in meta["checks"]],
            history=meta["history"],
            warnings=meta["warnings"],
            embedding=meta["embedding"],
            remembered=Remembered.from_arrays(remembered) if remembered else None,
        )


@dataclass(frozen=True, eq=False)
class CellFeatures:
    """What the network sees of cells, computed for those that are asked for: a million dense rows would not fit."""

    fitted: Fitted
    panel: Panel
    counts: sparse.csr_matrix
    config: Config
    missing: NDArray[np.bool_]
    pull: Pull | None
    company: Tensor | None = None

    def beside(self, spots: Tensor) -> CellFeatures:
        """The same with the features (a, f) of spots after those of the cells."""
        return replace(self, company=spots)

    def as_measured(self) -> CellFeatures:
        """The same, not moved towards any spot."""
        return replace(self, pull=None)

    def __len__(self) -> int:
        return self.counts.shape[0] + (0 if self.company is None else len(self.company))

    @property
    def shape(self) -> tuple[int, int]:
        """(N, f)."""
        return len(self), self[np.zeros(0, np.int64)].shape[1]

    def __getitem__(self, rows: Any) -> Tensor:
        """The features (n, f) of cells, and of spots beside them, by position."""
        if self.company is None:
            return self._of_cells(rows)
        rows, n_cells = np.asarray(rows), self.counts.shape[0]
        found = torch.empty(len(rows), self.company.shape[1])
        cells = torch.from_numpy(rows < n_cells)
        found[cells] = self._of_cells(rows[rows < n_cells])
        found[~cells] = self.company[torch.from_numpy(rows[rows >= n_cells] - n_cells)]
        return found

    @torch.no_grad()
    def _of_cells(self, rows: Any) -> Tensor:
        fitted, rows = self.fitted, np.asarray(rows)
        if self.config.geometry.inputs == "embedding" and len(rows) > DENSE_CELLS:
            parts = np.array_split(rows, -(-len(rows) // DENSE_CELLS))
            return torch.cat([self._of_cells(part) for part in parts])
        x, _ = cell_features(
            self.counts[rows],
            self.panel,
            self.config.expression,
            standardiser=fitted.standardiser,
            raw=fitted.raw,
        )
        if self.missing.any():
            x[:, torch.from_numpy(self.missing)] = 0
        moved = x if self.pull is None else self.pull(x)
        seen = seen_by_network(moved, along(moved, fitted.signal), fitted.encoder, self.config)
        return seen if fitted.network.nearest is None else with_embedding(seen, x, fitted.encoder)


def seen_by_network(x: Tensor, kept: Tensor | None, encoder: Encoder | None, config: Config) -> Tensor:
    """Stage C's view of weighted expression (..., G): itself, the frozen embedding, or both (``geometry.inputs``).

    Where a part of the expression is ``kept`` (..., G), it sees that instead.
    """
    if config.geometry.inputs == "embedding" and encoder is not None:
        return encoder.embed(x)
    return with_embedding(
        x if kept is None else kept, x, encoder if config.geometry.inputs == "both" else None
    )


def along(x: Tensor, axes: Tensor | None) -> Tensor | None:
    """The part of expression (..., G) along some directions (G, k)."""
    return None if axes is None else x @ axes @ axes.T


def with_embedding(seen: Tensor, x: Tensor, encoder: Encoder | None) -> Tensor:
    """``seen`` (..., f) and after it the embedding of weighted expression x (..., G), if there is an encoder."""
    return seen if encoder is None else torch.cat([seen, encoder.embed(x)], dim=-1)


def build_network(n_features: int, members: int, config: Config) -> Ensemble:
    """An untrained ensemble; only its first member has a refiner."""
    plain = config.geometry.model_copy(update={"refiner": "none"})
    dim = config.supervision.dim
    return Ensemble(
        [GeometryModel(n_features, dim, config.geometry if i == 0 else plain) for i in range(members)]
    )


def fit_model(
    inputs: ValidInputs, config: Config, *, checkpoint: Path | None = None, progress: Progress = silent
) -> Fitted:
    """Stages A to C on valid inputs, then what the held-out spots tell."""
    seed, raw = config.seed, inputs.kind == "counts"
    spots, places, cells = inputs.without_empty()
    assert cells is not None
    require_sets(config, len(spots))
    settings = config.panel
    panel, columns = choose_panel(spots, places, cells, inputs.genes, config, raw=raw)
    tell_odd(progress, [*inputs.warnings, *foreseen(panel.morans_i, len(spots), config)])
    spots, cells = [counts[:, columns] for counts in spots], cells[:, columns]
    canonical, frames = zip(*(canonicalise(coords) for coords in places), strict=True)
    fabric, data = make_fabric(config), "" if checkpoint is None else inputs.digest()
    embedded: EncoderFit | None = None
    if config.geometry.uses_embedding:
        embedded = train_encoder(
            spots,
            [cells],
            panel,
            coords=canonical,
            config=config,
            seed=child_seed(seed, "encoder"),
            raw=raw,
            fabric=fabric,
            checkpoint=checkpoint,
            data=data,
            progress=progress,
            place=nearest_places,
        )
    encoder = embedded.encoder if embedded else None
    depths = np.asarray(cells.sum(1)).ravel()
    views = SpotViews(spots, depths, panel, config=settings, seed=child_seed(seed, "views"), raw=raw)
    standardiser = cell_standardiser(cells, panel, settings, raw=raw)
    signal = shared_by_neighbours(views, canonical, settings, seed=seed, shared_genes=len(inputs.genes))

    seen = None  # what is always the same is computed once
    if encoder is not None and config.geometry.inputs == "embedding" and not views.thins:
        parts = torch.arange(views.n_spots).split(DENSE_CELLS)
        seen = torch.cat([encoder.embed(views.draw(part, torch_rng(0))) for part in parts])

    def kept(x: Tensor, index: Tensor) -> Tensor | None:
        return None if signal is None else signal.of_spots(x, index)

    def draw(index: Tensor, generator: torch.Generator) -> Tensor:
        if seen is not None:
            return seen[index]
        x = views.draw(index, generator)
        return seen_by_network(x, kept(x, index), encoder, config)

    def draw_embedded(index: Tensor, generator: torch.Generator) -> Tensor:
        x = views.draw(index, generator)
        return with_embedding(seen_by_network(x, kept(x, index), encoder, config), x, encoder)

    n_features = draw(torch.zeros(1, dtype=torch.long), torch_rng(0)).shape[1]
    fit = train_geometry(
        draw,
        canonical,
        n_features,
        config=config,
        seed=child_seed(seed, "geometry"),
        fabric=fabric,
        checkpoint=checkpoint,
        data=data,
        progress=progress,
    )

    rows = np.sort(numpy_rng(seed, "noise").permutation(cells.shape[0])[:NOISE_CELLS])
    x, _ = cell_features(cells[rows], panel, settings, standardiser=standardiser, raw=raw)
    axes = None if signal is None else signal.axes
    some_cells, nearest = seen_by_network(x, along(x, axes), encoder, config), None
    if config.geometry.uses_nearest and encoder is not None:
        shown = random_rows(spots, rng=numpy_rng(seed, "nearest"), limit=NEAREST_OF)
        some = torch.from_numpy(np.concatenate([views.rows[s].start + rows for s, rows in enumerate(shown)]))
        coords = torch.from_numpy(np.concatenate(canonical))
        nearest = NearestSpots(encoder.embed(views.clean(some)), coords[some], views.group[some], some)
        draw, some_cells = draw_embedded, with_embedding(some_cells, x, encoder)
        set_reach(nearest, fit, draw, list(canonical), some_cells, seed=seed)
    noise = Ensemble(fit.members, nearest).noise(some_cells, seed=seed) if len(fit.members) > 1 else 0.0
    checks, confidence = examine(
        fit,
        draw,
        views,
        list(canonical),
        seed=seed,
        titles=inputs.titles,
        nearest=nearest,
        noise=noise,
    )
    pulls = config.expression.pull > 0 and config.geometry.inputs == "expression" and signal is None
    history = fit.history | ({f"encoder/{k}": v for k, v in embedded.history.items()} if embedded else {})
    return Fitted(
        panel=panel,
        raw=raw,
        standardiser=standardiser,
        signal=axes,
        pull=Pull.fit(mean_views(views, seed=seed), config.expression.pull) if pulls else None,
        encoder=encoder,
        network=Ensemble(fit.members, nearest).eval(),
        slides=_keep_slides(draw, list(canonical), list(frames), seed=seed),
        confidence=confidence,
        checks=checks,
        history=history,
        warnings=inputs.warnings,
        embedding=embedded.summary() | {"reach": float(nearest.reach) if nearest else None}
        if embedded
        else {},
        remembered=Remembered.of(spots, cells, forms=inputs.forms, raw=raw),
    )


def choose_panel(
    spots: Sequence[sparse.csr_matrix],
    places: Sequence[NDArray[np.float64]],
    cells: sparse.csr_matrix,
    genes: NDArray[Any],
    config: Config,
    *,
    raw: bool,
) -> tuple[Panel, NDArray[np.int64]]:
    """The panel that a run on these inputs has, and its columns in ``genes``."""
    known = spots_that_choose(places, len(genes), config)
    chosen = [counts if rows.all() else counts[rows] for counts, rows in zip(spots, known, strict=True)]
    where = [coords[rows] for coords, rows in zip(places, known, strict=True)]
    return build_panel(chosen, where, cells, genes=genes, config=config.panel, raw=raw)


def spots_that_choose(
    slides: Sequence[NDArray[np.float64]], n_genes: int, config: Config
) -> list[NDArray[np.bool_]]:
    """The spots of each slide (n_i,) that genes are chosen by: on one slide of a whole transcriptome, none that is held out.

    Of thousands of genes, those that seem spatial on a few hundred spots are so partly by chance: neighbours that are alike in
    a gene by chance help to choose it, and then tell each other's place, as no cell's do. Slides do not tell of each other so,
    and where one is missed as a whole, it is the judge.
    """
    known = np.ones(sum(map(len, slides)), dtype=bool)
    if len(slides) == 1 and n_genes > WHOLE_TRANSCRIPTOME:
        canonical = [canonicalise(coords)[0] for coords in slides]
        unseen = held_out(canonical, config, seed=child_seed(config.seed, "geometry"))
        known = ~unseen if 2 * unseen.sum() < len(unseen) else known
    return np.split(known, np.cumsum([len(coords) for coords in slides])[:-1])


def mean_views(views: SpotViews, *, seed: int) -> Tensor:
    """The mean (m, G) of several views of each of some spots, or of all."""
    spots = torch.randperm(views.n_spots, generator=torch_rng(seed, "pull"))[:MEAN_VIEWS_OF].sort().values
    total = torch.zeros(len(spots), views.n_genes)
    for view in range(MEAN_VIEWS):
        total += views.draw(spots, torch_rng(seed, "pull", view))
    return total / MEAN_VIEWS


def _keep_slides(
    draw: Draw, slides: list[NDArray[np.float64]], frames: list[Frame], *, seed: int
) -> list[Slide]:
    starts = np.cumsum([0, *map(len, slides)])
    kept = []
    for s, (coords, frame) in enumerate(zip(slides, frames, strict=True)):
        rng = numpy_rng(seed, "kept spots", s)
        chosen = np.sort(rng.permutation(len(coords))[:FOOTPRINT])
        anchors = np.sort(rng.permutation(len(chosen))[:ANCHORS])
        index = torch.from_numpy(starts[s] + chosen[anchors])
        pitch = spot_pitch(coords) * np.sqrt(len(coords) / len(chosen))
        features = draw(index, torch_rng(seed, "anchors", s))
        kept.append(Slide(coords[chosen], anchors, features, frame, float(pitch)))
    return kept
