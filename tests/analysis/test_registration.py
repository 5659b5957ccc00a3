from __future__ import annotations

import numpy as np
import pytest

import spatialgears as sg
from spatialgears.analysis.correspondences import Matches
from spatialgears.analysis.registration import lay
from spatialgears.analysis.similarity import robust_similarity, smooth_deformation
from spatialgears.errors import InputError

TURN = np.array([[np.cos(1.1), np.sin(1.1)], [-np.sin(1.1), np.cos(1.1)]])
MIRROR = np.diag([1.0, -1.0])


@pytest.fixture(scope="module")
def organ():
    """Cells with a known place, of which one half makes the spots of a slide; the other half is to be laid on it."""
    tissue = sg.datasets.simulate_tissue(n_cells=2400, n_genes=60, spots=60)
    cells = tissue.cells
    cells.obsm["truth"] = tissue.truth.obsm["spatial"]
    half = np.arange(cells.n_obs) % 2 == 0
    slide = sg.datasets.pseudo_visium(
        cells[half].copy(), grid=(20, 16), spot_fraction=0.8, min_cells=1, spatial_key="truth"
    )
    return cells[~half].copy(), slide


def posed(cells, *, bend=0.0, noise=0.0):
    cells = cells.copy()
    x = sg.metrics.canonical(cells.obsm["truth"])
    x = x + bend * np.column_stack([np.sin(1.5 * x[:, 1]), np.cos(1.5 * x[:, 0])])
    x = x + noise * np.random.default_rng(0).normal(size=x.shape)
    cells.obsm["X_gears"] = (x @ TURN @ MIRROR).astype(np.float32)
    return cells


@pytest.mark.parametrize("mirror", [np.eye(2), MIRROR])
@pytest.mark.parametrize("scale", [True, 3.0])
def test_a_known_motion_is_recovered(planted, planted_slide, mirror, scale):
    n = planted_slide.n_obs
    cells = planted[np.arange(n) % planted.n_obs].copy()
    cells.obs_names_make_unique()
    cells.obsm["X_gears"] = planted_slide.obsm["spatial"].copy()
    planted_slide.obsm["spatial"] = 3.0 * planted_slide.obsm["spatial"] @ TURN @ mirror + [40.0, -7.0]
    pairs = np.column_stack([np.arange(n), np.arange(n)])
    assert sg.tl.register(cells, planted_slide, matches=pairs, scale=scale) is None
    fit = cells.uns["X_gears_slide"]
    np.testing.assert_allclose(cells.obsm["X_gears_slide"], planted_slide.obsm["spatial"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(fit["matrix"], TURN @ mirror, atol=1e-6)
    np.testing.assert_allclose(fit["shift"], [40, -7], atol=1e-6)
    assert fit["scale"] == pytest.approx(3, abs=1e-6) and fit["mirrored"] == (mirror[1, 1] < 0)
    assert fit["agreement"] == pytest.approx(1) and fit["residual"] < 1e-6 and fit["coverage"] == 1
    laid = fit["scale"] * cells.obsm["X_gears"] @ fit["matrix"] + fit["shift"]
    np.testing.assert_allclose(laid, cells.obsm["X_gears_slide"])
    assert "spatial" not in cells.obsm


def test_nearly_half_of_the_matches_may_be_wrong():
    rng = np.random.default_rng(0)
    source = rng.normal(size=(500, 2))
    target = 2 * source @ TURN + 5
    wrong = np.arange(500) < 220
    target[wrong] = rng.normal(size=(220, 2)) * 0.3 + [9, 9]  # all to one corner
    fit, kept = robust_similarity(source, target, weights=np.ones(500), scale=None, rng=rng)
    np.testing.assert_allclose(fit(source[~wrong]), target[~wrong], atol=1e-6)
    assert kept[wrong].max() < 0.01 and kept[~wrong].min() > 0.99


def test_a_slide_may_have_a_height(organ):
    cells, slide = organ
    cells = posed(cells, noise=0.03)
    flat, slide = sg.tl.register(cells, slide, copy=True), slide.copy()
    slide.obsm["spatial"] = np.column_stack([slide.obsm["spatial"], np.full(slide.n_obs, 7.0)])
    high = sg.tl.register(cells, slide, copy=True)
    np.testing.assert_array_equal(high.obsm["X_gears_slide"], flat.obsm["X_gears_slide"])
    slide.obsm["spatial"][0, 2] = 8
    with pytest.raises(InputError, match=r"must be \(n, 2\)"):
        sg.tl.register(cells, slide)


@pytest.mark.parametrize("method", ["expression", "gromov"])
def test_cells_find_their_place_on_the_slide(organ, method):
    cells, slide = organ
    cells = posed(cells, noise=0.03)
    sg.tl.register(cells, slide, truth_key="truth", method=method)
    fit = cells.uns["X_gears_slide"]
    assert fit["mirrored"] and fit["coverage"] > 0.95
    assert fit["error_median"] < (0.5 if method == "expression" else 1.6)  # 0.3 of it is the noise itself
    error = np.linalg.norm(cells.obsm["X_gears_slide"] - cells.obsm["truth"], axis=1)
    assert fit["error_mean"] == pytest.approx(error.mean() / fit["pitch"])
    assert ("ambiguity" in fit) == (method == "gromov")


def test_a_bent_layout_is_straightened_and_a_straight_one_is_not_bent(organ):
    cells, slide = organ
    straight, bent = posed(cells), posed(cells, bend=0.2)
    sg.tl.register(straight, slide, deform=True)
    assert not straight.uns["X_gears_slide"]["deformed"]
    errors = []
    for deform in (False, True):
        sg.tl.register(bent, slide, deform=deform, truth_key="truth")
        errors.append(bent.uns["X_gears_slide"]["error_median"])
    assert errors[1] < 0.6 * errors[0]


def test_deformation_follows_a_smooth_field_and_ignores_noise():
    rng = np.random.default_rng(0)
    source = rng.uniform(-1, 1, size=(2000, 2))
    field = 0.2 * np.column_stack([np.sin(2 * source[:, 1]), np.zeros(2000)])
    noisy = source + field + 0.1 * rng.normal(size=source.shape)
    bend = smooth_deformation(source, noisy, weights=np.ones(2000), rng=rng)
    assert np.abs(bend(source) - source - field).mean() < 0.03
    noise = source + 0.3 * rng.normal(size=source.shape)
    nothing = smooth_deformation(source, noise, weights=np.ones(2000), rng=rng)
    assert nothing is None or np.abs(nothing(source) - source).mean() < 0.05


def test_same_seed_same_places_and_a_copy_leaves_the_input(organ):
    cells, slide = organ
    cells = posed(cells)
    first, second = (sg.tl.register(cells, slide, seed=1, deform=True, copy=True) for _ in range(2))
    np.testing.assert_array_equal(first.obsm["X_gears_slide"], second.obsm["X_gears_slide"])
    assert "X_gears_slide" not in cells.obsm and not cells.uns


def test_a_fit_that_collapses_gives_way_to_the_slides_scale():
    """More than half of the matches, all near the centre, agree on a scale that is wrong for the others."""
    coords = sg.metrics.canonical(np.random.default_rng(0).normal(size=(400, 2)))
    spots = 5 * coords
    inner = np.argsort(np.linalg.norm(coords, axis=1))[:220]
    places = spots.copy()
    places[inner] *= 0.3
    matches = Matches(np.arange(400), places, np.ones(400))
    _, fit = lay(coords, spots, matches, scale=True, deform=False, seed=0)
    assert fit["relative_scale"] == pytest.approx(1) and fit["explained"] > 0.8


def test_scale_of_the_slide(organ):
    cells, slide = organ
    cells = posed(cells, noise=0.5)
    sg.tl.register(cells, slide, scale=False)
    spots = slide.obsm["spatial"]
    radius = np.sqrt(np.square(spots - spots.mean(0)).sum(1).mean())
    fit = cells.uns["X_gears_slide"]
    assert fit["scale"] == pytest.approx(radius) and fit["relative_scale"] == pytest.approx(1)
    sg.tl.register(cells, slide, scale=True)
    fit = cells.uns["X_gears_slide"]
    assert fit["relative_scale"] == pytest.approx(fit["scale"] / radius) and fit["relative_scale"] < 0.9


def test_result_can_be_written(organ, tmp_path):
    cells, slide = organ
    cells = sg.tl.register(posed(cells), slide, copy=True)
    cells.write_h5ad(tmp_path / "cells.h5ad")


def test_errors_say_what_is_wrong(planted, planted_slide):
    with pytest.raises(InputError, match="no method"):
        sg.tl.register(planted, planted_slide, method="magic")
    with pytest.raises(InputError, match="measured places"):
        sg.tl.register(planted, planted_slide, key_added="spatial")
    with pytest.raises(InputError, match="600 cells"):
        sg.tl.register(planted, planted_slide, matches=[[0, 0], [1, 1], [600, 2]])
    with pytest.raises(InputError, match="3 rows or more"):
        sg.tl.register(planted, planted_slide, matches=[[0, 0], [1, 1]])
    with pytest.raises(InputError, match="scale must be positive"):
        sg.tl.register(planted, planted_slide, scale=-1.0)
    with pytest.raises(InputError, match=r"slide has no obsm\['xy'\]; obsm has 'spatial'"):
        sg.tl.register(planted, planted_slide, spatial_key="xy")
    planted_slide.var_names = [f"ENSG{i}" for i in range(planted_slide.n_vars)]
    with pytest.raises(InputError, match="share 0 genes"):
        sg.tl.register(planted, planted_slide)


@pytest.mark.parametrize("method", ["expression", "gromov"])
def test_cells_outside_are_laid_but_decide_nothing(organ, method):
    cells, slide = organ
    cells = posed(cells)
    outside = np.arange(cells.n_obs) < 300
    cells.obsm["X_gears"][outside] += 40  # far off
    cells.obs["gears_outside"] = outside
    sg.tl.register(cells, slide, truth_key="truth", method=method)
    fit = cells.uns["X_gears_slide"]
    assert fit["coverage"] > 0.95 and fit["n_outside"] == 300
    assert fit["error_median"] < (0.5 if method == "expression" else 1.6)
    assert np.isfinite(cells.obsm["X_gears_slide"]).all()


def test_a_fit_to_wrong_matches_explains_little(organ):
    cells, slide = organ
    right, wrong = posed(cells), posed(cells)
    wrong.obsm["X_gears"] = np.random.default_rng(0).permutation(wrong.obsm["X_gears"])
    for one in (right, wrong):
        sg.tl.register(one, slide)
    assert right.uns["X_gears_slide"]["explained"] > 0.9 > 0.3 > wrong.uns["X_gears_slide"]["explained"]
