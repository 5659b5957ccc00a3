"""Training stage C: the generator, the refiner, or both (section 3.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from spatialgears.config import Config
from spatialgears.geometry.heldout import Draw, HeldOutScore
from spatialgears.geometry.model import GeometryModel
from spatialgears.geometry.objective import Batch, Noise, Objective, Part, draw_noise
from spatialgears.runtime.progress import Progress, silent
from spatialgears.runtime.seeds import child_seed, owned_rng, torch_rng
from spatialgears.runtime.training import History, Phase, make_fabric, train
from spatialgears.supervision.folds import Folds
from spatialgears.supervision.minisets import MinisetSampler
from spatialgears.supervision.targets import DIM

if TYPE_CHECKING:
    from lightning_fabric import Fabric

SLIDE_VIEWS = (
    200  # views of each spot, about, before training may end because a left-out slide is placed no better
)
WARMUP, CLIP = (
    0.1,
    1.0,
)  # share of the steps in which the learning rate rises, and largest norm of the gradient
AS_GOOD = 0.005  # scores on a missed slide that differ by less are alike, and the shorter training is taken


@dataclass(frozen=True)
class GeometryFit:
    """A trained geometry model and how it got there.

    Attributes
    ----------
    members
        Models with averaged weights (the best on held-out spots, when there are any), in evaluation mode. The first
        carries the refiner.
    history
        ``"<phase>/<name>"`` to a list: every weighted loss, ``loss`` and ``lr`` beside ``step``, and
        ``heldout`` (and one per slide) beside ``heldout_step``. Phases are ``joint``, or ``generator`` and
        ``refiner``, and ``fold-<i>`` when cross-fitting.
    sigma_data
        sigma_data,resid; 1 without a refiner.
    folds
        Models that have each not seen some of the spots, when cross-fitting.
    slide_folds
        Models that have each not seen one of several slides, when ``slide_steps`` asks for them.
    """

    members: list[GeometryModel]
    history: History
    sigma_data: float
    folds: TrainedFolds | None = None
    slide_folds: TrainedFolds | None = None

    @property
    def model(self) -> GeometryModel:
        """The first member."""
        return self.members[0]


@dataclass(frozen=True)
class TrainedFolds:
    """Cross-fitting: generators, and for every spot the one that has not seen it.

    Attributes
    ----------
    models
        In evaluation mode.
    fold
        (n_spots,) number of the model that was trained without the spot, or more than there are models.
    """

    models: list[GeometryModel]
    fold: np.ndarray


def train_geometry(
    draw: Draw,
    slides: Sequence[np.ndarray],
    n_features: int,
    *,
    folds: Folds,
    config: Config,
    seed: int,
    fabric: Fabric | None = None,
    checkpoint: Path | None = None,
    data: str = "",
    progress: Progress = silent,
) -> GeometryFit:
    """Train context encoder, generator and refiner on minisets of spots.

    With ``refiner_steps = 0`` all are trained jointly, as in the paper; otherwise the generator comes first,
    and the refiner is then fitted on its residuals. With ``crossfit`` there are several generators, each
    trained without some of the spots, and the residuals are those of spots not seen. With several slides, models
    that each miss one are trained first (``slide_steps``): what they reach on the slide they miss tells how long
    to train, since spots of a slide that was seen are placed better and better long after those of a new one.

    Parameters
    ----------
    draw
        ``draw(index, generator)``: a fresh random view (..., f) of the spots ``index`` (...,).
    slides
        Canonical coordinates of each slide, (n_spots, 2); spots are numbered through the slides in order.
    n_features
        f.
    folds
        Which spots are held out of which model.
    config
        Its ``supervision`` and ``geometry`` parts decide everything here.
    seed
        Owns all randomness.
    fabric
        The engine; made from the configuration when omitted.
    checkpoint
        Folder for one resumable file per phase, written every ``eval_every`` steps; none are written when
        omitted.
    data
        Names the data: a checkpoint of other data is refused.
    progress
        Called after every step as ``progress("geometry <phase>", done, total, losses)``.
    """
    geometry = config.geometry
    slides = [np.asarray(slide, dtype=np.float64) for slide in slides]
    loop = _Loop(draw, slides, config, seed, fabric or make_fabric(config), checkpoint, data, progress)
    two_phases = geometry.refiner != "none" and geometry.refiner_steps > 0
    part: Part = "joint" if geometry.refiner != "none" and not two_phases else "generator"
    crossfitted = slide_folds = None
    fold, count = folds.part, folds.crossfit
    if two_phases:  # what the refiner learns from: spots that a generator has missed, or all
        unseen = [loop.sampler(fold == i) for i in range(count)] or [loop.sampler()]
    with owned_rng():
        model = loop.new_model(n_features)
        if folds.left_out:
            slide_folds = loop.without_slides(n_features, folds)
        if count:
            crossfitted = loop.crossfit(model, n_features, folds)
        else:
            loop.run(part, part, model, geometry.steps, _Minisets([loop.sampler()]))
        if two_phases:
            minisets = _Minisets(unseen, crossfitted.models if crossfitted else None)
            loop.run("refiner", "refiner", model, geometry.refiner_steps, minisets)
    for one in (model, *(m for some in (crossfitted, slide_folds) if some for m in some.models)):
        one.cpu()  # everything after training is done there
    members = crossfitted.models if crossfitted else [model]
    return GeometryFit(members, loop.history, float(model.sigma_data), crossfitted, slide_folds)


@dataclass(frozen=True)
class _Minisets:
    """Where a phase's sets come from; when cross-fitting, steps take the folds, and their models, in turn."""

    samplers: list[MinisetSampler]
    models: list[GeometryModel] | None = None


@dataclass
class _Loop:
    """What the phases of a run share."""

    draw: Draw
    slides: Sequence[np.ndarray]
    config: Config
    seed: int
    fabric: Fabric
    checkpoint: Path | None
    data: str
    progress: Progress

    def __post_init__(self) -> None:
        self.history: History = {}
        self.coords = torch.from_numpy(np.concatenate(self.slides)).float()
        g = self.config.geometry
        self.pairs = g.pairs
        self.sets = g.sets(len(self.slides))

    def new_model(self, n_features: int, *, name: str = "") -> GeometryModel:
        """An untrained model; one that misses spots, named by what it misses, has no refiner."""
        geometry = self.config.geometry
        if name:
            geometry = geometry.model_copy(update={"refiner": "none"})
        torch.manual_seed(child_seed(self.seed, "geometry", name))
        return GeometryModel(n_features, DIM, geometry)

    def sampler(self, keep: np.ndarray | None = None) -> MinisetSampler:
        return MinisetSampler(self.slides, self.config.supervision, keep=keep)

    def crossfit(self, first: GeometryModel, n_features: int, folds: Folds) -> TrainedFolds:
        """``first`` and others, each trained without another part of the spots, and followed there."""
        models = [first, *(self.new_model(n_features, name=f"fold-{i}") for i in range(1, folds.crossfit))]
        return self._missing("fold", models, folds.part, self._rehearsed() or self._enough())

    def _enough(self) -> int:
        """Steps that show every spot ``views`` times, or all."""
        g = self.config.geometry
        return min(g.steps, max(1, round(self._steps_for(g.views)))) if g.views else g.steps

    def _rehearsed(self) -> int:
        """Steps that make as many passes over the spots as models needed that missed a slide; 0 without such.

        They count until the missed slide was first placed about as well as ever. Before spots have been seen
        ``SLIDE_VIEWS`` times little is learnt by heart, and training goes on until then, in at most ``steps``, as long
        as the missed slide is placed no worse.
        """
        found = [
            scores
            for key, scores in self.history.items()
            if key.startswith("slide-") and key.endswith("/heldout")
        ]
        if not found:
            return 0
        mean, steps = np.mean(found, axis=0), np.asarray(self.history["slide-0/heldout_step"])
        others = len(self.slides) / (len(self.slides) - 1)
        looks = steps * others
        good = np.flatnonzero(mean >= mean.max() - AS_GOOD)
        enough = self._steps_for(SLIDE_VIEWS)
        late = good[looks[good] >= enough]
        if len(late):
            return round(looks[late[0]])
        longest = max(self.config.geometry.steps, looks[-1])
        return round(min(enough, longest) if good[-1] == len(looks) - 1 else looks[good[-1]])

    def _steps_for(self, views: int) -> float:
        """Steps that show every spot so many times, about."""
        s = self.config.supervision
        shown = self.sets * (s.n_min + s.n_max) / 2 * (1 + self.pairs)  # spots, in one step
        return views * len(self.coords) / shown

    def without_slides(self, n_features: int, folds: Folds) -> TrainedFolds:
        """Models that have each missed a whole slide, for the self-check and the length of training."""
        models = [self.new_model(n_features, name=f"slide-{i}") for i in range(folds.left_out)]
        return self._missing("slide", models, folds.slide, self.config.geometry.slide_steps)

    def _missing(self, name: str, models: list[GeometryModel], fold: np.ndarray, steps: int) -> TrainedFolds:
        """Train each model without its fold, and follow it there."""
        for i, model in enumerate(models):
            score = HeldOutScore(self.draw, self.slides, fold == i, seed=self.seed)
            seen = _Minisets([self.sampler(fold != i)])
            self.run(f"{name}-{i}", "generator", model, steps, seen, score)
        return TrainedFolds(models, fold)

    def batch(
        self, minisets: _Minisets, step: int, generator: torch.Generator, own: torch.Generator
    ) -> Batch:
        """The share of this process in the sets of one step, on the device; ``own`` decides the views of spots."""
        which = step % len(minisets.samplers)
        sampler, shared = minisets.samplers[which], None
        share = slice(self.fabric.global_rank, None, self.fabric.world_size)
        if self.pairs:
            twins = sampler.draw_pairs(self.sets, generator)
            index, mask = (
                torch.cat([getattr(twins.first, a)[share], getattr(twins.second, a)[share]])
                for a in ("index", "mask")
            )
            shared = twins.shared[share]
        else:
            sets = sampler.draw(self.sets, generator)
            index, mask = sets.index[share], sets.mask[share]
        real = None if bool(mask.all()) else mask
        batch: Batch = self.fabric.to_device(Batch(self.draw(index, own), self.coords[index], real, shared))
        if minisets.models is None:
            return batch
        with torch.no_grad():
            return batch._replace(base=minisets.models[which](batch.x, batch.mask))

    def run(
        self,
        name: str,
        part: Part,
        model: GeometryModel,
        steps: int,
        minisets: _Minisets,
        score: HeldOutScore | None = None,
    ) -> None:
        """Train ``part`` of the model and leave it in evaluation mode, with its averaged or best weights."""
        g, fabric = self.config.geometry, self.fabric
        objective = Objective(model, part)
        adam = torch.optim.AdamW(
            [p for p in objective.parameters() if p.requires_grad],
            lr=g.lr,
            weight_decay=g.weight_decay,
            fused=self.config.precision
            != "16-mixed",  # a fused step undoes loss scaling itself, too late for clipping
        )
        if self.config.compile:
            objective.compile(dynamic=True)

        def inputs(step: int) -> tuple[Batch, Noise | None]:
            own = generator = torch_rng(
                self.seed, "minisets", name, step, 0
            )  # all processes draw the same sets
            if fabric.global_rank:
                own = torch_rng(self.seed, "minisets", name, step, fabric.global_rank)
            batch = self.batch(minisets, step, generator, own)
            return batch, None if part == "generator" else self._noise(batch, step / steps, own)

        phase = Phase(
            name=name,
            title=f"geometry {name}",
            objective=objective,
            optimizer=adam,
            steps=steps,
            inputs=inputs,
            dropout_seed=partial(child_seed, self.seed, "dropout", name),
            model=model,
            evaluate=score,
            every=g.eval_every,
            rate=lambda share: g.lr * one_cycle(share),
            clip=CLIP,
            ema=g.ema,
            identity=self._identity(name),
        )
        history = train(phase, fabric, self.config, checkpoint=self.checkpoint, progress=self.progress)
        model.sigma_data.copy_(fabric.broadcast(model.sigma_data))  # each process has measured its own
        model.requires_grad_(True).eval()
        self.history |= {f"{name}/{key}": values for key, values in history.items()}

    def _noise(self, batch: Batch, progress: float, generator: torch.Generator) -> Noise:
        shape, pairs = (*batch.x.shape[:2], DIM), batch.shared is not None
        return self.fabric.to_device(draw_noise(shape, progress=progress, pairs=pairs, generator=generator))

    def _identity(self, name: str) -> str:
        """What a checkpoint must agree with to be continued."""
        return " ".join(
            [
                name,
                self.data,
                str(self.seed),
                str([len(slide) for slide in self.slides]),
                self.config.expression.model_dump_json(),
                self.config.supervision.model_dump_json(),
                self.config.geometry.model_dump_json(),
            ]
        )


def one_cycle(progress: float) -> float:
    """Share of the peak learning rate: up along a cosine from 1/25 during the warm-up, then down to zero."""
    if progress < WARMUP:
        return 1 / 25 + (1 - 1 / 25) * (1 - math.cos(math.pi * progress / WARMUP)) / 2
    return (1 + math.cos(math.pi * (progress - WARMUP) / (1 - WARMUP))) / 2
