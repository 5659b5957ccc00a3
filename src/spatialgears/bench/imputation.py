"""Genes that the slide did not show, predicted at its spots from placed cells, beside simple references.

Genes of the slide are kept out in folds. Cells are placed without them, and :func:`spatialgears.tl.impute` predicts them. The
metrics are those of Li et al. (Nature Methods 2022): for each gene Pearson correlation, structural similarity, RMSE of z-scores
and Jensen-Shannon divergence over the spots. Rows are kept in the output folder, so that an interrupted experiment continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from anndata import AnnData
from numpy.typing import NDArray
from scipy import sparse
from scipy.spatial.distance import jensenshannon
from sklearn.model_selection import KFold
from sklearn.neighbors import NearestNeighbors

from spatialgears import datasets
from spatialgears.analysis import impute
from spatialgears.bench import sets
from spatialgears.bench.harness import Limits
from spatialgears.bench.mappings import mapped, shares
from spatialgears.bench.methods import PeerMethod
from spatialgears.bench.presets import title
from spatialgears.bench.references import shared_genes
from spatialgears.bench.request import Outcome, Request, Tell
from spatialgears.bench.store import Row, Store
from spatialgears.bench.tables import plain_table
from spatialgears.config import Config
from spatialgears.expression.normalise import log_normalise
from spatialgears.expression.panel import WHOLE_TRANSCRIPTOME, morans_i, typical_depth
from spatialgears.model import GEARS
from spatialgears.pipeline.gene_reading import NEAREST, correlations, nearest_cells, soft_mapping
from spatialgears.runtime.seeds import numpy_rng
from spatialgears.validate.counts import form_of

FOLDS = 5
MOST_SPATIAL = 300  # genes of a whole transcriptome of which a fold is kept out
#: Public sets: name, heading, folds that are measured, and cells at most, drawn at random. Peers take minutes for each fold.
SETS = (
    ("drosophila", "Drosophila", 5, 10_000),
    ("mouse_atlas", "Mouse Atlas, 3,000 cells", 2, 3000),
    ("her2st_A", "her2st A1, spots of A3 as cells", 2, 10_000),
    ("dlpfc", "DLPFC 151673, 1,000 spots of 151675 as cells", 1, 1000),
)
NEIGHBORS = 50  # cells of the kNN references
SAME_FACTOR = 0.3  # least cosine of principal vectors that SpaGE keeps
METRICS = ("r", "ssim", "rmse", "js")
Scores = dict[str, list[float]]  # by metric, one for each gene
#: Slide without the kept-out genes and placed cells in; weights (spots, cells) out, by which genes of the cells are averaged.
Method = Callable[[AnnData, AnnData], Any]


@dataclass(frozen=True, eq=False)
class Fold:
    """One slide, cells, and the genes that are kept out."""

    name: str
    number: int
    slide: AnnData
    cells: AnnData
    kept_out: Sequence[str]

    @property
    def seen(self) -> AnnData:
        """The slide without the genes that are kept out."""
        return self.slide[:, ~self.slide.var_names.isin(self.kept_out)].copy()

    @property
    def counts(self) -> bool:
        """Whether the slide has counts."""
        return form_of(sparse.csr_matrix(self.slide.X)) == "counts"

    @property
    def truth(self) -> NDArray[np.float32]:
        """(spots, genes) what was measured: log-normalised counts, or values as they are."""
        return _of(self.slide, self.kept_out)

    def scored(self, weights: Any) -> Scores:
        """Scores of the cells read by weights (spots, cells), as logs or as normalised counts: the better of the two."""
        logs = _of(self.cells, self.kept_out)
        return self.best(weights @ logs, weights @ np.expm1(logs))

    def best(self, *read: NDArray[Any]) -> Scores:
        """Scores of the best of several predictions (spots, genes), so that no method is behind for its scale."""
        return max((scores(self.truth, one) for one in read), key=lambda one: np.mean(one["r"]))

    def row(self, found: dict[str, Scores]) -> Row:
        """A row with the scores of some methods."""
        return {"name": self.name, "fold": self.number, "genes": list(self.kept_out), "scores": found}


def folds(name: str, slide: AnnData, cells: AnnData, first: int = FOLDS) -> Iterator[Fold]:
    """The first of five folds of the genes; of a whole transcriptome, of its most spatial genes."""
    genes = np.array(shared_genes([slide, cells]))
    if len(genes) > WHOLE_TRANSCRIPTOME:
        moran = morans_i(slide[:, genes].X, slide.obsm["spatial"], raw=form_of(slide.X) == "counts")
        genes = genes[np.sort(np.argsort(-moran, kind="stable")[:MOST_SPATIAL])]
    parts = KFold(FOLDS, shuffle=True, random_state=0).split(genes)
    for number, (_, out) in enumerate(islice(parts, first)):
        yield Fold(name, number, slide, cells, genes[out].tolist())


def public(root: Path | None) -> Iterator[Fold]:
    """Dissociated cells of the fly embryo, Mouse Atlas, and sections of tumour and cortex whose spots serve as cells."""
    for name, heading, first, most in SETS:
        tissue = datasets.load(name, root)
        some = np.sort(numpy_rng(0, "imputed from", name).permutation(tissue.cells.n_obs)[:most])
        yield from folds(heading, tissue.slides[0], tissue.cells[some].copy(), first)


def simulated(_: Path | None) -> Iterator[Fold]:
    """Simulated tissue, easy and with a strong shift between platforms."""
    for shift in (0.0, sets.STRONG_SHIFT):
        tissue = datasets.simulate_tissue(seed=0, shift=shift, **sets.SIMULATED)
        yield from folds(f"simulated, shift {shift:g}", tissue.slides[0], tissue.cells)


def run(request: Request, tell: Tell) -> Outcome:
    """Mean scores of every method on every set."""
    preset, peers = request.preset_and_peers("quick")
    config = request.config(preset).with_values(["assembly.samples=0"])  # no samples are looked at
    store, rows = Store(request.out), list[Row]()
    for fold in (simulated if request.simulated else public)(request.data):
        if request.task and not any(text in fold.name for text in request.task):
            continue
        parts = ("impute", fold.name, fold.number, list(fold.kept_out))
        row = store.once(*parts, config.model_dump(mode="json"), make=partial(measured, fold, config))
        tell(f"{fold.name}, fold {fold.number + 1}: r {np.mean(row['scores'][OURS]['r']):.3f}")
        rows.append(row)
        for peer in peers:
            row = store.once(*parts, peer.identity(), make=partial(by_peer, fold, peer, request.limits))
            found = row["scores"].get(peer.name)
            tell(f"  {peer.name}: " + (row["reason"] if found is None else f"r {np.mean(found['r']):.3f}"))
            rows.append(row)
    table = summary(rows)
    text = f"### impute: kept-out genes, mean over genes, {title(preset, config)}\n\n{plain_table(table)}\n"
    return Outcome(text, {"summary": table, "rows": rows})


def measured(fold: Fold, config: Config) -> Row:
    """Fit and place without the genes, predict them by every method, and score each gene."""
    seen = fold.seen
    model = GEARS(config).fit([seen], fold.cells, normalised=not fold.counts)
    cells = model.reconstruct(fold.cells, normalised=not fold.counts).to_adata(fold.cells, copy=True)
    ours = impute(cells, seen, fold.kept_out, basis="X_gears_slide")
    alike = impute(cells, seen, fold.kept_out, place=0)
    found = {name: scores(fold.truth, np.nan_to_num(one.X)) for name, one in ((OURS, ours), (ALIKE, alike))}
    found |= {name: fold.scored(method(seen, cells)) for name, method in METHODS.items()}
    return fold.row(found) | {"expected": ours.var["score"].tolist(), "settings": ours.uns["gears_impute"]}


def by_peer(fold: Fold, peer: PeerMethod, limits: Limits) -> Row:
    """The same for a peer: what it predicts, or what its mapping does."""
    given, used = mapped(peer, [fold.seen], fold.cells, limits, hidden=fold.kept_out)
    found: dict[str, Scores] = {}
    if "imputed" in given:
        found[peer.name] = fold.best(given["imputed"], np.log1p(1e4 * given["imputed"]))
    elif "mapping" in given:  # some divide by the sum of a spot, some do not
        read = (fold.scored(weights) for weights in (shares(given["mapping"], 0).T, given["mapping"].T))
        found[peer.name] = max(read, key=lambda one: np.mean(one["r"]))
    return fold.row(found) | used


def summary(rows: Sequence[Row]) -> list[Row]:
    """Mean of each score over all genes of a set; of ours also the score that was expected without seeing the gene."""
    table = []
    for name in dict.fromkeys(row["name"] for row in rows):
        mine = [row for row in rows if row["name"] == name]
        for method in dict.fromkeys(method for row in mine for method in row["scores"]):
            own = [row for row in mine if method in row["scores"]]
            means = {
                key: float(np.mean(np.concatenate([row["scores"][method][key] for row in own])))
                for key in METRICS
            }
            table.append(
                {
                    "set": name,
                    "genes": sum(len(row["genes"]) for row in own),
                    "method": method,
                    **means,
                    "expected r": float(np.mean(np.concatenate([row["expected"] for row in own])))
                    if method == OURS
                    else None,
                    "seconds": float(np.sum([row["seconds"] for row in own]))
                    if "seconds" in own[0]
                    else None,
                }
            )
    return table


def scores(truth: NDArray[Any], predicted: NDArray[Any]) -> Scores:
    """Pearson r, structural similarity, RMSE of z-scores and Jensen-Shannon divergence of each gene (columns) over spots."""
    truth, predicted = (np.asarray(x, dtype=np.float64) for x in (truth, predicted))
    x, y = (part / np.maximum(part.max(0), 1e-12) for part in (truth, predicted))
    centre = [part - part.mean(0) for part in (x, y)]
    covariance, variances = (centre[0] * centre[1]).mean(0), [(part**2).mean(0) for part in centre]
    ssim = (
        (2 * x.mean(0) * y.mean(0) + 0.01**2)
        * (2 * covariance + 0.03**2)
        / ((x.mean(0) ** 2 + y.mean(0) ** 2 + 0.01**2) * (sum(variances) + 0.03**2))
    )
    z = [part / np.maximum(part.std(0), 1e-12) for part in centre]
    share = [np.clip(part, 0, None) + 1e-12 for part in (truth, predicted)]
    found = {
        "r": correlations(truth, predicted),
        "ssim": ssim,
        "rmse": np.sqrt(np.square(z[0] - z[1]).mean(0)),
        "js": np.nan_to_num(
            jensenshannon(*share, axis=0)
        ),  # of equal ones, rounding may leave a root of less than zero
    }
    return {name: np.round(values, 4).tolist() for name, values in found.items()}


def expression(adata: AnnData) -> NDArray[np.float32]:
    """Log-normalised expression (n, G); values that are no counts as they are."""
    x = sparse.csr_matrix(adata.X)
    raw = form_of(x) == "counts"
    return np.asarray((log_normalise(x, typical_depth(x)) if raw else x).toarray(), dtype=np.float32)


def both(slide: AnnData, cells: AnnData) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Standardised expression of the shared genes in spots and cells."""
    genes = shared_genes([slide, cells])
    parts = [expression(one)[:, one.var_names.get_indexer(genes)] for one in (slide, cells)]
    x, y = ((part - part.mean(0)) / np.where(part.std(0) > 0, part.std(0), 1) for part in parts)
    return x, y


def _of(adata: AnnData, genes: Sequence[str]) -> NDArray[np.float32]:
    return expression(adata)[:, adata.var_names.get_indexer(genes)]


def placed_cells(slide: AnnData, cells: AnnData) -> sparse.csr_matrix:
    """The mean of the cells that were placed nearest to each spot."""
    spots = np.asarray(slide.obsm["spatial"], float)
    return nearest_cells(cells.obsm["X_gears_slide"], spots, min(NEAREST, cells.n_obs // 10))


def direct_weights(slide: AnnData, cells: AnnData, *, by_cell: bool = False) -> NDArray[np.float32]:
    """Soft cosine mapping, as in the check on cells; the weights of each spot sum to one, or those of each cell."""
    x, y = both(slide, cells)
    products, a, b = x @ y.T, np.square(x).sum(1), np.square(y).sum(1)
    if not by_cell:
        return soft_mapping(products, a, b)
    return soft_mapping(products.T, b, a).T


def nearest_profiles(slide: AnnData, cells: AnnData) -> sparse.csr_matrix:
    """The mean of the cells that are most similar to each spot by cosine."""
    _, index = _nearest(*both(slide, cells))
    return _rows(np.full(index.shape, 1 / index.shape[1]), index, cells.n_obs)


def spage(slide: AnnData, cells: AnnData) -> sparse.csr_matrix:
    """Domain-adapted kNN after SpaGE (Abdelaal et al. 2020): principal vectors that both share, then weighted neighbours."""
    x, y = both(slide, cells)
    n = max(2, min(50, x.shape[1] // 2))
    factors = [np.linalg.svd(part, full_matrices=False)[2][:n] for part in (x, y)]  # (n, genes) each
    _, cosine, right = np.linalg.svd(factors[0] @ factors[1].T)
    shared = (right @ factors[1])[cosine > SAME_FACTOR]  # principal vectors of the cells
    distance, index = _nearest(x @ shared.T, y @ shared.T)
    weights = np.where(distance < 1, 1 - distance / np.maximum(distance.sum(1, keepdims=True), 1e-12), 0)
    return _rows(shares(weights, 1), index, cells.n_obs)


def mean(slide: AnnData, cells: AnnData) -> NDArray[np.float32]:
    """The mean of all cells, everywhere."""
    return np.full((slide.n_obs, cells.n_obs), 1 / cells.n_obs, np.float32)


def _nearest(x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    k = min(NEIGHBORS, len(y) // 10)
    found: tuple[NDArray[np.float64], NDArray[np.int64]] = (
        NearestNeighbors(n_neighbors=k, metric="cosine").fit(y).kneighbors(x)
    )
    return found


def _rows(weights: NDArray[Any], index: NDArray[np.int64], n: int) -> sparse.csr_matrix:
    """The matrix (m, n) with weights (m, k) in the columns of an index (m, k)."""
    ends = np.arange(0, index.size + 1, index.shape[1])
    return sparse.csr_matrix((weights.ravel(), index.ravel(), ends), (len(index), n))


OURS, ALIKE = "spatialgears: impute", "likeness alone"
METHODS: dict[str, Method] = {
    "nearest placed cells": placed_cells,
    "direct mapping": direct_weights,
    "kNN": nearest_profiles,
    "SpaGE (our implementation)": spage,
    "mean": mean,
}
