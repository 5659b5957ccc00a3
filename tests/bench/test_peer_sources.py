"""The runners of peers that live only on GitHub, against stand-ins with the functions they call."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from anndata import AnnData

from spatialgears.bench.peers import HERE


@pytest.fixture
def pair():
    """Spots on a grid, and two cells of each spot's profile: the mapping is known."""
    rng = np.random.default_rng(0)
    import scipy.sparse as sp

    grid = np.stack(np.meshgrid(np.arange(5.0), np.arange(4.0)), -1).reshape(-1, 2) * 10
    counts = rng.poisson(rng.gamma(0.5, 60, size=(20, 30))).astype(np.float32)
    spots = AnnData(sp.csr_matrix(counts), obsm={"spatial": grid})
    spots.obs["slide"] = "slide 0"
    cells = AnnData(sp.csr_matrix(np.repeat(counts, 2, axis=0)))
    cells.obs["type"] = np.repeat(["b", "A"], 20)
    return spots, cells, np.repeat(grid, 2, axis=0)


@pytest.fixture
def place(monkeypatch, pair):
    """Load a runner with stand-ins for its peer's modules and place the cells."""

    def run(name: str, **modules: ModuleType) -> np.ndarray:
        for key, module in modules.items():
            monkeypatch.setitem(sys.modules, key.replace("__", "."), module)
        monkeypatch.syspath_prepend(str(HERE))
        monkeypatch.delitem(sys.modules, "common", raising=False)
        spec = importlib.util.spec_from_file_location(f"source_{name}", HERE / name / "runner.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        spots, cells, _ = pair
        return module.place(spots, cells, 0)

    return run


def made(**contents) -> ModuleType:
    module = ModuleType("stand-in")
    vars(module).update(contents)
    return module


def test_spaotsc_gets_costs_of_the_right_shapes(place, pair):
    class Spatial:
        def __init__(self, *, sc_data, is_data, sc_dmat, is_dmat):
            assert sc_data.shape == (40, 30) and is_data.shape == (20, 30)
            assert sc_dmat.shape == (40, 40) and is_dmat[0, 1] == pytest.approx(10)

        def transport_plan(self, cost, *, alpha, rho, epsilon, cor_matrix, scaling):
            assert (alpha, rho, epsilon, scaling) == (0.1, 100.0, 1.0, False)
            return (cost == cost.min(1, keepdims=True)).astype(float)  # all to the best spot

    coords = place("spaotsc", spaotsc=made(SpaOTsc=SimpleNamespace(spatial_sc=Spatial)))
    np.testing.assert_allclose(coords, pair[2])


def test_scspace_is_trained_in_units_of_the_pitch(place, pair):
    def construct_pseudo_space(*, sc_adata, st_adata, dim):
        assert dim == 30 and st_adata.obsm["spatial"].max() == pytest.approx(4)
        sc_adata.obsm["pseudo_space"] = np.repeat(st_adata.obsm["spatial"], 2, axis=0)
        return sc_adata, st_adata

    module = made(construct_pseudo_space=construct_pseudo_space)
    coords = place("scspace", scSpace=made(), scSpace__scspace=module)
    np.testing.assert_allclose(coords * 10, pair[2])


def test_come_places_cells_by_their_column_of_the_mapping(place, pair, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["runner.py", "job.json"])
    monkeypatch.chdir(Path.cwd())

    class Model(torch.nn.Module):
        def __init__(self, config):
            super().__init__()
            self.ae = torch.nn.Linear(config["dims"][0], 2)
            self.map = SimpleNamespace(Coefficient=torch.zeros(config["num_sample1"], config["num_sample2"]))

    def pretrain_ae(net, optimizer, data, config, path):
        assert data.shape == (60, 30) and data.min() >= 0 and data.max() < 1.001
        Path(path).touch()

    def train(model, optimizer, x1, x2, same, config, path):
        assert same.sum() == 2 * 20**2  # cells of one type
        model.map.Coefficient[np.arange(40) // 2, np.arange(40)] = 3.0
        model.map.Coefficient[:, :] -= 0.5 * (model.map.Coefficient == 0)

    modules = {
        "train_eval": made(pretrain_ae=pretrain_ae, train=train),
        "configure": made(get_default_config=lambda name: {"dims": [9, 8, 7], "pre_lr": 0.1, "lr": 0.1}),
        "model": made(Model=Model),
    }
    np.testing.assert_allclose(place("come", **modules), pair[2], atol=1e-6)


def test_cytospace_reads_its_tables_and_its_assignment_is_read(place, pair):
    def main_cytospace(
        scRNA_path, cell_type_path, st_path, coordinates_path, cell_type_fraction_estimation_path,
        n_cells_per_spot_path, output_folder, plot_off, seed,
    ):  # fmt: skip
        read = lambda path: pd.read_csv(path, sep="\t", index_col=0)  # noqa: E731
        assert read(scRNA_path).shape == (30, 40) and read(st_path).shape == (30, 20)
        assert read(n_cells_per_spot_path)["cells"].sum() == 40 and plot_off
        fractions = read(cell_type_fraction_estimation_path)
        assert fractions.loc["fraction", "A"] == 0.5 and list(read(coordinates_path)) == ["row", "col"]
        Path(output_folder).mkdir()
        cells = [f"c{i}" for i in range(39)]  # the last is left out
        frame = pd.DataFrame({"OriginalCID": cells, "SpotID": [f"s{i // 2}" for i in range(39)]})
        frame.to_csv(Path(output_folder) / "assigned_locations.csv", index=False)

    coords = place("cytospace", cytospace=made(), cytospace__cytospace=made(main_cytospace=main_cytospace))
    np.testing.assert_allclose(coords[:39], pair[2][:39])
    np.testing.assert_allclose(coords[39], pair[2][20:39].mean(0))  # the mean place of its type
