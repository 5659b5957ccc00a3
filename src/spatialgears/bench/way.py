"""What each step from the published method to ours is worth, and what training is worth.

Both experiments fit models that differ in a few values, and read each model in several ways: by the spots most similar to
each cell alone, by the generators alone in one pass, by both, and as users get it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from spatialgears.bench import sets
from spatialgears.bench.comparisons import some_of
from spatialgears.bench.fitted import readings
from spatialgears.bench.protocols import Task
from spatialgears.bench.request import Experiment, Outcome, Request, Tell
from spatialgears.bench.store import Row, Store
from spatialgears.bench.tables import plain_table
from spatialgears.config import Config, flat
from spatialgears.metrics import evaluate
from spatialgears.model import GEARS
from spatialgears.runtime.threads import threads

#: Overlap losses need pairs of minisets. Without them as many minisets are drawn one by one, so that a step sees as many spots.
OVERLAP = ("geometry.overlap_shape", "geometry.overlap_scale", "geometry.overlap_kl")
MINISETS = ("geometry.batch_size", "geometry.slide_batch")
#: Values of our preset that each step takes over; the last step takes all that are left.
STEPS: Mapping[str, tuple[str, ...]] = {
    "published": (),
    "spots thinned to the depth of cells": ("expression.thinning",),
    "profiles scaled to the depth of cells": ("expression.target_sum",),
    "genes standardised by slide and cells": ("expression.standardise",),
    "genes chosen and weighted by Moran's I and co-expression": (
        "expression.gene_weights",
        "expression.gene_agreement",
        "expression.gene_selection",
        "expression.n_genes",
        "expression.encoder_genes",
        "expression.min_detection",
    ),
    "no adversaries, MMD or CORAL": (
        "expression.adversary",
        "expression.slide_adversary",
        "expression.mmd",
        "expression.coral",
    ),
    "networks see expression, with a hidden layer and dropout": (
        "geometry.inputs",
        "geometry.hidden",
        "geometry.hidden_dropout",
        "geometry.input_dropout",
        "expression.signal",
        "expression.pull",
    ),
    "neighbourhood loss on the generator": ("geometry.gen_nca",),
    "minisets of the whole slide, one pass": ("supervision.pool", "assembly.mode"),
    "no overlap losses": (*OVERLAP, *MINISETS),
    "diffusion trained afterwards, for samples only": ("geometry.refiner_steps", "assembly.samples"),
    "temperature of neighbourhood losses, no losses on scale": (
        "geometry.nca",
        "geometry.nca_temperature",
        "geometry.nca_gate",
        "geometry.local_scale",
        "geometry.gen_scale",
    ),
    "sizes, weight decay and averaged weights": (
        "geometry.width",
        "geometry.context_blocks",
        "geometry.generator_blocks",
        "geometry.denoiser_blocks",
        "geometry.weight_decay",
        "geometry.ema",
        "geometry.batch_size",
        "supervision.n_min",
        "supervision.n_max",
    ),
    "cross-fitting, which decides the length of training": ("geometry.crossfit", "geometry.slide_steps"),
    "cells move to similar spots in our embedding": (
        "geometry.nearest",
        "expression.embedding",
        "expression.embed_dim",
        "expression.residual",
        "expression.lambda_inv",
        "expression.lambda_var",
        "expression.lambda_cov",
        "expression.anchor",
        "expression.local_alignment",
        "expression.grl_warmup_epochs",
        "expression.grl_ramp_epochs",
        "expression.max_steps",
        "expression.epochs",
        "expression.lr",
        "expression.batch_size",
    ),
    "cells spread over the footprint": (),
}
#: Parts of the published method that are put back alone, and what they are put into. Where held-out spots prefer the reference
#: embedding, terms of stage A would change nothing, so the trained one is used whatever they prefer.
BACK: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "ours, with overlap losses": ("cells spread over the footprint", STEPS["no overlap losses"]),
    "ours, with the trained embedding": ("cells spread over the footprint", ("expression.embedding",)),
    "the same, with adversaries, MMD and CORAL": (
        "ours, with the trained embedding",
        (
            *STEPS["no adversaries, MMD or CORAL"],
            "expression.grl_warmup_epochs",
            "expression.grl_ramp_epochs",
        ),
    ),
    "one generator, trained jointly with diffusion": (
        "sizes, weight decay and averaged weights",
        ("geometry.refiner_steps",),
    ),
}
#: Shorter training at both ends of the way, so that all of it can be run in half an hour.
SHORT: dict[str, Any] = {"geometry.steps": 200, "geometry.slide_steps": 150}
#: The published method leaves out no slide.
START: dict[str, Any] = {"geometry.slide_steps": 0}
#: Training steps of each generator; 0: as the preset has it.
LENGTHS = (10, 50, 150, 0)
_SHORT_ATLAS = sets.every_nth(4, sets.MOUSE_ATLAS)
WAY_SETS = sets.together(_SHORT_ATLAS, sets.HER2ST["E"])
LENGTH_SETS = sets.together(WAY_SETS, sets.DLPFC)
SCORES = ("spearman", "edge_auc", "shell_f1", "trust", "swd", "w1_knn")


def way(start: Config, end: Config) -> Iterator[tuple[str, Config]]:
    """The configurations of :data:`STEPS`, each with all steps before it, then those of :data:`BACK`."""
    theirs, ours = (flat(config.model_dump(mode="json")) for config in (start, end))
    found, now = {}, start
    for name, keys in STEPS.items():
        last = name == list(STEPS)[-1]
        found[name] = now = end if last else changed(now, keys, ours)
    for name, (step, keys) in BACK.items():
        found[name] = changed(found[step], keys, theirs)
    yield from found.items()


def changed(config: Config, keys: tuple[str, ...], values: Mapping[str, Any]) -> Config:
    """The configuration with the values of these keys; where pairs of minisets come or go, with as many minisets as before."""
    new = config.with_values({key: values[key] for key in keys})
    factor = (1 + config.geometry.pairs) / (1 + new.geometry.pairs)
    if factor == 1:
        return new
    old = flat(config.model_dump(mode="json"))
    return new.with_values({key: max(1, round(factor * old[key])) for key in MINISETS})


def lengths(config: Config) -> Iterator[tuple[str, Config]]:
    """The configuration with so many training steps at most; models that leave out a slide are trained as long."""
    for steps in LENGTHS:
        limit = steps or config.geometry.steps
        slide_steps = min(limit, config.geometry.slide_steps)
        values = {"geometry.steps": limit, "geometry.slide_steps": slide_steps}
        yield f"{steps} steps" if steps else "as in the preset", config.with_values(values)


def measure(task: Task, config: Config) -> Row:
    """Fit one model, and score every way to place the cells with it."""
    assert task.truth is not None
    start = time.perf_counter()
    model = GEARS(config).fit(list(task.slides), task.cells)
    row: Row = {"seconds": time.perf_counter() - start}
    with torch.no_grad():
        for name, layout in readings(model, task).items():
            scores = evaluate(layout(), task.truth)
            row[name] = {key: float(scores[key]) for key in SCORES}
    return row


def table(found: Mapping[str, Mapping[str, Row]]) -> list[dict[str, Any]]:
    """One line for each set and variant: Spearman of every reading, and all scores of what users get."""
    names = ("similar spots", "generators", "both", "without diffusion")
    return [
        {
            "set": task,
            "variant": variant,
            **{name: row[name]["spearman"] if name in row else None for name in names},
            **{
                f"as users get it: {key}" if key == "spearman" else key: row["as users get it"][key]
                for key in SCORES
            },
            "seconds": row["seconds"],
        }
        for task, rows in found.items()
        for variant, row in rows.items()
    ]


def experiment(
    answers: str, data: sets.Tasks, variants: Callable[[Request], Mapping[str, Config]], used: set[str]
) -> Experiment:
    """An experiment over variants; measured rows are kept, so that it continues where it was interrupted."""

    def run(request: Request, tell: Tell) -> Outcome:
        store = Store(request.out)
        found: dict[str, dict[str, Row]] = {}
        tasks = some_of(
            request.task, lambda seed: (sets.simulated if request.simulated else data)(request.data, seed)
        )
        for task in tasks(0):
            for name, config in variants(request).items():
                parts = ("way", task.fingerprint(), config.model_dump(mode="json"))
                with threads(config.threads):
                    row = store.once(*parts, make=partial(_named, task, name, config))
                found.setdefault(task.name, {})[name] = row
                tell(
                    f"{task.name} · {name}: {row['as users get it']['spearman']:.3f}, {row['seconds']:.0f} s"
                )
        rows = table(found)
        return Outcome(plain_table(rows) + "\n", rows)

    return Experiment(answers, frozenset({"data", "simulated", "values", "task", "threads", *used}), run)


def _named(task: Task, variant: str, config: Config) -> Row:
    """A row that says of itself what it is."""
    known = {"experiment": "way", "task": task.name, "variant": variant}
    return known | measure(task, config) | {"config": config.model_dump(mode="json")}


def _ends(request: Request) -> Mapping[str, Config]:
    ends = {"paper-small": SHORT | START, "default": SHORT}
    start, end = (
        request.config(preset).with_values({**short, "seed": 0}).with_values(request.values)
        for preset, short in ends.items()
    )
    return dict(way(start, end))


def _lengths(request: Request) -> Mapping[str, Config]:
    return dict(lengths(request.config(request.preset()).with_values({"seed": 0})))


WAY = experiment(
    "from the published method to ours, one step at a time, and parts of it put back; short training, one seed",
    WAY_SETS,
    _ends,
    set(),
)
TRAINING = experiment(
    "similar spots alone, generators alone and both, by training steps of a preset; one seed",
    LENGTH_SETS,
    _lengths,
    {"method"},
)
