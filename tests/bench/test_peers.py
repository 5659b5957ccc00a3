from __future__ import annotations

import importlib.util
import json
import re
import sys

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import torch

from spatialgears.bench import peers
from spatialgears.bench.peers import HERE, PEERS, PeerOptions
from spatialgears.errors import InputError


def load(path, monkeypatch):
    """A runner, or what runners share, as a module."""
    monkeypatch.syspath_prepend(str(HERE))
    spec = importlib.util.spec_from_file_location(f"peer_{path.parent.name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.delitem(sys.modules, "common", raising=False)
    return module


@pytest.fixture
def common(monkeypatch):
    return load(HERE / "common.py", monkeypatch)


@pytest.mark.parametrize("peer", [p for p in PEERS.values() if not p.not_run], ids=lambda peer: peer.name)
def test_every_peer_has_a_runner_and_pinned_requirements(peer, monkeypatch):
    lines = [line for line in peer.requirements.read_text().splitlines() if line and not line.startswith("#")]
    assert lines and all(re.fullmatch(r"[\w.\-\[\]]+==[\w.+!]+", line) for line in lines)
    torch_lines = [line for line in lines if line.startswith("torch==")]
    assert torch_lines in ([], ["torch==2.13.0"])
    assert callable(load(peer.runner, monkeypatch).place)


def test_a_licence_is_not_accepted_for_the_user(tmp_path):
    with pytest.raises(InputError, match="--accept-licence cytospace"):
        PeerOptions(sources={"cytospace": tmp_path}).source_of(PEERS["cytospace"])
    setup = PeerOptions(sources={"cytospace": tmp_path}, accepted=("cytospace",))
    assert setup.source_of(PEERS["cytospace"]) == tmp_path


def test_peers_that_are_not_on_pypi_need_a_folder(tmp_path):
    with pytest.raises(InputError, match="--peer-source come=DIR"):
        PeerOptions().source_of(PEERS["come"])
    with pytest.raises(InputError, match="not a folder"):
        PeerOptions(sources={"come": tmp_path / "missing"}).source_of(PEERS["come"])
    assert PeerOptions().source_of(PEERS["tangram"]) is None


def test_a_peer_that_cannot_run_here_says_why(monkeypatch):
    with pytest.raises(InputError, match="R packages keras"):
        PeerOptions().source_of(PEERS["scholography"])
    monkeypatch.setattr(peers.shutil, "which", lambda program: None)
    with pytest.raises(InputError, match=r"needs R with the package Seurat.*Rscript is not on this machine"):
        PeerOptions().source_of(PEERS["seurat"])
    monkeypatch.setattr(peers.shutil, "which", lambda program: "/usr/bin/Rscript")
    assert PeerOptions().source_of(PEERS["seurat"]) is None


def test_environments_are_made_once_and_shared_by_equal_requirements(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(peers, "_make", lambda home, requirements: (made.append(home), home.mkdir()))
    setup = PeerOptions(cache=tmp_path)
    first = setup.interpreter(PEERS["tangram"])
    assert first == setup.interpreter(PEERS["tangram"]) == made[0] / "bin" / "python" and len(made) == 1
    assert setup.interpreter(PEERS["stereoscope"]) == setup.interpreter(PEERS["destvi"]) and len(made) == 2


def test_an_environment_that_cannot_be_made_says_why(tmp_path, monkeypatch):
    def fail(command, *, stdout, stderr):
        stdout.write("ERROR: No matching distribution found for nothing==1\n")
        stdout.flush()
        return type("Done", (), {"returncode": 1})

    monkeypatch.setattr(peers.subprocess, "run", fail)
    for _ in range(2):  # and is not taken for ready the next time
        with pytest.raises(InputError, match="No matching distribution"):
            PeerOptions(cache=tmp_path).interpreter(PEERS["tangram"])


def test_the_table_of_peers_states_licences_and_what_is_placed():
    text = peers.peer_table()
    assert "| CytoSPACE | non-commercial (Stanford) | cells | needed |" in text
    assert "| cell2location | Apache-2.0 | types | needed |" in text


def test_stem_kernel_is_the_same_sum_of_gaussians(monkeypatch):
    """Against the definition: five bandwidths around the mean squared distance, each twice the last."""
    kernel = load(HERE / "stem" / "runner.py", monkeypatch).cheap_kernel
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(n, 7, generator=generator, dtype=torch.float64) for n in (5, 8))
    x = torch.cat([a, b])
    squared = torch.tensor([[((p - q) ** 2).sum() for q in x] for p in x])
    base = squared.sum() / (13**2 - 13) / 2**2
    expected = sum(torch.exp(-squared / (base * 2**i)) for i in range(5))
    torch.testing.assert_close(kernel(None, a, b, 2.0, 5, None), expected)


def test_cytospace_is_asked_for_every_cell_once(monkeypatch):
    cells_per_spot = load(HERE / "cytospace" / "runner.py", monkeypatch).cells_per_spot
    spots = ad.AnnData(np.random.default_rng(0).poisson(20.0, size=(13, 5)).astype(np.float32))
    counts = cells_per_spot(spots, 101)
    assert counts.sum() == 101 and counts.min() >= 0 and np.ptp(counts) < 10


def test_expected_places(common):
    spots = ad.AnnData(np.ones((3, 1)), obsm={"spatial": np.array([[0.0, 0], [1, 0], [0, 2]])})
    mapping = np.array([[1.0, 1, 0], [0, 0, 5]])
    np.testing.assert_allclose(common.expected(mapping, spots), [[0.5, 0], [0, 2]])
    cells = ad.AnnData(np.ones((3, 1)), obs=pd.DataFrame({"type": ["b", "a", "b"]}, index=list("xyz")))
    abundance = pd.DataFrame(mapping.T, columns=["a", "b"])
    np.testing.assert_allclose(common.at_types(abundance, spots, cells), [[0, 2], [0.5, 0], [0, 2]])


def test_the_pitch_is_measured_within_slides(common):
    grid = np.stack(np.meshgrid(np.arange(4) * 3.0, np.arange(4) * 3.0), -1).reshape(-1, 2)
    spots = ad.AnnData(
        np.ones((32, 1)),
        obs=pd.DataFrame({"slide": ["a"] * 16 + ["b"] * 16}, index=[str(i) for i in range(32)]),
        obsm={"spatial": np.vstack([grid, grid + 0.1])},
    )
    assert common.pitch(spots) == pytest.approx(3.0)


def test_the_box_celery_maps_to_the_unit_square(common):
    spots = ad.AnnData(np.ones((3, 1)), obsm={"spatial": np.array([[10.0, 0], [30, 5], [20, 50]])})
    given, corner, size = common.hundred(spots)
    unit = (given - given.min(0) + 1) / (np.ptp(given, axis=0) + 2)  # what CeLEry makes of them
    np.testing.assert_allclose(unit * size + corner, spots.obsm["spatial"])


def test_a_runner_reads_a_job_and_writes_places_and_versions(common, plane, tmp_path, monkeypatch):
    plane(20).write_h5ad(tmp_path / "st.h5ad")
    plane(30).write_h5ad(tmp_path / "sc.h5ad")
    job = {"spots": str(tmp_path / "st.h5ad"), "cells": str(tmp_path / "sc.h5ad"), "seed": 3, "source": ""}
    job |= {"out": str(tmp_path), "types": "given", "packages": ["numpy", "no-such-package"]}
    (tmp_path / "job.json").write_text(json.dumps(job))
    monkeypatch.setattr(sys, "argv", ["runner.py", str(tmp_path / "job.json")])
    state = np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng():
        common.run(lambda spots, cells, seed: np.full((cells.n_obs, 2), seed))
    np.random.set_state(state)  # noqa: NPY002
    assert (np.load(tmp_path / "coords.npy") == 3).all()
    info = json.loads((tmp_path / "info.json").read_text())
    assert info["versions"]["numpy"] == np.__version__ and info["types"] == "given"


def test_normalised_values_are_refused_where_counts_are_modelled(common, plane):
    common.needs_counts(plane(10))
    halves = plane(10)
    halves.X = halves.X * 0.5
    with pytest.raises(SystemExit, match="models counts"):
        common.needs_counts(halves)
