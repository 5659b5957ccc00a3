"""Training stage A (section 3.1 and appendix), freezing the encoder, and choosing between it and the reference."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from spatialgears.config import Config, ExpressionConfig
from spatialgears.expression.adversary import grl_coefficient
from spatialgears.expression.encoder import HIDDEN, Encoder
from spatialgears.expression.guard import Guard, run_guard
from spatialgears.expression.inputs import Inputs, gene_inputs, projected_inputs, random_rows
from spatialgears.expression.normalise import Matrix
from spatialgears.expression.objective import Batch, Objective
from spatialgears.expression.panel import Panel
from spatialgears.expression.probe import balanced_probe
from spatialgears.expression.reference import Place, knn_places, reference_encoder
from spatialgears.expression.start import svd_basis, weighted_start
from spatialgears.expression.views import CellViews, SpotViews
from spatialgears.metrics import mixing
from spatialgears.runtime.progress import Progress, silent
from spatialgears.runtime.seeds import child_seed, numpy_rng, owned_rng, torch_rng
from spatialgears.runtime.training import History, Phase, make_fabric, train

if TYPE_CHECKING:
    from lightning_fabric import Fabric

logger = logging.getLogger(__name__)

#: Profiles of each domain that a probe uses, and of each slide or batch on which mixing is measured.
PROBE_PROFILES, MIXED_PROFILES = 500, 2000
MIXING_K = 20  # neighbours that mixing is measured by
N_PROBES = 20  # probes in a training run
PROBE_EPOCHS = 10  # epochs between probes that may end it (the paper is silent)
MIXED = 0.58  # the paper's appendix: accuracy of the probe at which the adversary has done its work


@dataclass(frozen=True)
class EncoderFit:
    """The embedding that later stages use, and how good it is."""

    encoder: Encoder  # the chosen embedding, frozen: the trained encoder, or the reference
    guard: Guard  # both scores on held-out spots and the choice
    #: Balanced accuracy of telling spots from cells by neighbours in the trained embedding; 0.5 means perfectly mixed.
    probe: float
    mixing: dict[str, float]  # neighbour entropy and iLISI of slides and cells, in the chosen embedding
    history: History  # every weighted loss beside ``step``, and ``probe`` beside ``probe_step``

    def summary(self) -> dict[str, Any]:
        """What to write to meta.json and the report."""
        return {"guard": asdict(self.guard), "probe": self.probe, "mixing": self.mixing}


def train_encoder(
    slides: Sequence[Matrix],
    cells: Sequence[Matrix],
    panel: Panel,
    *,
    coords: Sequence[np.ndarray],
    config: Config,
    seed: int,
    raw: bool = True,
    fabric: Fabric | None = None,
    checkpoint: Path | None = None,
    data: str = "",
    progress: Progress = silent,
    place: Place = knn_places,
    wholes: Sequence[int] | None = None,
) -> EncoderFit:
    """Train the shared encoder f_theta, freeze it, and choose between it and the reference on held-out spots.

    ``slides`` and ``cells`` are counts (n_i, G) on the panel, or normalised values if they are not ``raw``: one matrix
    per slide, and one per batch of cells. ``coords`` (n_i, 2) serve the weights of components and the choice, for which
    ``place`` and ``wholes`` are as in :func:`run_guard`. At every probe a resumable file is written to the folder
    ``checkpoint``; one of other ``data`` is refused.
    """
    e = config.expression
    rng = numpy_rng(seed, "encoder rows")
    spot_rows, cell_rows = random_rows(slides, rng=rng), random_rows(cells, rng=rng)
    slides = [x[rows] for x, rows in zip(slides, spot_rows, strict=True)]
    coords = [np.asarray(xy)[rows] for xy, rows in zip(coords, spot_rows, strict=True)]
    cells = [x[rows] for x, rows in zip(cells, cell_rows, strict=True)]
    depths = np.concatenate([np.asarray(x.sum(1)).ravel() for x in cells])
    common: dict[str, Any] = {"config": e, "seed": seed, "raw": raw, "bank_bytes": 0}
    spots = SpotViews(slides, depths, panel, **common)
    singles = CellViews(cells, panel, **common)
    with owned_rng():
        torch.manual_seed(child_seed(seed, "encoder weights"))
        encoder, domains = _prepare(spots, singles, e, coords, seed)
        objective = Objective(encoder, (len(slides), len(cells)), e)
        training = _Training(objective, domains, config, seed, data)
        history = training.run(fabric or make_fabric(config), checkpoint, progress)
    encoder.freeze()
    measured = spots.clean()
    everyone = torch.arange(spots.n_spots)
    queries = spots.draw(everyone, torch_rng(seed, "guard views")) if spots.thins else measured
    guard = run_guard(
        encoder,
        reference_encoder(measured, seed=seed),
        known=[measured[rows] for rows in spots.rows],
        queries=[queries[rows] for rows in spots.rows],
        coords=coords,
        seed=seed,
        force=e.embedding,
        place=place,
        wholes=wholes,
    )
    chosen = encoder if guard.choice == "encoder" else reference_encoder(measured, seed=seed)
    embedded = [(views, chosen.embed(views.clean())) for views in (spots, singles)]
    sources = [z[rows] for views, z in embedded for rows in views.rows]
    return EncoderFit(chosen, guard, training.probe(encoder), _mixing(sources, seed), history)


def _mixing(sources: Sequence[Tensor], seed: int) -> dict[str, float]:
    """Mixing of slides and batches of cells (n_i, h), measured on equally many profiles of each."""
    count = min(MIXED_PROFILES, *(len(z) for z in sources))
    rng = numpy_rng(seed, "mixed profiles")
    rows = [z[torch.from_numpy(rng.permutation(len(z))[:count])] for z in sources]
    together = torch.cat(rows).numpy()
    return mixing(together, np.repeat(np.arange(len(sources)), count), k=min(MIXING_K, len(together) - 1))


def _prepare(
    spots: SpotViews, cells: CellViews, config: ExpressionConfig, coords: Sequence[np.ndarray], seed: int
) -> tuple[Encoder, tuple[Inputs, Inputs]]:
    """An untrained encoder, and its inputs from spots and cells: genes, or components with a linear start."""
    if not config.residual:
        return Encoder(spots.n_genes, config.embed_dim, hidden=HIDDEN), (
            gene_inputs(spots),
            gene_inputs(cells),
        )
    basis = svd_basis(spots.clean(), cells.clean(), seed=child_seed(seed, "basis"))
    domains = (
        projected_inputs(spots, basis, seed=seed),
        projected_inputs(cells, basis, seed=child_seed(seed, "cells")),
    )
    places = coords if config.gene_weights == "moran" else None
    known, others = domains
    start = weighted_start(known.clean, others.clean, config.embed_dim, slide=known.group, coords=places)
    encoder = Encoder(
        basis.shape[1],
        start.projection.shape[1],
        hidden=HIDDEN,
        basis=basis,
        start=start.projection,
        scale=start.scale,
    )
    return encoder, domains


@dataclass
class _Training:
    """How the encoder is trained, and when training ends early."""

    objective: Objective
    domains: tuple[Inputs, Inputs]
    config: Config
    seed: int
    data: str

    def __post_init__(self) -> None:
        self.per_epoch = -(-2 * len(self.domains[0].clean) // self.config.expression.batch_size)

    def run(self, fabric: Fabric, checkpoint: Path | None, progress: Progress) -> History:
        """Train the encoder in place; the history of every loss.

        It ends after ``epochs`` passes over the spots or ``max_steps``, and with an adversary as soon as a
        nearest-neighbour probe cannot tell the domains apart.
        """
        e = self.config.expression
        steps = min(e.epochs * self.per_epoch, e.max_steps)
        sizes = [len(domain.clean) for domain in self.domains]
        often = PROBE_EPOCHS * self.per_epoch if e.adversary else steps
        phase = Phase(
            name="encoder",
            title="encoder",
            objective=self.objective,
            optimizer=torch.optim.AdamW(self.objective.parameters(), lr=e.lr),
            steps=steps,
            inputs=partial(self.inputs, fabric),
            dropout_seed=partial(child_seed, self.seed, "encoder dropout"),
            model=self.objective.encoder,
            evaluate=lambda encoder: {"probe": self.probe(encoder)},
            every=max(1, min(often, steps // N_PROBES)),
            ended=self.ended,
            identity=f"{self.data} {self.seed} {sizes} {e.model_dump_json()}",
        )
        history = train(phase, fabric, self.config, checkpoint=checkpoint, progress=progress)
        self.objective.eval().cpu()
        return history

    def inputs(self, fabric: Fabric, step: int) -> tuple[Batch, float]:
        """A balanced batch (as many spots as cells; slides and batches of cells equally often), and alpha_GRL."""
        e, parts = self.config.expression, []
        generator = torch_rng(self.seed, "encoder batch", step, fabric.global_rank)
        for domain in self.domains:
            index = domain.draw(e.batch_size // 2, generator)
            parts.append((*domain.pair(index, generator), domain.clean[index], domain.group[index]))
        batch = Batch(*(torch.cat(column) for column in zip(*parts, strict=True)))
        alpha = grl_coefficient(step / self.per_epoch, warmup=e.grl_warmup_epochs, ramp=e.grl_ramp_epochs)
        return fabric.to_device(batch), alpha

    def ended(self, step: int, history: History) -> bool:
        """Whether the adversary, at full strength, has made the domains hard to tell apart."""
        e = self.config.expression
        ramped = e.adversary > 0 and step / self.per_epoch >= e.grl_warmup_epochs + e.grl_ramp_epochs
        mixed = ramped and history.get("probe", [1.0])[-1] <= MIXED
        if mixed:
            logger.info("spots and cells are mixed (probe %.3f) after %d steps", history["probe"][-1], step)
        return mixed

    @torch.no_grad()
    def probe(self, encoder: Encoder) -> float:
        """Balanced accuracy of telling spots from cells by their neighbours in the embedding."""
        samples, device = [], next(encoder.parameters()).device
        for number, domain in enumerate(self.domains):
            index = domain.draw(PROBE_PROFILES, torch_rng(self.seed, "probe", number)).unique()
            samples.append((encoder(domain.clean[index].to(device)) * encoder.scale).cpu())
        return balanced_probe(*samples)
