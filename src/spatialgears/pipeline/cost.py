"""Expected time and memory of a run, from the sizes of its inputs and its configuration.

Time is the multiply-adds of the networks (three passes per training step; for each cell one of every member, those with
dropout, and one per sample and half Heun step) over the speed of the cores, plus fixed costs per step, per cell and per
entry of the input. Memory is the larger of one training step and one pass over cells, beside the data. The
:class:`Coefficients` were fitted to runs on an otherwise idle machine; a busy one takes longer.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from spatialgears.assembly.assemble import cells_in_one_pass
from spatialgears.assembly.measure import BATCH
from spatialgears.config import Config
from spatialgears.errors import InputError
from spatialgears.expression.encoder import HIDDEN
from spatialgears.expression.inputs import MAX_PROFILES
from spatialgears.expression.signal import uses_directions
from spatialgears.expression.start import COMPONENTS
from spatialgears.expression.views import BANK_BYTES, MAX_VIEWS
from spatialgears.geometry.ensemble import ENSEMBLE_DRAWS
from spatialgears.geometry.training import SLIDE_VIEWS
from spatialgears.pipeline import cell_check, gene_reading
from spatialgears.pipeline.features import DENSE_CELLS
from spatialgears.runtime.memory import memory_limits
from spatialgears.runtime.threads import usable_threads
from spatialgears.supervision.folds import models_left_out
from spatialgears.supervision.targets import DIM

DIRECTIONS = 60  # of expression on a whole transcriptome; 20 to 60 were seen


@dataclass(frozen=True)
class Coefficients:
    """What the cost model is made of; measured on two cores, one place to calibrate it again."""

    start_seconds: float = 8.0  # importing, reading, writing
    panel_seconds: float = 2e-8  # per spot and shared gene
    step_seconds: float = 0.01  # per training step, whatever its size
    macs_per_second: float = 3.5e10  # multiply-adds on one core in these small networks
    core_gain: float = 0.5  # n cores are n to this power as fast as one
    refine_factor: float = 3.0  # graphs and landmarks of the denoiser, over its multiply-adds
    solve_seconds: float = 4e-6  # per cell and step of the global solve
    profile_seconds: float = 1e-6  # per gene of a spot or cell that stage A learns from: views, guard
    cell_seconds: float = 1e-4  # per cell: features, support, spacing, neighbour graph, writing
    rehearsed_share: float = 0.5  # of the steps allowed to models with a left-out slide, those they used
    base_bytes: float = 7.5e8  # the interpreter with torch and scanpy
    stored_bytes: float = 24.0  # per stored value of the inputs: read, validated, and a copy under way
    count_bytes: float = 2.0  # per entry of spots by shared genes: sparse, some copies
    profile_bytes: float = 20.0  # per gene of a spot or cell that stage A learns from
    view_bytes: float = 12.0  # per entry of spots by panel genes: dense, some copies
    cell_bytes: float = 800.0  # per cell: places, radii, the neighbour graph, names
    pass_bytes: float = 14000.0  # per cell of one pass through the networks
    activation_bytes: float = 4.0  # per value kept for the backward pass


@dataclass(frozen=True)
class Cost:
    """What a run is expected to take on this machine."""

    seconds: float
    peak_bytes: int
    stages: Mapping[str, float] = field(default_factory=dict)  # seconds of each stage that reports progress


def require_memory(cost: Cost) -> None:
    """Refuse work that needs more memory than the machine has, or than a limit on this process leaves."""
    needed = cost.peak_bytes * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # all processes of this machine
    where, room = min(memory_limits().items(), key=lambda item: item[1])
    if needed > room:
        raise InputError(
            f"This takes about {needed / 1e9:.1f} GB of memory; {where} {max(room, 0) / 1e9:.1f} GB.",
            "Raise the limit, use a larger machine, or fewer cells, fewer genes (--set expression.n_genes=500), "
            "or --preset quick.",
        )


def predict_cost(
    n_spots: int,
    n_cells: int,
    n_genes: int,
    config: Config,
    *,
    stored: int = 0,
    n_slides: int = 1,
    wholes: int | None = None,
    shared_genes: int = 0,
) -> Cost:
    """Expected time and memory of a run, linear in spots, cells, genes and training steps.

    Without spots nothing is trained, without cells nothing placed. ``n_genes`` is the size of the panel, ``shared_genes``
    of slides and cells: on whole transcriptomes the networks see a few directions instead of genes. ``stored`` counts the
    values of all inputs that are not zero. ``wholes`` are the donors, or slides of one donor, that can be left out; by
    default as many as slides. With several, the number of training steps is determined first.
    """
    wholes, cores = wholes or n_slides, config.threads or usable_threads().number
    width_in = _width(n_genes, config, shared_genes)
    left_out = models_left_out(wholes) if config.geometry.slide_steps else 0
    members = max(config.geometry.generators(left_out), 1)
    stages: dict[str, float] = {}
    if n_spots:
        seen = (n_genes, width_in)
        stages = _training(
            n_spots, n_cells, seen, config, cores=cores, n_slides=n_slides, wholes=wholes, left_out=left_out
        )
    placing = _placing(n_cells, width_in, config, cores=cores, members=members)
    c = Coefficients()
    seconds = c.start_seconds + c.panel_seconds * n_spots * n_genes + sum(stages.values()) + placing.all_cells
    if n_cells:
        stages["check on cells"] = placing.check
        stages["samples" if placing.samples else "solve"] = placing.all_cells
    elements = config.geometry.sets(n_slides) * _set_size(n_spots, config) * (1 + config.geometry.pairs)
    at_once = _pass_bytes(n_cells, n_genes, width_in, config, passes=min(cores, 1 + placing.samples))
    learning = _learning_bytes(
        n_spots, n_cells, n_genes, width_in, config, elements=elements, members=members
    )
    entries = n_spots * n_genes
    data = (c.count_bytes + c.view_bytes) * entries + min(4 * MAX_VIEWS * entries, BANK_BYTES)
    data += c.stored_bytes * stored + c.cell_bytes * n_cells
    return Cost(seconds, int(c.base_bytes + data + max(at_once, *learning)), stages)


class _Placing(NamedTuple):
    all_cells: float  # seconds
    check: float  # seconds of the check on cells
    samples: int  # of each cell


def _placing(n_cells: int, width_in: int, config: Config, *, cores: int, members: int) -> _Placing:
    """Time to place the cells by ``members`` generators, and to check them."""
    c, a, g = Coefficients(), config.assembly, config.geometry
    speed = c.macs_per_second * cores**c.core_gain
    generator, denoiser = _macs(width_in, config)
    draws = max(ENSEMBLE_DRAWS, 2 * members) if g.crossfit else 0
    refine = members * generator + 2 * c.refine_factor * a.steps * denoiser
    best = members * generator if a.samples else refine  # without samples the best guess is refined itself
    samples = a.samples if denoiser and a.steps and n_cells <= a.sample_cells else 0
    solve, passes = (a.solve_steps * c.solve_seconds, a.coverage) if a.mode == "patches" else (0.0, 1)
    work = draws * generator + passes * (best + samples * refine)
    each = work / speed + (1 + samples) * solve + c.cell_seconds
    checked = min(n_cells, cell_check.MOST_CELLS)
    check = gene_reading.PARTS * checked * (members * generator / speed + c.cell_seconds)
    return _Placing(n_cells * each, check, samples)


def _pass_bytes(n_cells: int, n_genes: int, width_in: int, config: Config, *, passes: int) -> float:
    """Memory of so many passes of cells through the networks at once."""
    c, a = Coefficients(), config.assembly
    room = cells_in_one_pass(n_genes, a)
    together = n_cells if n_cells <= room or a.mode == "one-shot" else min(room, a.core_cells)
    if a.mode == "patches":
        together = min(n_cells, BATCH * a.patch_size)
    needed = together * (c.pass_bytes + 8 * width_in) * passes
    if config.geometry.inputs == "embedding":
        needed += c.view_bytes * min(n_cells, DENSE_CELLS) * n_genes
    return needed


def _learning_bytes(
    n_spots: int, n_cells: int, n_genes: int, width_in: int, config: Config, *, elements: float, members: int
) -> tuple[float, float]:
    """Memory of the networks with a training step, whose sets hold ``elements`` spots in all; and of stage A."""
    c, g = Coefficients(), config.geometry
    networks = 4 * sum(_macs(width_in, config))  # as many weights as multiply-adds per element
    if not n_spots:
        return networks * members, 0.0
    blocks = g.context_blocks + g.generator_blocks + g.denoiser_blocks
    kept = 8 * (width_in + g.hidden) + 40 * g.width * blocks
    copies = members + 6  # in training: weights, gradients, two moments, mean, best
    encoder = c.profile_bytes * _profiles(n_spots, n_cells, config) * n_genes
    return elements * kept * c.activation_bytes + networks * copies, encoder


def _width(n_genes: int, config: Config, shared_genes: int) -> int:
    """Features of a spot or cell as the geometry network sees it."""
    if config.geometry.inputs == "embedding":
        return config.expression.embed_dim
    return min(n_genes, DIRECTIONS) if uses_directions(config.expression, shared_genes) else n_genes


def _macs(width_in: int, config: Config) -> tuple[int, int]:
    """Multiply-adds per element of context encoder with generator, and of the denoiser."""
    g = config.geometry
    block = 12 * g.width**2 + 4 * g.inducing * g.width  # of one ISAB
    enter = width_in * g.hidden + g.hidden * g.width if g.hidden else width_in * g.width
    generator = enter + (g.context_blocks + g.generator_blocks) * block
    return generator, g.denoiser_blocks * block if g.refiner != "none" else 0


def _set_size(n_spots: int, config: Config) -> float:
    """Mean size of a miniset."""
    s = config.supervision
    return (min(s.n_min, n_spots) + min(s.n_max, n_spots)) / 2


def _profiles(n_spots: int, n_cells: int, config: Config) -> int:
    """Spots and cells that stage A learns from; none where its embedding is not used."""
    if not config.geometry.uses_embedding:
        return 0
    return min(n_spots, MAX_PROFILES) + min(n_cells, MAX_PROFILES)


def _training(
    n_spots: int,
    n_cells: int,
    seen: tuple[int, int],
    config: Config,
    *,
    cores: int,
    n_slides: int,
    wholes: int,
    left_out: int,
) -> dict[str, float]:
    """Seconds of each training stage, by the name under which it reports progress, in order of execution.

    Wide networks use all ``cores``. Of the others, one is trained on each. Beside those of all spots there are ``left_out``
    models, each without one of the ``wholes``.
    """
    c, e, g = Coefficients(), config.expression, config.geometry
    speed, workers = (c.macs_per_second * cores**c.core_gain, 1) if g.wide else (c.macs_per_second, cores)
    n_genes, width_in = seen
    generator, denoiser = _macs(width_in, config)
    size = _set_size(n_spots, config)
    elements, pairs = g.sets(n_slides) * size * (1 + g.pairs), 6 * size * DIM
    enough = g.views * n_spots / elements if g.views and g.crossfit else g.steps
    steps, folds = min(g.steps, enough), max(g.generators(left_out), 1)
    share = 1.0  # of the sets of a step that a model has which leaves out a slide
    if left_out:
        share = g.sets(round(n_slides * (wholes - 1) / wholes)) / g.sets(n_slides)
        others = wholes / (wholes - 1) * share
        least = min(SLIDE_VIEWS * n_spots / elements, max(g.steps, g.slide_steps * others))
        found = max(c.rehearsed_share * g.slide_steps * others, least) if g.crossfit else g.steps
        steps = found
    joint = denoiser if not g.refiner_steps else 0
    work = 3 * elements * (generator + joint + pairs) / speed
    step = c.step_seconds + work
    stages: dict[str, float] = {}
    if profiles := _profiles(n_spots, n_cells, config):
        layers = [min(n_genes, COMPONENTS) if e.residual else n_genes, *HIDDEN, e.embed_dim]
        encoder = sum(left * right for left, right in itertools.pairwise(layers))
        per_epoch = math.ceil(2 * min(n_spots, MAX_PROFILES) / e.batch_size)
        batches = min(e.epochs * per_epoch, e.max_steps)
        stages["encoder"] = batches * (c.step_seconds + 12 * e.batch_size * encoder / speed)
        stages["encoder"] += c.profile_seconds * profiles * n_genes
    if left_out:
        rounds = math.ceil(left_out / workers)
        stages["geometry slide"] = rounds * g.slide_steps * (c.step_seconds + share * work)
    if g.crossfit:
        stages["geometry fold"] = math.ceil(folds / workers) * steps * step
    else:
        stages[f"geometry {'joint' if joint else 'generator'}"] = steps * step
    if denoiser and g.refiner_steps:
        each = c.refine_factor * 3 * elements * (generator + denoiser + pairs) / speed
        each *= 0.3 if g.crossfit else 1  # sets of unseen spots are small
        stages["geometry refiner"] = g.refiner_steps * (c.step_seconds + each)
    return stages
