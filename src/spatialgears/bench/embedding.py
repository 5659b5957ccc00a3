"""Position and mixing in stage A's embedding (the paper's figure 7).

Cells are placed by their nearest spots in an embedding, and their distances are compared with the true ones. The
true positions of cells are used for this score only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.decomposition import PCA

from spatialgears import datasets
from spatialgears._version import __version__
from spatialgears.bench import figures, protocols, sets
from spatialgears.bench.comparisons import some_of
from spatialgears.bench.methods import PRESETS
from spatialgears.bench.presets import configured
from spatialgears.bench.protocols import Task
from spatialgears.bench.references import coords_of, shared_genes
from spatialgears.bench.request import Outcome, Request, Tell
from spatialgears.bench.store import Store
from spatialgears.bench.tables import plain_table
from spatialgears.config import Config
from spatialgears.errors import InputError
from spatialgears.expression.normalise import dense, log_normalise
from spatialgears.expression.panel import build_panel
from spatialgears.expression.reference import knn_places, reference_encoder
from spatialgears.expression.training import EncoderFit, train_encoder
from spatialgears.expression.views import cell_features
from spatialgears.geometry.nearest import nearest_places
from spatialgears.metrics import mixing, spearman
from spatialgears.runtime.seeds import numpy_rng
from spatialgears.runtime.threads import threads

#: Terms of stage A, one at a time: those of the default turned off, and those of the paper turned on.
ABLATIONS: Mapping[str, Sequence[str]] = {
    "default": (),
    "start, untrained": ("max_steps=1",),
    "without local alignment": ("local_alignment=0",),
    "without thinning": ("thinning=false",),
    "without gene weights": ("gene_weights=none",),
    "with adversaries": ("adversary=1", "slide_adversary=1", "grl_warmup_epochs=5", "grl_ramp_epochs=20"),
    "with MMD": ("mmd=20",),
    "with CORAL": ("coral=1",),
    "VICReg instead of the anchor": ("anchor=0", "lambda_inv=25", "lambda_var=25", "lambda_cov=1"),
}


def other_individual(_: Path | None, seed: int) -> Iterator[Task]:
    """Simulated cells of another individual on another platform."""
    tissue = datasets.simulate_tissue(n_cells=2000, spots=500, unpaired=True, seed=seed)
    yield protocols.of_tissue("embedding", "simulated, other individual", tissue)


SETS = sets.together(sets.MOUSE_ATLAS, sets.HER2ST["E"], sets.DLPFC, other_individual)
#: The ablations leave out the largest set.
ABLATED = sets.together(sets.MOUSE_ATLAS, sets.HER2ST["E"], other_individual)


def run(request: Request, tell: Tell) -> Outcome:
    """The table and figure of the presets that were asked for, or of the ablations of the default."""
    chosen = request.method or ["default"]
    if unknown := [name for name in chosen if name not in (*PRESETS, "ablations")]:
        raise InputError(
            f"embedding cannot run {', '.join(unknown)}: stage A is part of our presets.",
            f"Choose from {', '.join(PRESETS)}, or ablations.",
        )
    variants = {name: configured(name, request.values) for name in chosen if name in PRESETS}
    if "ablations" in chosen:
        for name, values in ABLATIONS.items():
            variants[name] = configured("default", [f"expression.{value}" for value in values]).with_values(
                request.values
            )
    data = other_individual if request.simulated else ABLATED if "ablations" in chosen else SETS
    tasks = some_of(request.task, partial(data, request.data))
    pictures: dict[str, Mapping[str, np.ndarray]] = {}
    with threads(request.threads):
        found = list(rows(tasks, variants, seeds=request.seeds, folder=request.out, pictures=pictures))
    changed = "".join(f", {value}" for value in request.values)
    return Outcome(
        f"### embedding: stage A{changed}\n\n{plain_table(found)}\n",
        found,
        {"embedding": figures.embedding(found), "embedding-pca": figures.before_after(pictures)},
    )


def measure(task: Task, config: Config, *, seed: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Train stage A on one task; score its embedding, the reference, and the mixing of slides and cells.

    The trained encoder is scored even where the guard would reject it.

    Spearman correlations of cells: ``spearman`` (nearest spots as the model weights them), ``five_by_cosine`` (mean of
    five spots), and for the reference ``reference`` (five by cosine) and ``reference_nearest``. On held-out spots:
    ``guard`` and ``guard_reference``. Mixing of slides and cells: ``entropy`` and ``ilisi`` in the embedding,
    ``entropy_before`` and ``ilisi_before`` in principal components of log-normalised expression. ``probe``, ``seconds``.
    Then the first two principal components ``before`` and ``after`` (n, 2) of as many profiles of each ``source`` (n,).
    """
    assert task.truth is not None
    genes = shared_genes([*task.slides, task.cells])
    slides = [sp.csr_matrix(slide[:, genes].X) for slide in task.slides]
    cells, coords = sp.csr_matrix(task.cells[:, genes].X), [coords_of(slide) for slide in task.slides]
    settings = config.expression.model_copy(update={"embedding": "encoder"})
    wide = settings.model_copy(update={"n_genes": settings.encoder_genes})
    start = time.perf_counter()
    panel, columns = build_panel(slides, coords, cells, genes=np.array(genes), config=wide)
    slides, cells = [x[:, columns] for x in slides], cells[:, columns]
    forced = config.model_copy(update={"expression": settings})
    fit: EncoderFit = train_encoder(
        slides, [cells], panel, coords=coords, config=forced, seed=seed, place=nearest_places
    )
    seconds = time.perf_counter() - start
    spots = [cell_features(x, panel, settings)[0] for x in slides]
    query = cell_features(cells, panel, settings)[0]
    reference = reference_encoder(torch.cat(spots))
    scores = {
        name: spearman(place([e.embed(x) for x in spots], coords, e.embed(query)), task.truth)
        for name, e, place in (
            ("spearman", fit.encoder, nearest_places),
            ("five_by_cosine", fit.encoder, knn_places),
            ("reference", reference, knn_places),
            ("reference_nearest", reference, nearest_places),
        )
    }
    over = "slides" if "slides" in fit.guard.encoder else "spots"
    rows, source = _equally_many([*slides, cells], seed=seed)
    joint = torch.cat([dense(log_normalise(x[some])) for x, some in zip([*slides, cells], rows, strict=True)])
    components = PCA(min(30, *joint.shape), random_state=0).fit_transform(joint.numpy())
    before = mixing(components, source)
    after = torch.cat([fit.encoder.embed(x[some]) for x, some in zip([*spots, query], rows, strict=True)])
    shown = {
        "before": components[:, :2],
        "after": PCA(2, random_state=0).fit_transform(after.numpy()),
        "source": source,
    }
    return {
        **scores,
        "guard": fit.guard.encoder[over],
        "guard_reference": fit.guard.reference[over],
        "entropy": fit.mixing["neighbour_entropy"],
        "ilisi": fit.mixing["ilisi"],
        "entropy_before": before["neighbour_entropy"],
        "ilisi_before": before["ilisi"],
        "probe": fit.probe,
        "seconds": seconds,
    }, shown


def _equally_many(
    sources: Sequence[sp.csr_matrix], *, seed: int, limit: int = 2000
) -> tuple[list[np.ndarray], np.ndarray]:
    """Random rows of each source, as many of each, and the number of the source of each row."""
    count = min(limit, *(x.shape[0] for x in sources))
    rng = numpy_rng(seed, "mixing before")
    rows = [rng.permutation(x.shape[0])[:count] for x in sources]
    return rows, np.repeat(np.arange(len(sources)), count)


def rows(
    tasks: Callable[[int], Iterable[Task]],
    variants: Mapping[str, Config],
    *,
    seeds: int,
    folder: Path,
    pictures: dict[str, Mapping[str, np.ndarray]],
) -> Iterator[dict[str, Any]]:
    """Means over seeds, one row per set and variant; measured runs are kept in ``folder``.

    ``tasks`` takes a seed and gives the sets. ``pictures`` is filled with the components of the first seed, by set and variant.
    """
    store = Store(folder)
    runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for seed in range(seeds):
        for task in tasks(seed):
            data = task.fingerprint()
            for name, config in variants.items():
                parts = ("embedding", data, config.expression.model_dump(mode="json"), seed)
                key = store.key(*parts, __version__)
                if (found := store.load(key)) is None:
                    scores, shown = measure(task, config, seed=seed)
                    found = {"key": key, **scores}
                    store.save(found, shown)
                pictures.setdefault(f"{task.name}, {name}", store.arrays(key))
                runs.setdefault((task.name, name), []).append(found)
    for (task_name, name), each in runs.items():
        means = {key: float(np.mean([run[key] for run in each])) for key in each[0] if key != "key"}
        spread = float(np.std([run["spearman"] for run in each]))
        yield {"set": task_name, "variant": name, "spearman": means.pop("spearman"), "sd": spread, **means}
