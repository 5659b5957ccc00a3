"""From places to answers: weights of cells and spots, and what rests on them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.spatial import KDTree

import spatialgears as sg
from spatialgears.analysis import lookup
from spatialgears.analysis import weights as module
from spatialgears.analysis.composition import Draw
from spatialgears.analysis.evidence import corrected
from spatialgears.errors import InputError

GIVEN = {"place": 0.3, "likeness": 14.0}  # where the choice of strengths is not what is tested


@pytest.fixture
def named(planted_slide):
    """The slide with the island of each spot, and a number that grows to the right."""
    from .conftest import ISLANDS

    gap = np.linalg.norm(planted_slide.obsm["spatial"][:, None] - ISLANDS, axis=2)
    planted_slide.obs["island"] = [f"type {i}" for i in gap.argmin(1)]
    planted_slide.obs["right"] = planted_slide.obsm["spatial"][:, 0]
    return planted_slide


def test_rows_are_distributions_near_the_place(planted, named):
    weights = sg.tl.spot_weights(planted, named)
    assert sparse.issparse(weights) and weights.shape == (planted.n_obs, named.n_obs)
    mass = np.asarray(weights.sum(1)).ravel()
    assert (
        mass.max() < 1 + 1e-5
        and np.quantile(mass, 0.05) == pytest.approx(1, abs=1e-5)
        and weights.data.min() > 0
    )
    expected = weights @ named.obsm["spatial"]
    gap = np.linalg.norm(expected - planted.obsm["X_gears"], axis=1)
    assert np.median(gap) < 0.6  # islands are 3 apart


def test_cells_outside_or_off_the_slide_weigh_less(planted, named):
    planted.obs["gears_outside"] = np.arange(planted.n_obs) < 5
    planted.obsm["laid"] = planted.obsm["X_gears"].astype(float).copy()
    planted.obsm["laid"][10] = [50.0, 0.0]
    mass = np.asarray(
        sg.tl.spot_weights(planted, named, basis="laid", place=1.0, likeness=14.0).sum(1)
    ).ravel()
    assert (mass[:5] == 0).all() and mass[10] < 1e-6
    assert np.median(mass) == pytest.approx(1, abs=1e-5)


def test_chunks_and_sparsity_change_nothing_that_matters(planted, named, monkeypatch):
    whole = sg.tl.spot_weights(planted, named, **GIVEN)
    monkeypatch.setattr("spatialgears.analysis.evidence.CHUNK", 37)
    np.testing.assert_allclose(
        sg.tl.spot_weights(planted, named, **GIVEN).toarray(), whole.toarray(), atol=1e-6
    )
    monkeypatch.setattr(module, "ENTRIES", 1)
    fewest = sg.tl.spot_weights(planted, named, **GIVEN)
    assert np.median(np.diff(fewest.indptr)) <= module.FEWEST
    np.testing.assert_allclose(fewest.sum(1), whole.sum(1), atol=1e-5)


def test_places_count_where_expression_is_noise_and_likeness_where_places_are(planted, named):
    rng = np.random.default_rng(0)
    planted.obsm["laid"] = planted.obsm["X_gears"].astype(float)
    poor = planted.copy()
    poor.obsm["laid"] = rng.permutation(poor.obsm["laid"])
    for averaged in (True, False):
        assert chosen(poor, named, averaged).place <= 0.03 and chosen(poor, named, averaged).likeness > 0
    weak = planted.copy()  # expression that is weak, but follows the place
    weak.X = sparse.csr_matrix(rng.binomial(weak.X.toarray().astype(int), 0.1).astype(np.float32))
    assert chosen(weak, named, averaged=False).place >= 0.1
    of_genes = chosen(weak, named, averaged=True)
    assert of_genes.place >= 0.1 or of_genes.likeness == 0 < of_genes.place


def chosen(cells, slide, averaged):
    options = dict.fromkeys(("place", "likeness", "layer", "outside"))
    return module.weigh(
        cells, slide, **options, basis="laid", spatial_key="spatial", averaged=averaged, seed=0
    )[1]


def test_labels_come_with_a_probability(planted, named):
    assert sg.tl.transfer(planted, named, "island") is None
    right = planted.obs["gears_island"].astype(str) == planted.obs["cell_type"]
    assert right.mean() > 0.8
    table = planted.obsm["gears_island"]
    np.testing.assert_allclose(table.to_numpy().max(1), planted.obs["gears_island_probability"])
    thin = sg.tl.transfer(planted, named, "island", least=1.0, **GIVEN, copy=True)
    assert (thin.obs["gears_island"] == "none").mean() > 0.5
    named.obs["island"] = named.obs["island"].replace("type 0", "none")  # a label of that name
    again = sg.tl.transfer(planted, named, "island", least=1.0, **GIVEN, copy=True)
    assert list(again.obs["gears_island"].cat.categories) == ["none", "type 1", "type 2", "type 3"]


@pytest.mark.parametrize(("kept", "displaced"), [(0.3, 1.0), (0.1, 0.8)])
def test_probabilities_are_right_as_often_as_they_say(make_planted, named, kept, displaced):
    cells, rng = make_planted(1200), np.random.default_rng(0)
    cells.X = sparse.csr_matrix(rng.binomial(cells.X.toarray().astype(int), kept).astype(np.float32))
    cells.obsm["laid"] = cells.obsm["X_gears"] + displaced * rng.normal(size=(1200, 2))
    cells.obs["gears_radius50"] = displaced * lookup.MEDIAN_RADIUS
    sg.tl.transfer(cells, named, "island", basis="laid")
    table = cells.obsm["gears_island"]
    right = np.asarray(table.columns)[table.to_numpy().argmax(1)] == cells.obs["cell_type"].to_numpy()
    assert 0.5 < right.mean() < 0.995
    assert abs(right.mean() - cells.obs["gears_island_probability"].mean()) < 0.06
    sure = (cells.obs["gears_island_probability"] > cells.obs["gears_island_probability"].median()).to_numpy()
    assert right[sure].mean() > right[~sure].mean()


def test_numbers_come_with_a_spread(planted, named):
    sg.tl.transfer(planted, named, "right", **GIVEN)
    assert np.corrcoef(planted.obs["gears_right"], planted.obsm["X_gears"][:, 0])[0, 1] > 0.9
    assert (planted.obs["gears_right_sd"] > 0).all()


def test_several_slides_are_averaged(planted, named):
    one, two = (
        sg.tl.transfer(planted, slides, "island", **GIVEN, copy=True) for slides in (named, [named, named])
    )
    np.testing.assert_allclose(one.obsm["gears_island"], two.obsm["gears_island"])


def test_kept_out_genes_score_the_prediction(planted, named):
    found = sg.tl.impute(planted, named)
    markers, others = found.var["score"].iloc[:12], found.var["score"].iloc[12:]
    assert found.var["measured"].all() and markers.min() > 0.3 and markers.min() > others.max()
    without = sg.tl.impute(planted, named[:, 3:], ["g0", "g39"], **GIVEN)
    assert not without.var["measured"]["g0"] and without.var["measured"]["g39"]
    assert without.var["score"]["g0"] > without.var["score"]["g39"] + 0.2
    r = np.corrcoef(without[:, "g0"].X.ravel(), named[:, "g0"].X.toarray().ravel())[0, 1]
    assert r > 0.3


def test_genes_are_corrected_by_what_spots_show_beyond_their_cells():
    rng = np.random.default_rng(0)
    cells, slopes = rng.normal(size=(500, 5)), rng.normal(size=(5, 3))
    values = cells @ slopes + 20
    shown, beyond = rng.normal(size=(2, 80, 5))
    read, truth = shown @ slopes + 20, (shown + beyond) @ slopes + 20
    same, better = (corrected(read, spots, shown, cells, values) for spots in (shown, shown + beyond))
    np.testing.assert_allclose(same, read, rtol=1e-5)
    r = [[np.corrcoef(one[:, i], truth[:, i])[0, 1] for i in range(3)] for one in (read, better)]
    assert (np.array(r[1]) > np.array(r[0])).all()
    by_sparse = corrected(read, shown + beyond, shown, cells, sparse.csr_matrix(values))
    np.testing.assert_allclose(by_sparse, better, rtol=1e-5)
    assert corrected(read - 1000, shown, shown, cells, values).min() == pytest.approx(values.min(), rel=1e-5)


def test_genes_at_places_between_spots(planted, named):
    spots = sg.tl.impute(planted, named, ["g0"], **GIVEN)
    at = np.vstack([named.obsm["spatial"][:4] + 0.01, [[90.0, 90.0]]])
    found = sg.tl.impute(planted, named, ["g0"], places=at, **GIVEN)
    assert found.shape == (5, 1) and np.isnan(found.X[-1, 0])
    assert np.abs(found.X[:4] - spots.X[:4]).max() < np.ptp(spots.X)


def test_abundance_keeps_to_known_totals(planted, named):
    named.obs["nuclei"] = np.arange(named.n_obs) % 7
    found = sg.tl.abundance(planted, named, cells_per_spot="nuclei", n_samples=20, **GIVEN)
    np.testing.assert_allclose(found.X.sum(1), named.obs["nuclei"], atol=1e-4)
    share = found.layers["proportion"]
    majority = np.asarray(found.var_names)[share.argmax(1)]
    assert (majority == named.obs["island"]).mean() > 0.9
    free = sg.tl.abundance(planted, named, n_samples=20, **GIVEN)
    assert free.X.sum() == pytest.approx(planted.n_obs, rel=0.02)
    assert (free.layers["low"] <= free.layers["high"]).all()
    inside = (free.layers["low"] <= free.X + 1) & (free.layers["high"] >= free.X - 1)
    assert inside.mean() > 0.9


def test_cells_are_drawn_by_their_weights():
    weights = sparse.csr_matrix(np.array([[0.5, 0.5, 0], [0, 0, 0.2], [0, 0, 0], [0, 1, 0]], np.float32))
    draw, rng = Draw(weights), np.random.default_rng(0)
    drawn = np.array([draw(rng) for _ in range(4000)])
    assert (drawn[:, 0] == 0).mean() == pytest.approx(0.5, abs=0.05)
    assert (drawn[:, 1] == 2).mean() == pytest.approx(0.2, abs=0.05)
    assert (drawn[:, 1] == -1).mean() == pytest.approx(0.8, abs=0.05)
    assert (drawn[:, 2] == -1).all() and (drawn[:, 3] == 1).all()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c, s: sg.tl.transfer(c, s, "layer"), "no obs column 'layer'.*'island'"),
        (lambda c, s: sg.tl.impute(c, s, ["Gad1"]), "no gene 'Gad1'.*'g0'"),
        (lambda c, s: sg.tl.impute(c, s, places=[[0, 0, 0]]), "places"),
        (lambda c, s: sg.tl.abundance(c, s, "type"), "no obs column 'type'.*'cell_type'"),
        (lambda c, s: sg.tl.abundance(c, s, cells_per_spot=[1, 2]), "each of the .* spots.*(2,)"),
        (lambda c, s: sg.tl.abundance(c, s, cells_per_spot="nuclei"), "no obs column 'nuclei'"),
        (lambda c, s: sg.tl.abundance(c, s, cells_per_spot=-1), "not negative, found -1 for spot 'spot0'"),
        (
            lambda c, s: sg.tl.abundance(c, s, cells_per_spot="island"),
            "numbers.*found 'type .' for spot 'spot0'",
        ),
        (lambda c, s: sg.tl.spot_weights(c, s, place=-1.0), "place must not be negative"),
        (lambda c, s: sg.tl.spot_weights(c, s, place=0.0, likeness=0.0), "Neither"),
        (lambda c, s: sg.tl.spot_weights(c, s, basis="X_other"), "no obsm"),
    ],
)
def test_errors_name_what_there_is(planted, named, call, text):
    with pytest.raises(InputError, match=text):
        call(planted, named)


ASKED = {
    "transfer": lambda c, s, **where: sg.tl.transfer(c, s, "domain", **where),
    "impute": lambda c, s, **where: sg.tl.impute(c, s, ["Gene001"], **where),
    "abundance": lambda c, s, **where: sg.tl.abundance(c, s, n_samples=5, **where),
}


@pytest.fixture(scope="module")
def organ():
    """Simulated cells at their true places, slides under them, and a slide of another tissue with the same gene names."""
    sizes = {"n_cells": 800, "n_genes": 120, "spots": 200, "shift": 0.5}
    tissue, other = (sg.datasets.simulate_tissue(**sizes, seed=seed) for seed in (1, 7))
    cells = tissue.cells.copy()
    cells.obs["cell_type"] = tissue.truth.obs["cell_type"].to_numpy()
    cells.obsm["X_gears"] = sg.metrics.canonical(tissue.truth.obsm["spatial"])
    cells.obs["gears_radius50"] = 0.1
    sg.tl.register(cells, tissue.slides[0])
    own = tissue.slides[0].copy()
    permuted = own.copy()
    permuted.X = permuted.X[np.random.default_rng(0).permutation(own.n_obs)]
    found = {"own": own, "permuted": permuted, "other": other.slides[0].copy()}
    for slide in found.values():
        x = slide.obsm["spatial"][:, 0]
        slide.obs["domain"] = np.where(x > np.median(x), "right", "left")
    return cells, found


@pytest.mark.parametrize("basis", [None, "X_gears_slide"])
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("slide", ["permuted", "other"])
def test_a_slide_the_cells_do_not_belong_on_is_refused(organ, slide, asked, basis):
    """Likeness alone would follow the permuted spots very well."""
    cells, slides = organ[0].copy(), organ[1]
    ASKED[asked](cells, slides["own"], basis=basis)
    with pytest.raises(InputError, match=r"do not belong on this slide. Registration explains [\d]+%"):
        ASKED[asked](cells, slides[slide], basis=basis)


def test_a_slide_that_cells_match_roughly_is_warned_of(planted, named, monkeypatch, caplog):
    sg.tl.spot_weights(planted, named)
    assert "only roughly" not in caplog.text
    monkeypatch.setattr("spatialgears.analysis.choice.GOOD", 1.0)
    sg.tl.spot_weights(planted, named)
    assert "only roughly" in caplog.text


def test_genes_are_read_on_the_scale_of_the_slide(make_planted, named):
    """Values other than counts may be linear, as intensities are: sums over cells of which few express a gene strongly."""
    cells, rng = make_planted(1200), np.random.default_rng(0)
    cells.X = sparse.csr_matrix(
        rng.poisson(cells.X.toarray() * rng.lognormal(0, 1.5, cells.shape)).astype(np.float32)
    )
    near = KDTree(cells.obsm["X_gears"]).query(named.obsm["spatial"], 8)[1]
    summed = cells.X.toarray()[near].mean(1)
    read = {}
    for scale, values in {"linear": 0.37 * summed, "log": np.log1p(cells.X.toarray())[near].mean(1)}.items():
        named.X = sparse.csr_matrix(values.astype(np.float32))
        read[scale] = sg.tl.impute(cells, named).uns["gears_impute"]
    assert not read["linear"]["logged"] and read["log"]["logged"]
    assert min(one["score"] for one in read.values()) > 0.1
