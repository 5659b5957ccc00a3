"""``gears bench impute``, ``transfer`` and ``many-cells``: what is kept out, how it is scored, and rows that are kept."""

from __future__ import annotations

import json
import sys

import numpy as np
import pandas as pd
import pytest

from spatialgears import datasets, metrics
from spatialgears.analysis import register
from spatialgears.bench import imputation, label_transfer, many_cells
from spatialgears.bench.harness import Limits
from spatialgears.bench.methods import PeerMethod
from spatialgears.bench.peers import PEERS, PeerOptions
from spatialgears.bench.request import Request

SMALL = {"n_cells": 300, "n_genes": 60, "n_sections": 1, "spots": 100}


def with_true_places(slides, cells, config):
    """Cells at their true places, as a perfect model would leave them."""
    tissue = datasets.simulate_tissue(**SMALL, seed=0)
    cells = cells.copy()
    coords = tissue.truth.obsm["spatial"]
    cells.obsm["X_gears"], cells.obs["gears_radius50"] = metrics.canonical(coords), 0.1
    register(cells, *slides)
    return cells


@pytest.fixture
def tissue():
    return datasets.simulate_tissue(**SMALL, seed=0)


def test_genes_of_a_panel_are_kept_out_in_folds(tissue):
    folds = list(imputation.folds("small", tissue.slides[0], tissue.cells))
    assert len(folds) == 5
    assert sorted(gene for fold in folds for gene in fold.kept_out) == sorted(tissue.slides[0].var_names)
    for fold in folds:
        assert not set(fold.seen.var_names) & set(fold.kept_out)
        assert fold.truth.shape == (tissue.slides[0].n_obs, len(fold.kept_out))


def test_scores_of_a_perfect_and_of_a_constant_prediction():
    truth = np.random.default_rng(0).gamma(2.0, size=(50, 3))
    perfect, flat = imputation.scores(truth, truth), imputation.scores(truth, np.ones_like(truth))
    assert perfect["r"] == perfect["ssim"] == [1, 1, 1] and perfect["rmse"] == [0, 0, 0]
    assert flat["r"] == [0, 0, 0] and flat["rmse"] == pytest.approx([1, 1, 1], abs=1e-3)
    assert (np.array(flat["js"]) > 0.1).all() and (np.array(perfect["js"]) < 1e-3).all()


def test_references_follow_a_gene_they_did_not_see(tissue):
    fold = next(imputation.folds("small", tissue.slides[0], tissue.cells))
    r = {
        name: np.mean(fold.scored(method(fold.seen, tissue.cells))["r"])
        for name, method in imputation.METHODS.items()
        if name != "nearest placed cells"
    }
    assert r["mean"] == 0 and min(value for name, value in r.items() if name != "mean") > 0.2


def test_mapping_sums_to_one_by_spot_or_by_cell(tissue):
    slide, cells = tissue.slides[0], tissue.cells
    np.testing.assert_allclose(imputation.direct_weights(slide, cells).sum(1), 1, rtol=1e-4)
    np.testing.assert_allclose(imputation.direct_weights(slide, cells, by_cell=True).sum(0), 1, rtol=1e-4)


def test_calibration_is_the_gap_between_probability_and_accuracy():
    names, true, known = ["a", "b"], np.array(["a"] * 8 + ["b"] * 2), np.arange(12) < 10
    sure = label_transfer.judged(np.tile([0.8, 0.2], (12, 1)), known, true, names)
    assert sure["accuracy"] == sure["mean probability"] == pytest.approx(0.8)
    assert sure["calibration error"] == pytest.approx(0)
    too_sure = label_transfer.judged(np.tile([1.0, 0.0], (12, 1)), known, true, names)
    assert too_sure["calibration error"] == pytest.approx(0.2)


def test_composition_is_compared_with_the_truth():
    truth = np.eye(3)
    assert label_transfer.compared(truth, truth)["JSD"] == pytest.approx(0, abs=1e-6)
    assert label_transfer.compared(truth[::-1], truth)["JSD"] == pytest.approx(2 / 3, abs=1e-6)


RUNNER = """
import json, sys
sys.path.insert(0, {folder!r})
from common import at_types, expected, run
import anndata as ad, numpy as np, pandas as pd

def place(spots, cells, seed):
    assert list(spots.var_names) == list(cells.var_names)
    {gives}

if __name__ == "__main__":
    run(place)
"""
MAPPING = (
    "return expected(np.exp(np.corrcoef(cells.X.toarray(), spots.X.toarray())"
    "[: cells.n_obs, cells.n_obs :] * 9), spots)"
)
TYPES = (
    "names = sorted(set(cells.obs['type'])); kind = np.arange(spots.n_obs)[:, None] % len(names) == np.arange(len(names))\n"
    "    return at_types(pd.DataFrame(2.0 * kind, columns=names), spots, cells)"
)
GENES = (
    "hidden = ad.read_h5ad(json.load(open(sys.argv[1]))['hidden']); spots = spots.copy()\n"
    "    here = hidden.X.toarray().mean(0) * np.linspace(0.0, 1, spots.n_obs)[:, None]\n"
    "    return {'coords': expected(np.ones((cells.n_obs, spots.n_obs)), spots), 'imputed': here}"
)


@pytest.fixture
def peer(tmp_path):
    """Makes a peer of what its runner returns."""

    def make(gives: str) -> OwnPython:
        runner = tmp_path / "runner.py"
        folder = str(PEERS["tangram"].runner.parents[1])
        runner.write_text(RUNNER.replace("{folder!r}", repr(folder)).replace("{gives}", gives))
        return OwnPython("peer", "peer", str(runner), peer=PEERS["tangram"], setup=PeerOptions())

    return make


@pytest.mark.filterwarnings("ignore")
def test_genes_and_labels_are_read_from_the_mapping_of_a_peer(tissue, peer):
    """Whatever a runner gives to ``expected``; one that fails is a row with its reason."""
    fold = next(imputation.folds("small", tissue.slides[0], tissue.cells))
    row = imputation.by_peer(fold, peer(MAPPING), Limits(threads=1))
    assert row["status"] == "ok" and np.mean(row["scores"]["peer"]["r"]) > 0.2
    labelled = label_transfer.Labelled(
        "labels", tissue.slides, tissue.cells, "domain", tissue.truth.obs["domain"]
    )
    (row,) = label_transfer.by_peer(labelled, peer(MAPPING), Limits(threads=1))["rows"]
    assert row["accuracy"] > 0.5
    (row,) = label_transfer.by_peer(labelled, peer("raise SystemExit('no memory today')"), Limits(threads=1))[
        "rows"
    ]
    assert row["note"] == "no memory today" and "accuracy" not in row


@pytest.mark.filterwarnings("ignore")
def test_peers_that_predict_genes_or_place_types_are_taken_at_their_word(tissue, peer):
    slide, cells = tissue.slides[0], tissue.cells
    fold = next(imputation.folds("small", slide, cells))
    row = imputation.by_peer(fold, peer(GENES), Limits(threads=1))
    here = cells[:, fold.kept_out].X.toarray().mean(0) * np.linspace(0.0, 1, slide.n_obs)[:, None]
    assert row["scores"]["peer"] == fold.best(here, np.log1p(1e4 * here))
    names = sorted(set(cells.obs["cell_type"]))
    truth = np.arange(slide.n_obs)[:, None] % len(names) == np.arange(len(names))
    types = label_transfer.Composed(
        "types", slide, cells, "cell_type", pd.DataFrame(truth * 1.0, columns=names)
    )
    (row,) = label_transfer.by_peer(types, peer(TYPES), Limits(threads=1))["rows"]
    assert row["RMSE"] == pytest.approx(0, abs=1e-6)


class OwnPython(PeerMethod):
    """A peer whose runner is given, in this environment."""

    def command(self, files, *, seed, out):
        spots, cells, _ = files.peer_pair
        job = {
            "spots": str(spots),
            "cells": str(cells),
            "types": "",
            "seed": seed,
            "out": str(out),
            "source": "",
            "packages": [],
        }
        (files.folder / "job.json").write_text(json.dumps(job))
        return [sys.executable, self.entry, str(files.folder / "job.json")]


@pytest.mark.filterwarnings("ignore")
def test_labels_and_composition_are_measured_once(tissue, tmp_path, monkeypatch):
    calls = []

    def place(*given):
        calls.append(given)
        return with_true_places(*given)

    monkeypatch.setattr(label_transfer, "placed", place)
    slide = tissue.slides[0]
    layers = label_transfer.Labelled("labels", [slide], tissue.cells, "domain", tissue.truth.obs["domain"])
    truth = pd.DataFrame(1 / 3, index=range(slide.n_obs), columns=sorted(set(tissue.cells.obs["cell_type"])))
    types = label_transfer.Composed("types", slide, tissue.cells, "cell_type", truth)
    monkeypatch.setattr(label_transfer, "simulated", lambda _: iter([layers, types]))
    request = Request(out=tmp_path, simulated=True)
    found = label_transfer.run(request, print)
    best = found.found["labels of cells"]
    assert best[0]["accuracy"] > 0.5 and {"kNN", "direct mapping"} <= {row["method"] for row in best}
    assert len(found.found["cell types per spot"]) == 7 and len(calls) == 2
    assert label_transfer.run(request, print).found == found.found and len(calls) == 2


@pytest.mark.filterwarnings("ignore")
def test_functions_are_timed_in_a_process_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(many_cells, "SIZE", {"n_spots": 100, "n_genes": 300})
    monkeypatch.setattr(many_cells, "FUNCTIONS", {"abundance": many_cells.FUNCTIONS["abundance"]})
    found = many_cells.run(Request(out=tmp_path, sizes="300,400"), print)
    assert [(row["function"], row["cells"]) for row in found.found] == [
        ("abundance", 300),
        ("abundance", 400),
    ]
    assert all(row["seconds"] > 0 and row["peak GB"] > 0 for row in found.found)
    assert "log-log slope" in found.text
