from __future__ import annotations

import numpy as np
import pytest

from spatialgears.bench import protocols
from spatialgears.bench.depth import score_depth
from spatialgears.bench.files import PEER_GENES, TaskFiles, cell_types, variable_genes
from spatialgears.errors import InputError


def test_cells_carry_nothing_that_gives_their_place_away(plane, tmp_path):
    import anndata as ad

    cells = plane(60)
    cells.obs["x"] = cells.obsm["spatial"][:, 0]
    (task,) = protocols.unpaired([plane(40, seed=1)], cells, types="kind")
    assert not task.cells.obsm and list(task.cells.obs) == ["kind"]
    written = ad.read_h5ad(TaskFiles(task, tmp_path).cells)
    assert not written.obsm and not len(written.obs.columns)
    assert not set(written.obs_names) & set(cells.obs_names)  # names such as 10x12 say it too
    np.testing.assert_array_equal(written.X.toarray(), cells.X.toarray())


def test_a_task_is_scored_against_the_truth(plane):
    cells = plane(60)
    (task,) = protocols.unpaired([plane(40, seed=1)], cells)
    assert task.score(cells.obsm["spatial"])["spearman"] == pytest.approx(1.0)
    assert task.score(cells.obsm["spatial"][::-1])["spearman"] < 0.5


def test_the_fingerprint_follows_the_data(plane):
    def print_of(cells, slide):
        (task,) = protocols.unpaired([slide], cells)
        return task.fingerprint()

    same = print_of(plane(60), plane(40, seed=1))
    assert same == print_of(plane(60), plane(40, seed=1))
    moved = plane(40, seed=1)
    moved.obsm["spatial"][0] += 1
    other = plane(60)
    other.X[0, 0] += 1
    assert len({same, print_of(plane(60), moved), print_of(other, plane(40, seed=1))}) == 3


def test_pseudo_visium_makes_a_task_per_grid_and_spot_size(plane):
    tasks = list(protocols.pseudo_visium(plane(400), fractions=(0.5, 0.9), grid=(6, 6), min_cells=1))
    assert [task.setting["layout"] for task in tasks] == ["square", "square", "hex", "hex"]
    assert [task.setting["spot_fraction"] for task in tasks] == [0.5, 0.9, 0.5, 0.9]
    assert tasks[1].slides[0].X.sum() > tasks[0].slides[0].X.sum()


def test_every_section_is_held_out_in_turn(plane):
    sections = {name: plane(40, seed=i) for i, name in enumerate("abc")}
    tasks = list(protocols.leave_section_out(sections))
    assert [task.name for task in tasks] == ["b + c → a", "a + c → b", "a + b → c"]
    np.testing.assert_array_equal(tasks[0].truth, sections["a"].obsm["spatial"])
    with pytest.raises(InputError, match="two sections"):
        next(protocols.leave_section_out({"a": plane(40)}))


def test_sweeps_change_what_they_say(monkeypatch):
    monkeypatch.setitem(protocols.SWEEPS, "cell_depth", (50, 800))
    options = {"n_cells": 80, "n_genes": 60, "n_sections": 1, "spots": 60}
    low, high = protocols.simulated(sweep="cell_depth", **options)
    (one,) = protocols.simulated(sweep="shift", values=(3.0,), unpaired=True, **options)
    assert one.name == "simulated, other individual, shift 3" and one.setting == {"shift": 3.0}
    assert low.setting == {"cell_depth": 50} and high.cells.X.sum() > 5 * low.cells.X.sum()
    assert low.seeded and low.types == "cell_type"
    with pytest.raises(InputError, match="no sweep"):
        next(protocols.simulated(sweep="weather"))


def test_cells_of_another_individual_are_another_task():
    options = {"n_cells": 80, "n_genes": 60, "n_sections": 1, "spots": 60}
    same, other = (next(protocols.simulated(unpaired=unpaired, **options)) for unpaired in (False, True))
    assert (same.name, other.name) == ("simulated", "simulated, other individual")
    assert same.fingerprint() != other.fingerprint()


def test_dissociated_cells_are_scored_by_their_layer(plane):
    cells = plane(200)
    x = cells.obsm["spatial"][:, 0]
    cells.obs["layer"] = np.where(x < 30, "L1", np.where(x < 60, "L4", np.where(x < 90, "L6b", "All")))
    (task,) = protocols.real_unpaired([plane(40, seed=1)], cells, known="layer")
    assert task.truth is None
    right, wrong = (
        task.score(cells.obsm["spatial"]),
        task.score(np.random.default_rng(0).normal(size=(200, 2))),
    )
    assert right["depth_axis"] > 0.9 > 0.4 > wrong["depth_axis"]
    assert right["depth_distance"] > 0.5 > 0.1 > wrong["depth_distance"]
    assert right["depth_knn"] > 0.6 > wrong["depth_knn"]
    with pytest.raises(InputError, match="fewer than two"):
        next(protocols.real_unpaired([plane(40)], cells, known="kind"))


def test_depth_scores_do_not_depend_on_pose():
    rng = np.random.default_rng(0)
    coords = rng.normal(size=(150, 2))
    depth = np.digitize(coords[:, 1] + 0.3 * rng.normal(size=150), [-0.5, 0.5]).astype(float)
    quarter = np.array([[0.0, 1.0], [-1.0, 0.0]])
    a, b = score_depth(coords, depth), score_depth(coords @ quarter * 5 + 3, depth)
    assert a == pytest.approx(b, abs=1e-9)


def test_peers_get_one_slide_on_the_same_genes_with_types(plane, tmp_path):
    import anndata as ad

    slides = [plane(40, seed=1)[:, 1:].copy(), plane(50, seed=2)]
    (task,) = protocols.unpaired(slides, plane(80), types="kind")
    spots, cells, origin = TaskFiles(task, tmp_path).peer_pair
    st, sc = ad.read_h5ad(spots), ad.read_h5ad(cells)
    assert list(st.var_names) == list(sc.var_names) == list(slides[0].var_names)
    assert st.n_obs == 90 and st.obs["slide"].nunique() == 2 and origin == "given types (kind)"
    assert set(sc.obs["type"]) == {"left", "right"}
    np.testing.assert_allclose(st.obsm["spatial"][:40], slides[0].obsm["spatial"])


def test_types_are_clusters_where_none_are_given(plane):
    types, origin = cell_types(plane(100), None)
    assert len(set(types)) == 5 and origin == "5 k-means clusters"


def test_variable_genes_are_few_and_in_order(plane):
    adata = plane(100)
    chosen = variable_genes(adata, 3)
    assert len(chosen) == 3 and (np.diff(chosen) > 0).all()
    assert len(variable_genes(adata, PEER_GENES)) == adata.n_vars


def test_methods_learn_whose_slides_and_cells_are(tmp_path):
    import anndata as ad

    from spatialgears.bench.sets import simulated_donors

    one, two, *_ = simulated_donors(None, 0)
    files = TaskFiles(two, tmp_path)
    assert [ad.read_h5ad(path).uns["donor"] for path in files.slides] == ["donor 1", "donor 2"]
    assert ad.read_h5ad(files.cells).uns["donor"] == two.cells.uns["donor"] == "another donor"
    before = one.fingerprint()
    one.cells.uns["donor"] = "donor 1"
    assert one.fingerprint() != before


def test_cells_with_the_counts_of_their_true_neighbours():
    task = next(protocols.simulated(seed=0, n_cells=100, n_genes=40, n_sections=1, spots=40))
    easier = protocols.with_neighbours(task, 3)
    near = np.argsort(np.linalg.norm(task.truth[7] - task.truth, axis=1))[:4]
    assert near[0] == 7
    expected = task.cells.X.toarray()[near].sum(0)
    np.testing.assert_array_equal(easier.cells.X.toarray()[7], expected)
    np.testing.assert_array_equal(easier.truth, task.truth)
    assert easier.name == f"{task.name}, with 3 neighbours" and easier.fingerprint() != task.fingerprint()


def test_slides_of_a_small_panel_and_cells_with_all_their_genes():
    task = next(protocols.simulated(seed=0, n_cells=100, n_genes=60, n_sections=1, spots=40))
    small = protocols.with_panel(task, 25, among=30)
    (slide,) = small.slides
    detected = np.asarray((task.cells.X > 0).sum(0)).ravel()
    assert slide.n_vars == 25 and small.cells.n_vars == 60
    assert (detected[task.cells.var_names.get_indexer(slide.var_names)] >= np.sort(detected)[-30]).all()
    assert len(small.truth) == small.cells.n_obs == int((task.cells[:, slide.var_names].X.sum(1) > 0).sum())
