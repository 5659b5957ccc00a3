from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from anndata import AnnData
from scipy import sparse

from spatialgears.errors import ConfigError, InputError
from spatialgears.geometry.nearest import NearestSpots
from spatialgears.geometry.training import Folds, random_parts
from spatialgears.model import GEARS
from spatialgears.pipeline.evaluation import place_unseen, reference_places, set_reach
from spatialgears.pipeline.fit import (
    _keep_slides,
    along,
    build_network,
    fit_model,
    seen_by_network,
    spots_that_choose,
)
from spatialgears.runtime.seeds import child_seed
from spatialgears.storage.model_folder import StoredModel
from spatialgears.validate import validate_inputs

RNG = np.random.default_rng(0)
SLIDES = [RNG.normal(size=(60, 2)), RNG.normal(size=(40, 2))]
COORDS = torch.from_numpy(np.concatenate(SLIDES)).float()


def draw(index, generator):
    """Features that are the places themselves."""
    return COORDS[index]


def turned(seed: int, shift: float = 0.0):
    """A perfect model with a frame of its own in five dimensions."""
    turn = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(seed))).Q[:2]
    return lambda x: x @ turn + shift


@pytest.fixture
def _no_dropout(monkeypatch):
    """The stand-ins for models below have none."""
    monkeypatch.setattr(
        "spatialgears.pipeline.evaluation.dropout_spread", lambda model, x, *, seed: torch.ones(len(x))
    )


@pytest.mark.usefixtures("_no_dropout")
def test_perfect_models_place_unseen_spots_exactly():
    fold = np.arange(100) % 10
    unseen = place_unseen(Folds([turned(0), turned(1, 3.0)], fold), draw, SLIDES, seed=0)
    assert set(unseen.spot.tolist()) == set(np.flatnonzero(fold < 2).tolist())
    torch.testing.assert_close(unseen.places, unseen.truth, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(unseen.truth, COORDS[unseen.spot])
    assert (unseen.slide == (unseen.spot >= 60)).all() and unseen.error.max() < 1e-3
    counts = torch.bincount(unseen.spot)
    assert set(counts[counts > 0].tolist()) == {4}  # views of each


@pytest.mark.usefixtures("_no_dropout")
def test_the_pose_is_found_without_the_spots_that_are_judged():
    """A model that errs on the spots it has not seen shows that error in full."""
    fold = np.arange(100) % 10
    wrong = torch.from_numpy(fold == 0)

    def model(x):
        return (
            x + torch.where(wrong[: x.shape[1]] if x.shape[1] == 60 else wrong[60:], 5.0, 0.0)[None, :, None]
        )

    unseen = place_unseen(Folds([model], fold), draw, SLIDES, seed=0)
    torch.testing.assert_close(unseen.error, torch.full_like(unseen.error, 50**0.5), atol=1e-3, rtol=1e-3)


@pytest.mark.usefixtures("_no_dropout")
def test_slides_nobody_has_seen_are_posed_as_a_whole():
    fold = np.repeat([0, 1], [60, 40])
    unseen = place_unseen(Folds([turned(0), turned(1)], fold), draw, SLIDES, seed=0)
    assert len(unseen.spot) == 4 * 100 and unseen.error.max() < 1e-3


class Blurred:
    """A model of features (places, embedding) whose places are off by noise of a size."""

    n_features = 2

    def __init__(self, size: float) -> None:
        self.size, self.rng = size, torch.Generator().manual_seed(0)

    def __call__(self, x):
        return x + self.size * torch.randn(x.shape, generator=self.rng)


@pytest.mark.usefixtures("_no_dropout")
@pytest.mark.parametrize("by_slide", [False, True])
def test_nearest_spots_reach_as_far_as_models_are_off(by_slide, monkeypatch):
    """Spots tell their place by the embedding, but for their side: there are always two that look alike."""
    rng = torch.Generator().manual_seed(1)
    coords = (
        torch.randn(800, 2, generator=rng)
        + torch.tensor([3.0, 0.0]) * (torch.arange(800) % 2 * 2 - 1)[:, None]
    )
    side = (torch.arange(800) % 2 * 2 - 1)[:, None]
    looks = coords - torch.tensor([3.0, 0.0]) * side
    z = torch.cat([looks, torch.ones(800, 1), 0.02 * side], 1)
    slides = [coords[:400].numpy().astype(float), coords[400:].numpy().astype(float)]
    slide = torch.arange(800) // 400
    fold = slide.numpy() if by_slide else np.arange(800) % 10

    def draw(index, generator):
        return torch.cat([coords, z], 1)[index]

    found = {}
    for size, spread in ((0.0, 1.0), (0.8, 1.0), (0.8, 2.0)):
        monkeypatch.setattr(
            "spatialgears.geometry.ensemble.Ensemble.spread", lambda *_, seed, to=spread: torch.full((9,), to)
        )
        folds = Folds([Blurred(size), Blurred(size)], fold)
        fit = SimpleNamespace(
            folds=None if by_slide else folds, slide_folds=folds if by_slide else None, members=[]
        )
        nearest = NearestSpots(z, coords, slide, torch.arange(800))
        set_reach(nearest, fit, draw, slides, torch.empty(9, 6), seed=0)
        found[size, spread] = float(nearest.reach)
    assert found[0.0, 1.0] == 0  # what is exact stays
    assert 0.1 <= found[0.8, 1.0] <= 1.5 and found[0.8, 2.0] == pytest.approx(2 * found[0.8, 1.0])


class Views:
    """Spots as measured tell their place, and thinned ones a little less of it."""

    clean = staticmethod(lambda index: torch.cat([COORDS, COORDS**2, COORDS**3], 1)[index])
    draw = staticmethod(lambda index, generator: 0.9 * torch.cat([COORDS, COORDS**2, COORDS**3], 1)[index])


@pytest.mark.parametrize("by_slide", [False, True])
def test_the_reference_places_unseen_spots_only(by_slide):
    fold = np.repeat([0, 1], [60, 40]) if by_slide else np.arange(100) % 10
    places = reference_places(Folds([None, None], fold), Views(), SLIDES, seed=0)
    judged = fold < 2
    assert np.isfinite(places[judged]).all() and np.isnan(places[~judged]).all()
    if not by_slide:
        error = np.linalg.norm(places[judged] - COORDS.numpy()[judged], axis=1)
        assert np.median(error) < 0.7 * np.median(np.linalg.norm(COORDS.numpy()[judged], axis=1))


def test_the_reference_knows_spots_as_measured():
    """Only the spots that are placed are thinned: what these tell is told, whatever thinning does to others."""

    class Odd(Views):
        @staticmethod
        def draw(index, generator):
            view = Views.draw(index, generator)
            view[1::2] = 0  # seen by the first model, which places the others
            return view

    fold = np.arange(100) % 2
    plain, odd = (reference_places(Folds([None], fold), views, SLIDES, seed=0) for views in (Views(), Odd()))
    np.testing.assert_array_equal(plain, odd)


def test_only_the_first_member_has_a_refiner(small_config):
    network = build_network(7, 3, small_config)
    assert [hasattr(member, "denoiser") for member in network.members] == [True, False, False]


def test_what_the_network_sees(small_config):
    class Embedding:
        embed = staticmethod(lambda x: x[..., :2] * 10)

    x = torch.randn(3, 5)
    assert torch.equal(seen_by_network(x, None, None, small_config), x)
    both, alone = (small_config.with_values([f"geometry.inputs={one}"]) for one in ("both", "embedding"))
    assert seen_by_network(x, None, Embedding(), both).shape == (3, 7)
    assert torch.equal(seen_by_network(x, None, Embedding(), alone), x[:, :2] * 10)
    first = along(x, torch.eye(5)[:, :1])
    assert torch.equal(first, x * torch.tensor([1.0, 0, 0, 0, 0])) and along(x, None) is None
    assert torch.equal(seen_by_network(x, first, None, small_config), first)
    assert torch.equal(seen_by_network(x, first, Embedding(), both)[:, 5:], x[:, :2] * 10)


def test_no_training_data_is_kept_but_a_sample_of_views(small_model, small_tissue):
    fitted = small_model._fitted
    assert [len(slide.coords) for slide in fitted.slides] == [slide.n_obs for slide in small_tissue.slides]
    slide, adata = fitted.slides[0], small_tissue.slides[0]
    back = slide.coords * slide.frame.scale + slide.frame.centre
    np.testing.assert_allclose(back, adata.obsm["spatial"], rtol=1e-6, atol=1e-6)
    assert fitted.meta()["members"] == 2 and fitted.network.training is False


def test_restored_is_what_was_fitted(small_model):
    fitted = small_model._fitted
    stored = StoredModel(small_model.config, fitted.tensors(), fitted.panel.genes, fitted.meta())
    again = type(fitted).restore(stored)
    for name, value in fitted.tensors().items():
        assert torch.equal(again.tensors()[name], value), name
    assert json.dumps(again.meta()) == json.dumps(fitted.meta())


def test_missing_genes_are_taken_as_average(small_model, small_tissue):
    fitted = small_model._fitted
    counts = small_tissue.cells[:, list(fitted.panel.genes)].X
    missing = np.isin(np.arange(counts.shape[1]), np.argsort(-np.asarray(counts.sum(0)).ravel())[:10])
    everyone = np.arange(small_tissue.cells.n_obs)
    less = fitted.features(counts.multiply(~missing).tocsr(), small_model.config, missing=missing)
    whole = fitted.features(counts, small_model.config, missing=np.zeros_like(missing))
    blown_up = replace(less, panel=fitted.panel)  # the rest of a library taken for the whole
    found, true, wrong = (
        one.as_measured()[everyone][:, : len(missing)] for one in (less, whole, blown_up)
    )  # after the genes comes the embedding
    assert (found[:, missing] == 0).all() and not (true[:, missing] == 0).all()
    shift, before = ((one - true)[:, ~missing].mean(0).norm() for one in (found, wrong))
    assert shift < before / 4


def test_features_are_those_of_the_cells_asked_for(small_model, small_tissue):
    fitted = small_model._fitted
    counts = small_tissue.cells[:, list(fitted.panel.genes)].X
    missing = np.zeros(len(fitted.panel.genes), dtype=bool)
    features = fitted.features(counts, small_model.config, missing=missing)
    everyone = features[np.arange(len(features))]
    assert features.shape == tuple(everyone.shape) and len(features) == small_tissue.cells.n_obs
    rows = np.array([7, 3, 7, 100])
    torch.testing.assert_close(features[rows], everyone[rows])
    assert fitted.pull is not None and not torch.allclose(
        everyone, features.as_measured()[np.arange(len(features))]
    )


def test_more_processes_than_sets_are_refused_before_any_training(small_config, small_tissue, monkeypatch):
    monkeypatch.setattr("spatialgears.pipeline.fit.train_encoder", None)
    config = small_config.with_values({"devices": 9, "geometry": {"batch_size": 8, "slide_batch": 4}})
    with pytest.raises(ConfigError, match="9 processes cannot share the 4 sets"):
        fit_model(validate_inputs(small_tissue.slides[0], small_tissue.cells), config)


def test_empty_spots_and_cells_do_not_take_part(small_config, small_tissue):
    config = small_config.with_values(
        {"geometry": {"steps": 1, "refiner_steps": 1, "slide_steps": 0, "crossfit": 1}}
    )
    slide, cells = small_tissue.slides[0].copy(), small_tissue.cells.copy()
    for adata, row in ((slide, 3), (cells, 5)):
        keep = np.ones(adata.n_obs)
        keep[row] = 0
        adata.X = sparse.csr_matrix(sparse.diags(keep) @ adata.X)
    inputs = validate_inputs(slide, cells)
    assert inputs.empty_spots[0].sum() == 1 and inputs.empty_cells.sum() == 1
    fitted = fit_model(inputs, config)
    assert len(fitted.slides[0].coords) == slide.n_obs - 1
    assert all(
        torch.isfinite(value).all() for value in fitted.tensors().values() if value.is_floating_point()
    )


def test_values_that_are_not_counts(small_config, small_tissue):
    config = small_config.with_values(
        {"geometry": {"steps": 1, "refiner_steps": 1, "slide_steps": 0, "crossfit": 1}}
    )
    slide, cells = (one.copy() for one in (small_tissue.slides[0], small_tissue.cells))
    slide.X, cells.X = slide.X.log1p(), cells.X.log1p()
    model = GEARS(config).fit(slide, cells, normalised=True)
    assert np.isfinite(model.reconstruct(cells).coords).all()  # what was said to fit holds here too
    with pytest.raises(InputError, match="fitted on normalised values, and normalised=False"):
        model.reconstruct(small_tissue.cells, normalised=False)


def test_of_a_large_slide_as_many_spots_as_are_kept_fill_the_tissue(small_config, monkeypatch):
    """A quarter of the spots lie twice as far apart, whatever the distance of the nearest two."""
    grid = np.stack(np.meshgrid(np.arange(20.0), np.arange(20.0)), -1).reshape(-1, 2)
    monkeypatch.setattr("spatialgears.pipeline.fit.FOOTPRINT", 100)
    [kept] = _keep_slides(lambda index, generator: torch.zeros(len(index), 2), [grid], [None], seed=0)
    assert len(kept.coords) == 100 and kept.pitch == pytest.approx(2.0)


def test_features_of_an_embedding_do_not_depend_on_how_many_are_made_at_once(small_model, monkeypatch):
    config = small_model.config.with_values(["geometry.inputs=embedding"])
    counts = sparse.random(50, len(small_model.panel_.genes), 0.4, "csr", random_state=0)
    features = small_model._fitted.features(counts, config, missing=np.zeros(counts.shape[1], bool))
    whole = features[np.arange(50)]
    monkeypatch.setattr("spatialgears.pipeline.fit.DENSE_CELLS", 7)
    torch.testing.assert_close(features[np.arange(50)], whole)


def test_on_one_slide_of_a_whole_transcriptome_genes_are_chosen_without_the_spots_that_are_held_out(
    small_config,
):
    slide, few = RNG.normal(size=(200, 2)), small_config.with_values(["geometry.crossfit=3"])
    (chosen,) = spots_that_choose([slide], 5000, few)
    assert 0.6 * 200 <= chosen.sum() <= 0.75 * 200
    fold = random_parts(200, few, seed=child_seed(few.seed, "geometry"))
    assert (chosen == (fold >= 3)).all()
    assert spots_that_choose([slide], 300, few)[0].all()  # a targeted panel is used as it is
    every = spots_that_choose([slide, slide[:50]], 5000, few)  # slides that were missed are the judge
    assert [len(rows) for rows in every] == [200, 50] and all(rows.all() for rows in every)
    assert spots_that_choose([slide], 5000, few.with_values(["geometry.crossfit=10"]))[
        0
    ].all()  # none is left


def test_the_panel_is_chosen_by_these_spots(small_config, monkeypatch):
    rng = np.random.default_rng(0)
    slide, cells = (
        AnnData(sparse.csr_matrix(rng.poisson(3, (n, 1200)).astype(np.float32))) for n in (100, 60)
    )
    slide.obsm["spatial"] = rng.uniform(0, 1000, (100, 2))

    def seen(slides, coords, cells, **rest):
        raise InputError(f"{slides[0].shape[0]} spots, {len(coords[0])} places, {cells.shape[0]} cells")

    monkeypatch.setattr("spatialgears.pipeline.fit.build_panel", seen)
    with pytest.raises(InputError, match="80 spots, 80 places, 60 cells"):  # two generators miss a tenth each
        fit_model(validate_inputs([slide], cells), small_config)
