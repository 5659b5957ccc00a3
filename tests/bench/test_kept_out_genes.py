"""Genes kept out and read from placed cells: the folds, what is read, and rows that are kept."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from anndata import AnnData

from spatialgears import datasets
from spatialgears.bench import kept_out_genes
from spatialgears.bench.harness import Limits
from spatialgears.bench.request import Request
from spatialgears.datasets import Tissue

SMALL = {"n_cells": 150, "n_genes": 60, "n_sections": 1, "spots": 80}


def test_every_shared_gene_is_kept_out_once():
    tissue = datasets.simulate_tissue(**SMALL, seed=0)
    other = tissue.cells[:, ::-1].copy()  # another order, and a gene that the slide lacks
    more = AnnData(sp.csr_matrix(np.ones((other.n_obs, 1), np.float32)), obs=other.obs[[]].copy())
    more.var_names = ["cells only"]
    cells = AnnData(sp.hstack([other.X, more.X]).tocsr(), obs=other.obs[[]].copy())
    cells.var_names = [*other.var_names, *more.var_names]
    parts = kept_out_genes.folds(Tissue(tissue.slides, cells, tissue.truth))
    assert len(parts) == kept_out_genes.FOLDS
    assert sorted(gene for _, out in parts for gene in out) == sorted(tissue.slides[0].var_names)
    for seen, out in parts:
        assert not set(seen) & set(out) and len(seen) + len(out) == 60


def test_similarity_is_that_of_standardised_genes():
    rng = np.random.default_rng(0)
    slide = rng.normal(size=(7, 5))
    alike, a, b = kept_out_genes.similarity(slide, 3 + 2 * slide)  # other units
    np.testing.assert_array_equal(alike.argmax(0), np.arange(7))
    np.testing.assert_allclose(np.diag(alike), 1, atol=1e-6)
    assert (a == 1).all() and (b == 1).all()


def test_the_summary_has_the_spread_over_seeds_not_folds():
    rows = [
        {"fold": fold, "seed": seed, "r": {"placed cells": 0.1 * fold + 0.2 * seed}}
        for fold in (0, 1)
        for seed in (0, 1)
    ]
    found = kept_out_genes.summary(rows)["placed cells"]
    assert found == {"mean r": pytest.approx(0.15), "sd over seeds": pytest.approx(0.1)}


def test_placed_cells_show_kept_out_genes_and_rows_are_kept(small_config, tmp_path, monkeypatch):
    monkeypatch.setattr(kept_out_genes.sets, "SIMULATED", SMALL)
    monkeypatch.setattr(kept_out_genes, "FOLDS", 2)
    monkeypatch.setattr(Request, "config", lambda self, preset: small_config)
    request = Request(out=tmp_path, simulated=True, seeds=1)
    told = []
    outcome = kept_out_genes.run(request, told.append)
    found = outcome.found["summary"]
    assert len(told) == 2 and len(outcome.found["by gene"]) == 60
    assert found["direct mapping, no cell is placed"]["mean r"] > 0.2
    assert abs(found["cells shuffled"]["mean r"]) < 0.15
    axes = outcome.figures["kept-out-genes"].axes
    assert len(axes) == 2 * len(kept_out_genes.SHOWN)

    def refuse(*_):
        raise RuntimeError("it was measured before")

    monkeypatch.setattr(kept_out_genes, "measured", refuse)
    assert kept_out_genes.run(request, told.append).found == outcome.found


def test_genes_are_read_from_cells_that_a_peer_places(plane, fake):
    """The first two genes are coordinates, and a third follows the first; a peer that fails is a row with its reason."""
    planes = [plane(n, seed=n) for n in (200, 400)]
    genes = pd.DataFrame(index=["x", "y", "noise", "follows x"])
    slide, cells = (AnnData(one.X[:, [0, 1, 2, 0]], var=genes, obsm=dict(one.obsm)) for one in planes)
    tissue, limits = Tissue([slide], cells, cells), Limits(threads=1)
    rows = [
        kept_out_genes.by_peer(tissue, ["x", "y", "noise"], ["follows x"], fake(name), limits)
        for name in ("noisy", "crash")
    ]
    more = [rows[0] | {"task": "another fold"}, rows[0] | {"seed": 1}]
    done, failed = kept_out_genes.peer_summary([*rows, *more])
    assert done["mean r"] > 0.8 and done["folds"] == 2 and done["seeds"] == "2" and done["note"] == ""
    assert done["sd over seeds"] == pytest.approx(0)
    assert failed["mean r"] is None and failed["folds"] == 0 and "upside down" in failed["note"]


def test_peers_run_beside_a_preset_and_their_rows_are_kept(small_config, fake, tmp_path, monkeypatch):
    """A peer that fails once is not run again; one without randomness is run with one seed."""
    monkeypatch.setattr(kept_out_genes.sets, "SIMULATED", SMALL)
    monkeypatch.setattr(kept_out_genes, "FOLDS", 2)
    monkeypatch.setattr(Request, "config", lambda self, preset: small_config)
    monkeypatch.setattr(
        Request,
        "preset_and_peers",
        lambda self, preset: (preset, [fake("noisy"), fake("crash"), fake("nans", seeded=False)]),
    )
    first = kept_out_genes.run(Request(out=tmp_path, simulated=True, seeds=1), print)
    assert [row["status"] for row in first.found["peers"]] == ["ok", "failed", "invalid", "ok"]
    monkeypatch.setattr(
        Request,
        "preset_and_peers",
        lambda self, preset: (preset, [fake("noisy"), fake("layered", seeded=False)]),
    )
    request, told = Request(out=tmp_path, simulated=True, seeds=2), []
    outcome = kept_out_genes.run(request, told.append)
    assert "cells placed by" in outcome.text
    ran = [(row["method"], row["seed"]) for row in outcome.found["peers"]]
    assert ran == [("noisy", 0), ("noisy", 1), ("layered", 0)] * 2
    assert outcome.found["peers"][0] == first.found["peers"][0]  # it was kept
    assert kept_out_genes.run(request, told.append).found["peers"] == outcome.found["peers"]
