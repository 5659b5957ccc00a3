"""The runners of peers that live only on GitHub, against stand-ins with the functions they call."""

from __future__ import annotations

import importlib.util
import json
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


@pytest.mark.parametrize("name", ["spaotsc", "spaotsc_logs", "spaotsc_tuned"])
def test_spaotsc_gets_costs_of_the_right_shapes(place, pair, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "dit.pid.lattice", made())
    for shared in ("by_spaotsc", "held_out"):
        monkeypatch.delitem(sys.modules, shared, raising=False)
    seen = []

    class Spatial:
        def __init__(self, *, sc_data, is_data, sc_dmat, is_dmat):
            assert sc_dmat.shape == (len(sc_data),) * 2 and is_dmat.shape == (len(is_data),) * 2
            assert is_dmat[is_dmat > 0].min() == pytest.approx(10)

        def transport_plan(self, cost, *, alpha, rho, epsilon, cor_matrix, scaling):
            assert (alpha, rho, scaling) == (0.1, 100.0, False)
            seen.append((cost.shape, epsilon, len(np.unique(cor_matrix.round(6)))))
            return (cost == cost.min(1, keepdims=True)).astype(float)  # all to the best spot

    found = place(name, spaotsc=made(SpaOTsc=SimpleNamespace(spatial_sc=Spatial)))
    coords = found["coords"] if name == "spaotsc_tuned" else found
    np.testing.assert_allclose(coords, pair[2])
    assert seen[-1][0] == (40, 20)
    if name != "spaotsc_tuned":
        assert len(seen) == 1 and seen[0][1] == 1.0
        assert (seen[0][2] < 100) == (name == "spaotsc")  # binarised: few values of the correlation
    else:
        assert [epsilon for _, epsilon, _ in seen[:-1]] == [1.0, 0.3, 0.1] * 2
        assert len(found["on_held_out_spots"]) == 6


def test_scspace_is_trained_in_units_of_the_pitch(place, pair):
    def construct_pseudo_space(*, sc_adata, st_adata, dim):
        assert dim == 30 and st_adata.obsm["spatial"].max() == pytest.approx(4)
        sc_adata.obsm["pseudo_space"] = np.repeat(st_adata.obsm["spatial"], 2, axis=0)
        return sc_adata, st_adata

    module = made(construct_pseudo_space=construct_pseudo_space)
    coords = place("scspace", scSpace=made(), scSpace__scspace=module)
    np.testing.assert_allclose(coords, pair[2])


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


def nearest_spot(spots, cells):
    """Which spot each cell's counts are those of; (cells, spots) of zeros and ones."""
    return (np.abs(cells[:, None] - spots[None]).sum(2) < 1e-3).astype(float)


def test_cellcontrast_learns_from_each_slide_and_takes_the_most_similar_spot(place, pair, tmp_path):
    (tmp_path / "parameters").mkdir()
    (tmp_path / "parameters" / "parameters_spot.json").write_text(
        '{"training_epoch": 3000, "batch_size": 64}'
    )

    def train_model(options, slide):
        given = json.loads(options.parameter_file_path.read_text())
        assert given == {"training_epoch": 500, "batch_size": 64}
        np.testing.assert_allclose(slide.obs[["x", "y"]], pair[0].obsm["spatial"])
        assert set(slide.obs["embryo"]) == {"slide 0"}

    module = made(
        train=made(train_model=train_model, __file__=str(tmp_path / "cellContrast" / "train.py")),
        inference=made(
            infer_representations=lambda model, adata: adata.X,
            map_to_ST=lambda cells, spots, coords: coords[nearest_spot(spots, cells).argmax(1)],
        ),
    )
    np.testing.assert_allclose(place("cellcontrast", cellContrast=module), pair[2])


def test_celloc_runs_without_a_gpu(place, pair, monkeypatch):
    monkeypatch.setitem(sys.modules, "datatable", made())
    celloc = made()

    def paired_align(singles, slide, *, b_init, use_gpu, task):
        assert str(celloc.torch.device("cuda")) == "cpu" and celloc.torch.ones(1) == 1
        edges = celloc.knn_graph(torch.tensor([[0.0], [1.0], [5.0]]), k=2, loop=True)
        assert edges.tolist() == [[0, 0, 1, 1, 2, 2], [0, 1, 1, 0, 2, 1]]
        assert (list(b_init), use_gpu, task) == ([2] * 20, False, "location_recovery")
        assert singles.obsm["X_pca"].shape == (40, 29)
        return nearest_spot(slide.X, singles.X)

    celloc.paired_align = paired_align
    common = made(estimate_cell_number_RNA_reads=lambda table, mean: [mean] * table.shape[1])
    coords = place("celloc", Celloc=made(CELLOC=celloc, mapping_optimizer=made()), Celloc__common=common)
    np.testing.assert_allclose(coords, pair[2])


@pytest.mark.parametrize("n_slides", [1, 2])
def test_isort_trains_a_network_for_each_slide_and_one_for_all(place, pair, monkeypatch, n_slides):
    spots, _, truth = pair
    spots.obs["slide"] = np.repeat([f"slide {i}" for i in range(n_slides)], 20 // n_slides)
    monkeypatch.setitem(sys.modules, "sctour", made())
    steps = []

    class Network(torch.nn.Linear):
        def __init__(self, n_genes, hidden, n_out):
            super().__init__(n_genes, n_out)

        def forward(self, x):
            coords = (truth - spots.obsm["spatial"].mean(0)) / spots.obsm["spatial"].std(0)
            return torch.tensor(coords, requires_grad=True)

    network = made(
        NeuralNet=Network,
        seed_everything=lambda seed: None,
        initialize_model=lambda *sizes: (Network(*sizes), None, None),
        prepare_data=lambda x, y, weights: (len(x), len(weights)),
        train_and_validate=lambda *given: steps.append(given[-1]),
        train_model=lambda model, optimizer, epochs, *given: steps.append(epochs),
    )
    ratio = SimpleNamespace(fit=lambda cells: None, calculate_weights=lambda slide: np.ones(slide.n_obs))
    isort = made(KLIEP=lambda *, sigma: ratio, optimize_prediction_weights=lambda *given: np.ones(n_slides))
    coords = place("isort", iSORTlib=made(iSORT=isort, network=network))
    assert steps == ([500] if n_slides == 1 else [500, 500, 3000])
    np.testing.assert_allclose(coords, truth, atol=1e-6)


def test_envi_places_cells_by_its_latent_space(place, pair):
    class ENVI:
        def __init__(self, *, spatial_data, sc_data, batch_key):
            assert batch_key == "slide"
            self.spatial_data, self.sc_data = spatial_data, sc_data

        def train(self, *, training_steps, key):
            assert training_steps == 1000
            self.spatial_data.obsm["envi_latent"] = pair[0].obsm["spatial"]
            self.sc_data.obsm["envi_latent"] = np.tile([20.0, 15.0], (40, 1))

    jax = made(random=SimpleNamespace(key=lambda seed: seed))
    coords = place("envi", scenvi=made(ENVI=ENVI), jax=jax)
    assert coords.shape == (40, 2) and (np.abs(coords - [20, 15]) < 6).all()


def test_sc2spa_gets_the_slide_in_the_first_quadrant_and_in_random_order(place, pair, monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython.display", made())

    def fine_mapping(slide, singles, *, sparse, batch_size, save, FM, seed, loss, loss_name):
        assert slide.obsm["spatial"].min() == 1 and batch_size == 2 and not sparse and not FM
        assert list(slide.obs_names) != list(pair[0].obs_names)
        singles.obsm["spatial_mapping"] = nearest_spot(slide.X, singles.X) @ slide.obsm["spatial"]

    coords = place("sc2spa", SC2Spa=made(tl=made(FineMapping=fine_mapping)))
    np.testing.assert_allclose(coords, pair[2], atol=1e-6)


def test_sagenet_gets_five_partitions_of_the_slide(place, pair, monkeypatch):
    monkeypatch.setitem(sys.modules, "sagenet", made())

    class Sage:
        def __init__(self, *, device):
            self.mapped = []

        def add_ref(self, slide, *, comm_columns, tag, epochs):
            assert len(comm_columns) == 5 and epochs == 20 and "adj" in slide.varm
            assert all(slide.obs[name].dtype.kind == "i" for name in comm_columns)

        def map_query(self, adata, *, save_pred, save_ent, save_prob):
            adata.obsm["prob_concatenated"] = adata.X

    def glasso(slide):
        slide.varm["adj"] = np.eye(slide.n_vars)

    def map2ref(slide, singles):
        return nearest_spot(*(a.obsm["prob_concatenated"] for a in (slide, singles))).argmax(1), None

    modules = {
        "torch_geometric": made(data=made()),
        "torch_geometric__data": made(),
        "torch_geometric__loader": made(DataLoader=object),
        "sagenet__sage": made(sage=Sage),
        "sagenet__utils": made(glasso=glasso, map2ref=map2ref),
    }
    np.testing.assert_allclose(place("sagenet", **modules), pair[2])


def test_rctd_places_types_and_spots_it_leaves_out_do_not_count(place, pair):
    kept = np.arange(20) < 10

    def run_rctd(spots, reference, *, mode):
        assert mode == "full"
        weights = np.zeros((10, 1))
        weights[3] = 1
        return SimpleNamespace(weights=weights, pixel_mask=kept, cell_type_names=["A"])

    coords = place("rctd", rctd=made(Reference=lambda cells, cell_type_col: None, run_rctd=run_rctd))
    grid = pair[0].obsm["spatial"]
    np.testing.assert_allclose(coords[20:], np.tile(grid[3], (20, 1)))
    np.testing.assert_allclose(coords[:20], np.tile(grid[:10].mean(0), (20, 1)))  # a type that it dropped


def test_r_scripts_find_both_matrices_and_give_a_table_back(pair, monkeypatch, tmp_path):
    """A program that stands in for Rscript: it reads what it is given and writes the table."""
    monkeypatch.syspath_prepend(str(HERE))
    fake = tmp_path / "Rscript"
    fake.write_text(
        f"""#!{sys.executable}
import sys
from pathlib import Path
from scipy.io import mmread
script, folder, seed, source = Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4], sys.argv[5]
if "stop" in script.read_text():
    sys.exit("Error in library(Seurat) : there is no package called 'Seurat'")
assert mmread(folder / "spots.mtx").shape == (30, 20) and mmread(folder / "cells.mtx").shape == (30, 40)
assert len((folder / "genes.txt").read_text().split()) == 30 and (seed, source) == ("4", "/source")
assert (folder / "types.txt").read_text().split() == ["b"] * 20 + ["A"] * 20
(folder / "result.csv").write_text((folder / "coords.csv").read_text())
"""
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{__import__('os').environ['PATH']}")
    from in_r import in_r

    spots, cells, _ = pair
    found = in_r("result <- coords", spots, cells, seed=4, source="/source")
    np.testing.assert_allclose(found, spots.obsm["spatial"])
    with pytest.raises(SystemExit, match="there is no package"):
        in_r("stop()", spots, cells, seed=0)


def test_seurat_and_spotlight_read_their_tables(place, pair):
    spots, _, truth = pair
    moved = made(in_r=lambda script, spots, cells, seed: pd.DataFrame(truth))
    np.testing.assert_allclose(place("seurat", in_r=moved), truth)

    def proportions(script, spots, cells, *, seed, source):
        assert set(cells.obs["type"]) == {"t0", "t1"}
        table = np.zeros((20, 2))
        table[4, 0] = table[7, 1] = 1
        return pd.DataFrame(table, columns=["t0", "t1"])

    coords = place("spotlight", in_r=made(in_r=proportions))
    np.testing.assert_allclose(coords[:20], np.tile(spots.obsm["spatial"][7], (20, 1)), atol=1e-5)
    np.testing.assert_allclose(coords[20:], np.tile(spots.obsm["spatial"][4], (20, 1)), atol=1e-5)


def test_luna_gets_genes_first_and_no_coordinates_of_cells(pair, monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.delitem(sys.modules, "common", raising=False)
    spec = importlib.util.spec_from_file_location("luna_runner", HERE / "luna" / "runner.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    table = module.frame(pair[0], pair[0].obsm["spatial"], np.full(20, "s"))
    assert list(table.columns[30:]) == ["coord_X", "coord_Y", "cell_section", "cell_class"]
    assert table.shape == (20, 34) and list(module.EPOCHS) == sorted(module.EPOCHS)


@pytest.mark.parametrize("n_slides", [1, 2])
def test_tuned_settings_are_chosen_on_held_out_spots_alone(pair, monkeypatch, n_slides):
    monkeypatch.syspath_prepend(str(HERE))
    from held_out import with_best_setting

    spots, cells, truth = pair
    spots.obs["slide"] = np.repeat([f"slide {i}" for i in range(n_slides)], 20 // n_slides)
    asked = []

    def place_with(given, singles, setting):
        asked.append((given.n_obs, singles.n_obs, setting["noise"]))
        where = nearest_spot(spots.X.toarray(), singles.X.toarray()) @ spots.obsm["spatial"]
        return where + setting["noise"] * np.random.default_rng(1).normal(size=where.shape)

    found = with_best_setting(spots, cells, [{"noise": 50.0}, {"noise": 0.1}], place_with)
    assert found["on_held_out_spots"][1] > 0.95 > found["on_held_out_spots"][0]
    assert asked[-1] == (20, 40, 0.1) and all(given + aside == 20 for given, aside, _ in asked[:2])
    if n_slides == 2:
        assert asked[0][:2] == (10, 10)
    np.testing.assert_allclose(found["coords"], truth, atol=1)


def test_a_tuned_setting_that_fails_on_cells_is_passed_over(pair, monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    from held_out import with_best_setting

    spots, cells, truth = pair

    def place_with(given, singles, setting):
        where = nearest_spot(spots.X.toarray(), singles.X.toarray()) @ spots.obsm["spatial"]
        fails = setting["fails"] and singles.n_obs == cells.n_obs
        return np.full_like(where, np.nan) if fails else where + setting["off"] * where**2

    found = with_best_setting(
        spots, cells, [{"off": 0.1, "fails": False}, {"off": 0.0, "fails": True}], place_with
    )
    assert found["on_held_out_spots"][1] > found["on_held_out_spots"][0]
    np.testing.assert_allclose(found["coords"], truth + 0.1 * truth**2, atol=1e-9)
