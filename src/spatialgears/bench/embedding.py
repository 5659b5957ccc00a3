"""Does stage A keep place? Nearest neighbours in its embedding, against the reference, and one row per term.

Cells are placed by their nearest spots in an embedding and distances are compared with the true ones. Coordinates of
the cells are used for this score alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.decomposition import PCA

from spatialgears import datasets
from spatialgears.bench import protocols
from spatialgears.bench.references import coords_of, shared_genes
from spatialgears.bench.store import Store
from spatialgears.config import Config
from spatialgears.datasets import Tissue
from spatialgears.expression.normalise import dense, log_normalise
from spatialgears.expression.panel import build_panel
from spatialgears.expression.reference import knn_places, reference_encoder
from spatialgears.expression.training import EncoderFit, train_encoder
from spatialgears.expression.views import cell_features
from spatialgears.geometry.nearest import nearest_places
from spatialgears.metrics import mixing, spearman
from spatialgears.runtime.seeds import numpy_rng

#: Sets of the table; ``simulated`` is another individual's cells, on another platform.
SETS = ("mouse_atlas", "her2st_E", "dlpfc", "simulated")
#: Those of the ablation: without the largest.
ABLATED = ("mouse_atlas", "her2st_E", "simulated")

#: One row per term, as changes of the default: what is taken away, and what the paper has and the default has not.
ABLATION: Mapping[str, Sequence[str]] = {
    "default": (),
    "start alone": ("max_steps=1",),
    "without local alignment": ("local_alignment=0",),
    "without thinning": ("thinning=false",),
    "without gene weights": ("gene_weights=none",),
    "with adversaries": ("adversary=1", "slide_adversary=1", "grl_warmup_epochs=5", "grl_ramp_epochs=20"),
    "with MMD": ("mmd=20",),
    "with CORAL": ("coral=1",),
    "VICReg for anchor": ("anchor=0", "lambda_inv=25", "lambda_var=25", "lambda_cov=1"),
}


def tissue_of(name: str, root: Path | None, seed: int) -> Tissue:
    """A set of the registry, or simulated unpaired tissue."""
    if name == "simulated":
        return datasets.simulate_tissue(n_cells=2000, spots=500, unpaired=True, seed=seed)
    return datasets.load(name, root)


def measure(tissue: Tissue, config: Config, *, seed: int) -> dict[str, Any]:
    """Train stage A on one tissue and score its embedding, the reference, and how sources mix.

    Parameters
    ----------
    tissue
        Slides and cells in raw counts, and the cells' true places.
    config
        Its ``expression`` part is measured; the trained encoder is scored whatever the guard says.
    seed
        Of the training.

    Returns
    -------
    On cells ``spearman`` and, with the mean of five spots by cosine instead, ``five_by_cosine``; ``reference``, which
    takes five by cosine, and ``reference_nearest``, which compares as the model does; ``guard`` and ``guard_reference``
    on held-out spots; ``entropy`` and ``ilisi`` of slides and cells in the embedding, ``entropy_before`` and
    ``ilisi_before`` in the principal components of plain log-normalised expression; ``probe``; ``seconds``.
    """
    genes = shared_genes([*tissue.slides, tissue.cells])
    slides = [sp.csr_matrix(slide[:, genes].X) for slide in tissue.slides]
    cells, coords = sp.csr_matrix(tissue.cells[:, genes].X), [coords_of(slide) for slide in tissue.slides]
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
    truth = np.asarray(tissue.truth.obsm["spatial"], dtype=np.float64)[:, :2]
    reference = reference_encoder(torch.cat(spots))
    scores = {
        name: spearman(place([e.embed(x) for x in spots], coords, e.embed(query)), truth)
        for name, e, place in (
            ("spearman", fit.encoder, nearest_places),
            ("five_by_cosine", fit.encoder, knn_places),
            ("reference", reference, knn_places),
            ("reference_nearest", reference, nearest_places),
        )
    }
    over = "slides" if "slides" in fit.guard.encoder else "spots"
    before = mixing_before([*slides, cells], seed=seed)
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
    }


def mixing_before(sources: Sequence[sp.csr_matrix], *, seed: int, limit: int = 2000) -> dict[str, float]:
    """Mixing of sources (n_i, G) in 30 principal components of their log-normalised counts, as many of each."""
    count = min(limit, *(x.shape[0] for x in sources))
    rng = numpy_rng(seed, "mixing before")
    rows = [log_normalise(x[rng.permutation(x.shape[0])[:count]]) for x in sources]
    joint = np.concatenate([dense(x).numpy() for x in rows])
    components = PCA(min(30, *joint.shape), random_state=0).fit_transform(joint)
    return mixing(components, np.repeat(np.arange(len(sources)), count))


def rows(
    names: Iterable[str],
    variants: Mapping[str, Sequence[str]],
    *,
    root: Path | None,
    seeds: int,
    folder: Path,
) -> Iterator[dict[str, Any]]:
    """Means over seeds, one row for each set and variant; variants are ``key=value`` of the expression stage.

    What was measured is kept in ``folder``, so that a table that was stopped goes on.
    """
    store = Store(folder)
    for name in names:
        for title, values in variants.items():
            config = Config().with_values([f"expression.{value}" for value in values])
            runs = []
            for seed in range(seeds):
                tissue = tissue_of(name, root, seed)
                data = protocols.of_tissue("embedding", name, tissue).fingerprint()
                runs.append(
                    store.once(
                        "embedding",
                        data,
                        config.expression.model_dump(mode="json"),
                        seed,
                        make=partial(measure, tissue, config, seed=seed),
                    )
                )
            means = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
            spread = float(np.std([run["spearman"] for run in runs]))
            yield {"set": name, "variant": title, "spearman": means.pop("spearman"), "sd": spread, **means}
