"""Simple reference methods that every table shows: slides and cells in, coordinates (n, 2) out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import scipy.sparse as sp
import torch
from anndata import AnnData
from torch import Tensor, nn

from spatialgears.config import ExpressionConfig
from spatialgears.expression.normalise import Matrix
from spatialgears.expression.panel import build_panel
from spatialgears.expression.reference import knn_places, nearest_mean, reference_encoder
from spatialgears.expression.views import BANK_BYTES, SpotViews, cell_features
from spatialgears.metrics.points import canonical, lay_on
from spatialgears.runtime.seeds import child_seed, numpy_rng, owned_rng, torch_rng

Draw = Callable[[Tensor, torch.Generator], Tensor]
#: Genes of the references. More than the model's panel, as weights make uninformative genes harmless.
N_GENES = 3000


def shared_genes(adatas: Sequence[AnnData]) -> list[str]:
    """Genes that all have, in the order of the first."""
    common = set.intersection(*(set(adata.var_names) for adata in adatas))
    return [gene for gene in adatas[0].var_names if gene in common]


def coords_of(slide: AnnData) -> np.ndarray:
    """Coordinates (n, 2) of a slide's spots, centred and scaled to unit RMS radius."""
    return canonical(np.asarray(slide.obsm["spatial"])[:, :2])


def views_of(
    slides: Sequence[AnnData], cells: AnnData, *, weights: str = "moran", seed: int = 0, bank: int = 0
) -> tuple[SpotViews, Tensor]:
    """Views of the spots, and features (n, G) of the cells, on the most spatial genes.

    ``bank`` is the number of bytes for views that are drawn in advance, for methods that draw often.
    """
    genes = shared_genes([*slides, cells])
    simple = {"n_genes": N_GENES, "gene_weights": weights, "gene_agreement": False}
    config = ExpressionConfig.model_validate(simple)
    counts: list[Matrix] = [sp.csr_matrix(slide[:, genes].X) for slide in slides]
    singles = sp.csr_matrix(cells[:, genes].X)
    panel, columns = build_panel(
        counts, [coords_of(slide) for slide in slides], singles, genes=np.array(genes), config=config
    )
    singles = singles[:, columns]
    depths = np.asarray(singles.sum(1)).ravel()
    views = SpotViews(
        [x[:, columns] for x in counts], depths, panel, config=config, seed=seed, bank_bytes=bank
    )
    return views, cell_features(singles, panel, config)[0]


def embedded(
    slides: Sequence[AnnData], cells: AnnData, *, weights: str = "moran"
) -> tuple[list[Tensor], list[np.ndarray], Tensor]:
    """Principal components of each slide's spots, their canonical coordinates, and the components of the cells."""
    views, features = views_of(slides, cells, weights=weights)
    spots = views.clean()
    encoder = reference_encoder(spots)
    with torch.no_grad():
        known, query = encoder(spots), encoder(features)
    return [known[rows] for rows in views.rows], [coords_of(slide) for slide in slides], query


def poses(slides: Sequence[AnnData], cells: AnnData) -> list[np.ndarray]:
    """Canonical coordinates of every slide, rotated (or mirrored) to match the first, so that slides can be merged.

    Sections have arbitrary poses. The cells are placed on each slide, and the motion that maps one slide's layout of the
    cells to that of the first maps the slides, too.
    """
    known, coords, query = embedded(slides, cells)
    layouts = [
        nearest_mean(z, torch.from_numpy(xy), query).numpy() for z, xy in zip(known, coords, strict=True)
    ]
    first = layouts[0] - layouts[0].mean(0)
    turned = [coords[0]]
    for own, layout in zip(coords[1:], layouts[1:], strict=True):
        turn = lay_on(layout - layout.mean(0), first)
        turned.append((own - layout.mean(0)) @ turn + layouts[0].mean(0))
    return turned


def random_places(slides: Sequence[AnnData], cells: AnnData, *, seed: int) -> np.ndarray:
    """Every cell at a random spot of the first slide, with a little noise so that no two coincide."""
    rng = numpy_rng(seed, "random places")
    coords = coords_of(slides[0])
    return coords[rng.integers(len(coords), size=cells.n_obs)] + rng.normal(scale=0.02, size=(cells.n_obs, 2))


def knn(slides: Sequence[AnnData], cells: AnnData, *, seed: int, weights: str = "moran") -> np.ndarray:
    """Mean position of the nearest spots in a PCA of standardised genes, weighted by Moran's I or not."""
    known, coords, query = embedded(slides, cells, weights=weights)
    return knn_places(known, coords, query)


def thinned_mlp(slides: Sequence[AnnData], cells: AnnData, *, seed: int) -> np.ndarray:
    """An MLP that predicts coordinates from spot expression that is thinned to the depth of cells."""
    views, features = views_of(slides, cells, seed=seed, bank=BANK_BYTES)
    places = torch.from_numpy(np.concatenate(poses(slides, cells))).float()
    return _regress(views.draw, places, features, seed=seed)


def supervised(
    slides: Sequence[AnnData], cells: AnnData, *, seed: int, truth: np.ndarray, folds: int = 5
) -> np.ndarray:
    """An MLP trained on true positions of other cells: a ceiling for simple methods.

    Every cell is placed by a network that was trained on the other folds.
    """
    _, features = views_of(slides, cells)
    places = torch.from_numpy(truth - truth.mean(0)).float()
    places /= places.square().sum(1).mean().sqrt()
    fold = torch.from_numpy(numpy_rng(seed, "folds").permutation(len(truth)) % folds)
    result = np.empty_like(truth)
    for i in range(folds):
        known, held = fold != i, fold == i
        draw = _drawing(features[known])
        own = child_seed(seed, "fold", i) % 2**31
        result[held.numpy()] = _regress(draw, places[known], features[held], seed=own, steps=1000)
    return result


def _drawing(features: Tensor) -> Draw:
    return lambda index, generator: features[index]


def _regress(
    draw: Draw, places: Tensor, features: Tensor, *, seed: int, steps: int = 1500, batch: int = 256
) -> np.ndarray:
    """Train on views of (n, G) profiles with known ``places`` (n, 2); predict those of ``features``."""
    generator = torch_rng(seed, "batches")
    with owned_rng():
        torch.manual_seed(child_seed(seed, "weights"))
        net = nn.Sequential(
            nn.Dropout(0.2),
            nn.Linear(features.shape[1], 256),
            nn.LayerNorm(256),
            nn.SiLU(),
            nn.Dropout(0.3),
            nn.Linear(256, 128),
            nn.SiLU(),
            nn.Linear(128, 2),
        )
        optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, steps, pct_start=0.1)
        for _ in range(steps):
            index = torch.randint(len(places), (batch,), generator=generator)
            loss = (net(draw(index, generator)) - places[index]).square().sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    net.eval()
    with torch.no_grad():
        return net(features).numpy()
