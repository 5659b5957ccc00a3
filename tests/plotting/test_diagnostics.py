from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import spatialgears as sg
from spatialgears import metrics
from spatialgears.errors import InputError
from spatialgears.plotting.values import turned_onto

FIGURES = [sg.pl.distortion, sg.pl.calibration_error, sg.pl.local_rmse, sg.pl.edge_roc]


@pytest.fixture
def truth():
    return np.random.default_rng(0).normal(size=(120, 2)) * [40, 20] + 500


@pytest.fixture
def coords(truth):
    noise = np.random.default_rng(1).normal(size=truth.shape)
    return (truth + 6 * noise) @ np.array([[0.6, 0.8], [-0.8, 0.6]])


@pytest.mark.parametrize("figure", FIGURES)
@pytest.mark.parametrize("n", [3, 120, 30_000])
def test_diagnostics_draw_for_few_and_many_cells(figure, n):
    rng = np.random.default_rng(2)
    truth = rng.normal(size=(n, 2)) * [2, 1]
    options = {} if n < 1000 else {"max_cells": 400}
    ax = figure(truth + 0.1 * rng.normal(size=(n, 2)), truth, **options)
    ax.figure.canvas.draw()
    assert ax.get_xlabel() and ax.get_ylabel()


def test_distortion_is_the_metric_and_zero_for_the_truth(coords, truth):
    ax = sg.pl.distortion(coords, truth, blocks=30)
    np.testing.assert_allclose(ax.images[0].get_array(), metrics.distortion_matrix(coords, truth, blocks=30))
    assert sg.pl.distortion(3 * truth, truth).images[0].get_array().max() < 1e-9


@pytest.mark.parametrize(
    ("figure", "metric"), [(sg.pl.calibration_error, metrics.cal_error), (sg.pl.local_rmse, metrics.lrmse)]
)
def test_curves_are_the_metric_at_each_size(figure, metric, coords, truth):
    ax = figure({"ours": coords, "perfect": truth}, truth, ks=(5, 20, 500))
    ours, perfect = ax.get_lines()
    assert ours.get_xdata().tolist() == [5, 20]  # 500 neighbours cannot be had
    np.testing.assert_allclose(ours.get_ydata(), [metric(coords, truth, k=k) for k in (5, 20)], rtol=1e-5)
    np.testing.assert_allclose(perfect.get_ydata(), 0, atol=1e-6)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["ours", "perfect"]


def test_a_sample_stands_for_all():
    rng = np.random.default_rng(3)
    truth = rng.random((4000, 2))
    coords = truth + 0.02 * rng.normal(size=truth.shape)
    exact, sampled = (
        sg.pl.local_rmse(coords, truth, ks=(20,), max_cells=most).get_lines()[0].get_ydata()[0]
        for most in (4000, 800)
    )
    assert sampled == pytest.approx(exact, rel=0.05)


def test_roc_states_the_area(coords, truth):
    ax = sg.pl.edge_roc({"ours": coords, "perfect": truth}, truth)
    area = metrics.edge_auc(coords, truth)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [f"ours {area:.3f}", "perfect 1.000"]
    rates = ax.get_lines()[0].get_xydata()
    assert (
        (np.diff(rates, axis=0) >= 0).all() and rates[0].tolist() == [0, 0] and rates[-1].tolist() == [1, 1]
    )


def test_coverage_counts_cells_within_their_radius(truth):
    true = metrics.canonical(truth)
    coords = true + 0.05 * np.random.default_rng(4).normal(size=true.shape)
    error = np.linalg.norm(turned_onto(coords, true, scale=False) - true, axis=1)
    radii = {share: np.full(120, np.quantile(error, share)) for share in (0.5, 0.9)}
    turned = coords @ np.array([[0.0, 1.0], [-1.0, 0.0]]) + 7  # pose does not matter, scale does
    ax = sg.pl.coverage(turned, truth, radii=radii)
    line = next(line for line in ax.get_lines() if line.get_marker() == "o")
    np.testing.assert_allclose(line.get_xydata(), [[50, 50], [90, 90]], atol=1)


def test_coverage_finds_the_radii_of_a_reconstruction(adata):
    truth = adata.obsm["X_gears"] + 0.1
    written = sg.pl.coverage(adata, truth)
    rec = SimpleNamespace(
        coords=adata.obsm["X_gears"],
        radius50=adata.obs["gears_radius50"].to_numpy(),
        radius90=adata.obs["gears_uncertainty"].to_numpy(),
    )
    in_memory = sg.pl.coverage(rec, truth)
    for a, b in zip(written.get_lines(), in_memory.get_lines(), strict=True):
        np.testing.assert_allclose(a.get_xydata(), b.get_xydata())
    with pytest.raises(InputError, match="no radii"):
        sg.pl.coverage(adata.obsm["X_gears"], truth)
    adata.obs["gears_radius50"] = np.nan
    with pytest.raises(InputError, match="radii are missing"):
        sg.pl.coverage(adata, truth)


def test_mismatch_and_nothing_are_refused(coords, truth):
    with pytest.raises(InputError, match="119 predicted places and 120 true ones"):
        sg.pl.edge_roc(coords[1:], truth)
    with pytest.raises(InputError, match="no prediction"):
        sg.pl.edge_roc({}, truth)
    with pytest.raises(InputError, match="At least 3 cells"):
        sg.pl.local_rmse(coords[:2], truth[:2])
