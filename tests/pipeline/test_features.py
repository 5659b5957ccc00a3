from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from scipy import sparse

from spatialgears.expression.signal import Signal
from spatialgears.pipeline.features import SpotFeatures


class Embedding:
    embed = staticmethod(lambda x: x[..., :2] * 10)


class Views:
    """Spots whose view is a row of a table."""

    table, thins, n_spots, bank = torch.randn(6, 5), True, 6, None

    def draw(self, index, generator):
        return self.table[index]


def test_what_the_networks_see_of_spots():
    """All genes, the spatial signal, or, as in the paper, the embedding alone; nearest spots compare the embedding."""
    views, index, rng = Views(), torch.tensor([4, 1]), torch.Generator()
    x = views.table[index]
    plain = SpotFeatures(views, None, None, embedding_only=False)
    assert torch.equal(plain.seen(index, rng), x) and plain.draw(index, rng).embedding is None
    axes, other = torch.eye(5)[:, :2], torch.eye(5)[:, 1:2]
    signal = Signal(
        axes, [axes @ (axes.T @ axes), other @ (other.T @ axes)], torch.arange(6) % 2, torch.eye(2)
    )
    filtered = SpotFeatures(views, signal, Embedding(), embedding_only=False)
    kept = x[:, :2] * torch.tensor([[1, 1], [0, 1]])  # spot 4 is in part 0, spot 1 in part 1
    assert torch.equal(filtered.seen(index, rng), kept)
    drawn = filtered.draw(index, rng)
    assert torch.equal(drawn.seen, kept) and torch.equal(drawn.embedding, x[:, :2] * 10)
    alone = SpotFeatures(views, None, Embedding(), embedding_only=True)
    drawn = alone.draw(index, rng)
    assert drawn.expression is None and torch.equal(drawn.seen, x[:, :2] * 10) and alone.width == 2


def test_missing_genes_are_taken_as_average(small_model, small_tissue):
    fitted = small_model.fitted_
    counts = small_tissue.cells[:, list(fitted.panel.genes)].X
    missing = np.isin(np.arange(counts.shape[1]), np.argsort(-np.asarray(counts.sum(0)).ravel())[:10])
    everyone = np.arange(small_tissue.cells.n_obs)
    less = fitted.features(counts.multiply(~missing).tocsr(), small_model.config, missing=missing)
    whole = fitted.features(counts, small_model.config, missing=np.zeros_like(missing))
    blown_up = replace(less, view=fitted.view)  # the rest of a library taken for the whole
    found, true, wrong = (one.as_measured()[everyone].expression for one in (less, whole, blown_up))
    assert (found[:, missing] == 0).all() and not (true[:, missing] == 0).all()
    shift, before = ((one - true)[:, ~missing].mean(0).norm() for one in (found, wrong))
    assert shift < before / 4


def test_features_are_those_of_the_cells_asked_for(small_model, small_tissue):
    fitted = small_model.fitted_
    counts = small_tissue.cells[:, list(fitted.panel.genes)].X
    missing = np.zeros(len(fitted.panel.genes), dtype=bool)
    features = fitted.features(counts, small_model.config, missing=missing)
    everyone = features[np.arange(len(features))]
    assert len(everyone) == len(features) == small_tissue.cells.n_obs
    rows = np.array([7, 3, 7, 100])
    torch.testing.assert_close(features[rows].expression, everyone[rows].expression)
    torch.testing.assert_close(features[rows].embedding, everyone[rows].embedding)
    measured = features.as_measured()[np.arange(len(features))]
    assert fitted.view.pull is not None and not torch.allclose(everyone.expression, measured.expression)
    torch.testing.assert_close(everyone.embedding, measured.embedding)  # only the expression is pulled


def test_spots_beside_cells_follow_them(small_model, small_tissue):
    fitted = small_model.fitted_
    counts = small_tissue.cells[:, list(fitted.panel.genes)].X
    plain = fitted.features(counts, small_model.config, missing=np.zeros(counts.shape[1], bool))
    spots = fitted.slides[0].features
    both = plain.beside(spots)
    assert len(both) == len(plain) + len(spots)
    rows = np.array([len(plain) + 1, 2, len(plain), 0])
    torch.testing.assert_close(both[rows].expression[[0, 2]], spots.expression[[1, 0]])
    torch.testing.assert_close(both[rows].embedding[[1, 3]], plain[np.array([2, 0])].embedding)


def test_features_of_an_embedding_do_not_depend_on_how_many_are_made_at_once(small_model, monkeypatch):
    config = small_model.config.with_values(["geometry.inputs=embedding"])
    counts = sparse.random(50, len(small_model.panel_.genes), 0.4, "csr", random_state=0)
    features = small_model.fitted_.features(counts, config, missing=np.zeros(counts.shape[1], bool))
    whole = features[np.arange(50)].seen
    monkeypatch.setattr("spatialgears.pipeline.features.DENSE_CELLS", 7)
    torch.testing.assert_close(features[np.arange(50)].seen, whole)


def test_precomputed_views_are_projected_once():
    """A view that is drawn from the bank is the projection of one of the spot's precomputed views."""
    views = Views()
    views.bank = torch.randn(4, 6, 5)
    axes = torch.linalg.qr(torch.randn(5, 2)).Q
    signal = Signal(axes, [axes], torch.zeros(6, dtype=torch.long), torch.eye(2))
    index = torch.tensor([3, 0, 3, 5])
    seen = SpotFeatures(views, signal, None, embedding_only=False).seen(index, torch.Generator())
    distance = (views.bank[:, index] @ axes - seen).norm(dim=-1)
    assert seen.shape == (4, 2) and (distance.min(0).values < 1e-5).all()


def test_cells_are_averaged_with_those_most_like_them(small_model, small_tissue, small_config):
    fitted = replace(small_model.fitted_, average=0.0)
    means_of = replace(fitted, average=1.0)
    counts = small_tissue.cells[:, list(fitted.panel.genes)].X
    none = np.zeros(counts.shape[1], bool)
    plain, averaged = (one.features(counts, small_config, missing=none) for one in (fitted, means_of))
    everyone = np.arange(len(plain))
    x = plain.as_measured()[everyone].seen
    assert torch.equal(averaged.as_measured()[everyone].seen, x)  # radii rest on cells as measured
    axes = torch.linalg.svd(x - x.mean(0), full_matrices=False).Vh[:30].T
    z = torch.nn.functional.normalize(x @ axes, dim=1)
    means = x[(z @ z.T).topk(20, dim=1).indices].mean(1)
    assert averaged.view.pull is not None  # but cells that move towards cells do not move towards spots
    torch.testing.assert_close(averaged[everyone].seen, means, rtol=1e-3, atol=1e-3)
    few = means_of.features(counts[:50], small_config, missing=none)
    assert few.cell_pull is None
