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
from torch import Tensor

from spatialgears.config import Config
from spatialgears.geometry.heldout import Draw, HeldOutScore
from spatialgears.geometry.model import GeometryModel
from spatialgears.geometry.objective import Batch, Noise, Objective, Part, draw_noise
from spatialgears.runtime.progress import Progress, silent
from spatialgears.runtime.seeds import child_seed, owned_rng, torch_rng
from spatialgears.runtime.threads import side_by_side
from spatialgears.runtime.training import History, Phase, make_fabric, train
from spatialgears.supervision.folds import Folds
from spatialgears.supervision.minisets import MinisetSampler
from spatialgears.supervision.targets import DIM

if TYPE_CHECKING:
    from lightning_fabric import Fabric

SLIDE_VIEWS = 200  # minimum number of views per spot before early stopping on left-out slides
#: Share of the steps in which the learning rate rises, and largest norm of the gradient.
WARMUP, CLIP = 0.1, 1.0
#: Scores on a left-out slide that differ by less count as equal; the shorter training is chosen.
AS_GOOD = 0.005


@dataclass(frozen=True)
class GeometryFit:
    """A trained geometry model and its training history."""

    #: Models with averaged weights (the best on held-out spots, if there are any), in evaluation mode. The first has the
    #: refiner.
    members: list[GeometryModel]
    #: ``"<phase>/<name>"`` to a list: every weighted loss, ``loss`` and ``lr`` beside ``step``, and ``heldout`` (and one per
    #: slide) beside ``heldout_step``. Phases are ``joint``, or ``generator`` and ``refiner``, and ``fold-<i>`` when
    #: cross-fitting.
    history: History
    sigma_data: float  # sigma_data,resid; 1 without a refiner
    #: Cross-fitted models, each trained without some of the spots, if there are any.
    folds: TrainedFolds | None = None
    #: Models that each leave out one of several donors, or slides of one donor, if ``slide_steps`` asks for them.
    slide_folds: TrainedFolds | None = None

    @property
    def model(self) -> GeometryModel:
        """The first member."""
        return self.members[0]


@dataclass(frozen=True)
class TrainedFolds:
    """Cross-fitting: generators, and for every spot the one that was trained without it."""

    models: list[GeometryModel]  # in evaluation mode
    #: (n_spots,) number of the model that was trained without the spot, or at least ``len(models)`` if there is none.
    fold: np.ndarray


def train_geometry(
    draw: Draw,
    slides: Sequence[np.ndarray],
    n_features: int,
    *,
    folds: Folds,
    config: Config,
    seed: int,
    noise: Tensor | None = None,
    fabric: Fabric | None = None,
    checkpoint: Path | None = None,
    data: str = "",
    workers: int = 1,
    progress: Progress = silent,
) -> GeometryFit:
    """Train context encoder, generator and refiner on minisets of spots.

    With ``refiner_steps = 0`` all are trained jointly, as in the paper. Otherwise the generator is trained first, and the
    refiner on its residuals. With ``crossfit`` there are several generators, each trained without some of the spots, and the
    refiner is trained on residuals of held-out spots, or of slides that were left out. With several slides, models that each
    leave out a donor, or a slide where there is one donor, are trained first (``slide_steps``). Their scores on what is left
    out decide how long the others are trained, because the score on spots of known slides keeps rising long after the score
    on a new slide has peaked.

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
        Its ``supervision`` and ``geometry`` parts apply here.
    seed
        Decides everything random.
    noise
        As of :class:`~spatialgears.geometry.model.GeometryModel`.
    fabric
        The engine; created from the configuration when omitted.
    checkpoint
        Folder for one resumable file per phase, written every ``eval_every`` steps; none are written when omitted.
    data
        Identifies the data: a checkpoint of different data is refused.
    workers
        Models trained in parallel, in a thread each. It does not change the result.
    progress
        Called after every step as ``progress("geometry <phase>", done, total, losses)``; models that each leave out some
        spots are one phase, ``fold`` or ``slide``.
    """
    geometry = config.geometry
    slides = [np.asarray(slide, dtype=np.float64) for slide in slides]
    phases = _Phases(
        draw, slides, config, seed, fabric or make_fabric(config), checkpoint, data, workers, progress, noise
    )
    two_phases = geometry.refiner != "none" and geometry.refiner_steps > 0
    part: Part = "joint" if geometry.refiner != "none" and not two_phases else "generator"
    crossfitted = slide_folds = None
    if two_phases:  # the refiner is trained on spots that a generator was trained without, or on all
        fold, count = (folds.whole, folds.left_out) if folds.left_out else (folds.part, folds.crossfit)
        unseen = [phases.sampler(fold == i) for i in range(count)] or [phases.sampler()]
    with owned_rng():
        model = phases.new_model(n_features)
        if folds.left_out:
            slide_folds = phases.without_slides(n_features, folds)
        if folds.crossfit:
            crossfitted = phases.crossfit(model, n_features, folds)
        else:
            phases.history |= phases.run(part, part, model, geometry.steps, _Minisets([phases.sampler()]))
        if two_phases:
            judges = slide_folds or crossfitted
            minisets = _Minisets(unseen, judges.models if judges else None)
            phases.history |= phases.run("refiner", "refiner", model, geometry.refiner_steps, minisets)
    for one in (model, *(m for some in (crossfitted, slide_folds) if some for m in some.models)):
        one.cpu()  # everything after training runs there
    members = crossfitted.models if crossfitted else [model]
    return GeometryFit(members, phases.history, float(model.sigma_data), crossfitted, slide_folds)


@dataclass(frozen=True)
class _Minisets:
    """Samplers of a phase's minisets; when cross-fitting, steps take the folds, and their models, in turn."""

    samplers: list[MinisetSampler]
    models: list[GeometryModel] | None = None


@dataclass
class _Phases:
    """What the phases of training share."""

    draw: Draw
    slides: Sequence[np.ndarray]
    config: Config
    seed: int
    fabric: Fabric
    checkpoint: Path | None
    data: str
    workers: int
    progress: Progress
    noise: Tensor | None = None

    def __post_init__(self) -> None:
        self.history: History = {}
        self.coords = torch.from_numpy(np.concatenate(self.slides)).float()
        self.pairs = self.config.geometry.pairs

    def new_model(self, n_features: int, *, name: str = "") -> GeometryModel:
        """An untrained model. One that leaves out spots, named by what it leaves out, has no refiner."""
        geometry = self.config.geometry
        if name:
            geometry = geometry.model_copy(update={"refiner": "none"})
        torch.manual_seed(child_seed(self.seed, "geometry", name))
        return GeometryModel(n_features, DIM, geometry, noise=self.noise)

    def sampler(self, keep: np.ndarray | None = None) -> MinisetSampler:
        return MinisetSampler(self.slides, self.config.supervision, keep=keep)

    def crossfit(self, first: GeometryModel, n_features: int, folds: Folds) -> TrainedFolds:
        """Train ``first`` and others, each without a different part of the spots, on which it is evaluated."""
        models = [first, *(self.new_model(n_features, name=f"fold-{i}") for i in range(1, folds.crossfit))]
        return self._train_without(
            "fold", models, folds.part, self._steps_by_left_out(folds.wholes) or self._enough()
        )

    def _enough(self) -> int:
        """Steps in which every spot is seen ``views`` times, at most ``steps``."""
        g = self.config.geometry
        return min(g.steps, max(1, round(self._steps_for(g.views)))) if g.views else g.steps

    def _steps_by_left_out(self, wholes: int) -> int:
        """Early stopping: training steps chosen on left-out donors or slides (one of ``wholes`` each); 0 without any.

        As many passes over the spots as the models with a left-out slide needed to come within ``AS_GOOD`` of their best score.
        Little is memorised before each spot was seen ``SLIDE_VIEWS`` times. Training therefore continues until then, for at
        most ``steps``, while the score stays that good.
        """
        found = [
            scores
            for key, scores in self.history.items()
            if key.startswith("slide-") and key.endswith("/heldout")
        ]
        if not found:
            return 0
        mean, steps = np.mean(found, axis=0), np.asarray(self.history["slide-0/heldout_step"])
        n_slides, sets = len(self.slides), self.config.geometry.sets
        seen = n_slides * (wholes - 1) / wholes  # slides of such a model, on average
        at = steps * (n_slides / seen) * (sets(round(seen)) / sets(n_slides))
        good = np.flatnonzero(mean >= mean.max() - AS_GOOD)
        enough = self._steps_for(SLIDE_VIEWS)
        late = good[at[good] >= enough]
        if len(late):
            return round(at[late[0]])
        longest = max(self.config.geometry.steps, at[-1])
        return round(min(enough, longest) if good[-1] == len(at) - 1 else at[good[-1]])

    def _steps_for(self, views: int) -> float:
        """Steps in which every spot is seen about ``views`` times."""
        s, sets = self.config.supervision, self.config.geometry.sets(len(self.slides))
        shown = sets * (s.n_min + s.n_max) / 2 * (1 + self.pairs)  # spots, in one step
        return views * len(self.coords) / shown

    def without_slides(self, n_features: int, folds: Folds) -> TrainedFolds:
        """Train models that each leave out a donor, or a slide of one donor: for the self-check and the length of training."""
        models = [self.new_model(n_features, name=f"slide-{i}") for i in range(folds.left_out)]
        return self._train_without("slide", models, folds.whole, self.config.geometry.slide_steps)

    def _train_without(
        self, name: str, models: list[GeometryModel], fold: np.ndarray, steps: int
    ) -> TrainedFolds:
        """Train each model without its fold, and evaluate it there."""

        def one(i: int, progress: Progress) -> History:
            score = HeldOutScore(self.draw, self.slides, fold == i, seed=self.seed)
            seen = _Minisets([self.sampler(fold != i)])
            return self.run(f"{name}-{i}", "generator", models[i], steps, seen, score, progress)

        alone = self.config.compile or self.fabric.world_size > 1 or self.fabric.device.type != "cpu"
        workers = 1 if alone else self.workers
        for history in side_by_side(
            one, len(models), workers=workers, stage=f"geometry {name}", progress=self.progress
        ):
            self.history |= history
        return TrainedFolds(models, fold)

    def batch(
        self, minisets: _Minisets, step: int, generator: torch.Generator, own: torch.Generator
    ) -> Batch:
        """The sets of one step that this process computes, on the device; ``own`` decides the views of spots."""
        which = step % len(minisets.samplers)
        sampler, shared = minisets.samplers[which], None
        count = max(self.config.geometry.sets(sampler.n_slides), self.fabric.world_size)  # one each at least
        share = slice(self.fabric.global_rank, None, self.fabric.world_size)
        if self.pairs:
            twins = sampler.draw_pairs(count, generator)
            index, mask = (
                torch.cat([getattr(twins.first, a)[share], getattr(twins.second, a)[share]])
                for a in ("index", "mask")
            )
            shared = twins.shared[share]
        else:
            sets = sampler.draw(count, generator)
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
        progress: Progress | None = None,
    ) -> History:
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

        dropout_seed = partial(child_seed, self.seed, "dropout", name)

        def inputs(step: int) -> tuple[Batch, Noise | None, torch.Generator | None]:
            own = generator = torch_rng(
                self.seed, "minisets", name, step, 0
            )  # all processes draw the same sets
            if fabric.global_rank:
                own = torch_rng(self.seed, "minisets", name, step, fabric.global_rank)
            batch = self.batch(minisets, step, generator, own)
            if part != "generator":
                return batch, self._noise(batch, step / steps, own), None
            if self.config.compile:  # torch's own dropout, by the global generator
                return batch, None, None
            return batch, None, torch.Generator().manual_seed(dropout_seed(step, fabric.global_rank))

        phase = Phase(
            name=name,
            title=f"geometry {name}",
            objective=objective,
            optimizer=adam,
            steps=steps,
            inputs=inputs,
            dropout_seed=dropout_seed,
            model=model,
            evaluate=score,
            every=g.eval_every,
            rate=lambda share: g.lr * one_cycle(share),
            clip=CLIP,
            ema=g.ema,
            identity=self._identity(name),
        )
        history = train(
            phase, fabric, self.config, checkpoint=self.checkpoint, progress=progress or self.progress
        )
        model.sigma_data.copy_(fabric.broadcast(model.sigma_data))  # each process has measured its own
        model.requires_grad_(True).eval()
        return {f"{name}/{key}": values for key, values in history.items()}

    def _noise(self, batch: Batch, progress: float, generator: torch.Generator) -> Noise:
        shape, pairs = (*batch.x.shape[:2], DIM), batch.shared is not None
        return self.fabric.to_device(draw_noise(shape, progress=progress, pairs=pairs, generator=generator))

    def _identity(self, name: str) -> str:
        """What a checkpoint must agree with to be resumed."""
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
