"""The experiments of ``gears bench`` by name."""

from __future__ import annotations

from spatialgears.bench import (
    cell_check,
    choices,
    embedding,
    filling,
    imputation,
    kept_out_genes,
    label_transfer,
    many_cells,
    overview,
    patches,
    refiner,
    registration,
    scaling,
    speed,
    thresholds,
    way,
)
from spatialgears.bench.comparisons import COMPARISONS
from spatialgears.bench.fitted import ONE_PRESET, WITH_PEERS
from spatialgears.bench.request import Experiment

_BY_SEED = ONE_PRESET | {"seeds"}
_LIMITS = {"time_limit", "memory_limit", "threads"}
_SPEED = frozenset({"against", "data", "task", "pairs", "values", *_LIMITS})
_PEERS = {"peer_source", "peer_cache", "accept_licence"}

EXPERIMENTS: dict[str, Experiment] = {
    **{comparison.name: comparison.experiment for comparison in COMPARISONS},
    "patch-size": patches.experiment(
        "patch-size",
        "patches of 384 to 4,096 cells, one fitted model (the paper's figure 6)",
        patches.patch_size,
    ),
    "stitching": patches.experiment(
        "stitching",
        "patches weighted by reliability or equally, one fitted model (the paper's Table 3)",
        patches.stitching,
    ),
    "way": way.WAY,
    "training": way.TRAINING,
    "embedding": Experiment(
        "position and mixing in stage A's embedding (the paper's figure 7); -m ablations: by term",
        _BY_SEED | {"task"},
        embedding.run,
    ),
    "refiner": Experiment(
        "the generator with and without diffusion: noise, steps, averaged samples (the paper's Table 2)",
        _BY_SEED,
        refiner.run,
    ),
    "filling": Experiment("accuracy and spacing by strength of even filling", _BY_SEED, filling.run),
    "cell-check": Experiment(
        "whether the check on cells by kept-out genes predicts accuracy, beside the check on held-out spots",
        _BY_SEED | {"task"},
        cell_check.run,
    ),
    "choices": Experiment(
        "what is chosen after training, by kept-out genes of the cells instead: accuracy as run, so chosen, and at best",
        _BY_SEED | {"task"},
        choices.run,
    ),
    "kept-out-genes": Experiment(
        "dissociated cells without known places: genes that were kept out, read from the cells placed nearest",
        WITH_PEERS | {"seeds"},
        kept_out_genes.run,
    ),
    "impute": Experiment(
        "genes that were kept out, predicted at the spots by sg.tl.impute, beside simple references and peers",
        WITH_PEERS | {"task"},
        imputation.run,
    ),
    "transfer": Experiment(
        "layers of cells by sg.tl.transfer and cell types per spot by sg.tl.abundance, beside simple references and peers",
        WITH_PEERS | {"task"},
        label_transfer.run,
    ),
    "many-cells": Experiment(
        "time and memory of these functions up to 100,000 cells, at 5,000 spots",
        frozenset({"sizes", *_LIMITS}),
        many_cells.run,
    ),
    "thresholds": Experiment(
        "figures behind the thresholds of noise among cells and of several sections in one file",
        ONE_PRESET,
        thresholds.run,
    ),
    "registration": Experiment(
        "distance of registered cells from their true positions, in spot pitches",
        ONE_PRESET,
        registration.run,
    ),
    "scaling": Experiment(
        "time, memory and accuracy from 10,000 to a million cells, and of training by spots",
        frozenset({"method", "values", "sizes", *_LIMITS, *_PEERS}),
        scaling.run,
    ),
    "speed": Experiment(
        "time, memory and accuracy beside an earlier version of the code, run in turn",
        _SPEED | {"retry"},
        speed.speed,
    ),
    "throughput": Experiment(
        "two runs side by side against one after the other; with --against also of an earlier version",
        _SPEED,
        speed.throughput,
    ),
    "estimates": Experiment(
        "time and memory of a run beside what gears check expects of it",
        _SPEED - {"against", "pairs"},
        speed.estimates,
    ),
    "tables": Experiment(
        "tables of all rows in the output folder, and two pictures of them; runs nothing",
        frozenset(),
        overview.run,
    ),
}
