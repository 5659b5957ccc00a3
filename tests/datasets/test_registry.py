from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from scipy import sparse

from spatialgears.datasets import REGISTRY, load
from spatialgears.errors import InputError

N = 30


def write(
    path: Path, *, labels: list[str], scale: float = 1.0, spatial: bool = True, seed: int = 0
) -> AnnData:
    rng = np.random.default_rng(seed)
    names = [f"{path.stem}_{i}" for i in range(N)]
    adata = AnnData(
        sparse.csr_matrix(rng.poisson(2.0, (N, 8)).astype(np.float32) * scale),
        obs=pd.DataFrame({label: pd.Categorical(rng.choice(["a", "b"], N)) for label in labels}, index=names),
        var=pd.DataFrame(index=[f"g{i}" for i in range(8)]),
        obsm={"spatial": rng.normal(size=(N, 2)), "spatial_affine": rng.normal(size=(N, 2))}
        if spatial
        else {},
        uns={"X_kind": "some kind"},
    )
    adata.obs["x_global"] = rng.normal(size=N)
    path.parent.mkdir(parents=True, exist_ok=True)
    adata.write_h5ad(path)
    return adata


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Every set of the registry, in small; tests that change files take a ``copy``."""
    folder = tmp_path_factory.mktemp("data")
    for entry in REGISTRY.values():
        scale = 1.0 if entry.counts else 0.37
        labels = [old for old, _ in entry.labels]
        for seed, path in enumerate(entry.sections.values()):
            write(folder / path, labels=labels, scale=scale, seed=seed)
        if entry.cells:
            write(folder / entry.cells, labels=labels, scale=scale, spatial=entry.places, seed=9)
    return folder


@pytest.fixture
def copy(root, tmp_path):
    return shutil.copytree(root, tmp_path / "copy")


@pytest.mark.parametrize("name", REGISTRY)
def test_every_set_comes_in_one_shape_with_the_truth_apart(name, root):
    tissue = load(name, root)
    assert tissue.slides and all(slide.obsm["spatial"].shape == (slide.n_obs, 2) for slide in tissue.slides)
    assert not tissue.cells.obsm and set(tissue.cells.obs) <= {"cell_type"}
    assert list(tissue.truth.obs_names) == list(tissue.cells.obs_names) and tissue.truth.n_vars == 0
    assert ("spatial" in tissue.truth.obsm) == REGISTRY[name].places
    assert set(tissue.truth.obs) == {new for _, new in REGISTRY[name].labels}
    assert tissue.cells.uns["X_kind"] == "some kind"
    held = set(tissue.cells.obs_names)
    assert all(held.isdisjoint(slide.obs_names) for slide in tissue.slides)


def test_the_held_out_section_is_what_is_placed(root):
    tissue = load("her2st_E", root, heldout="E1")
    assert tissue.cells.obs_names[0].startswith("E1_")
    assert [slide.obs_names[0][:3] for slide in tissue.slides] == ["E2_", "E3_"]
    assert load("her2st_E", root).cells.obs_names[0].startswith("E3_")


def test_counts_and_places_are_those_of_the_file(copy):
    original = write(copy / "mouse_atlas/E1z2_seqfish_counts.h5ad", labels=["celltype"], seed=4)
    tissue = load("mouse_atlas", copy)
    assert abs(tissue.cells.X - original.X).sum() == 0
    np.testing.assert_array_equal(tissue.truth.obsm["spatial"], original.obsm["spatial"])
    assert list(tissue.cells.obs["cell_type"]) == list(original.obs["celltype"])


def test_one_section_is_split_the_same_way_each_time(root):
    first, again = load("hscc", root), load("hscc", root)
    assert first.cells.n_obs == N // 3 and first.slides[0].n_obs == N - N // 3
    assert list(first.cells.obs_names) == list(again.cells.obs_names)


def test_the_folder_may_come_from_the_environment(root, monkeypatch):
    monkeypatch.setenv("SPATIALGEARS_DATA", str(root))
    assert load("dlpfc").cells.n_obs == N
    monkeypatch.delenv("SPATIALGEARS_DATA")
    with pytest.raises(InputError, match=r"--data FOLDER.*SPATIALGEARS_DATA"):
        load("dlpfc")


def test_what_is_not_there_is_named(root):
    with pytest.raises(InputError, match="mouse_atlas, her2st_A"):
        load("unknown", root)
    with pytest.raises(InputError, match="no data folder"):
        load("dlpfc", root / "nowhere")
    with pytest.raises(InputError, match="E1, E2, E3"):
        load("her2st_E", root, heldout="D1")
    with pytest.raises(InputError, match="no section to hold out"):
        load("hscc", root, heldout="P10_rep2")


def test_a_missing_file_is_named(copy):
    (copy / "dlpfc/151674.h5ad").unlink()
    with pytest.raises(InputError, match=r"151674\.h5ad"):
        load("dlpfc", copy)


def test_files_that_hold_something_else_are_refused(copy):
    path = copy / "dlpfc/151673.h5ad"
    write(path, labels=["layer"], scale=0.5)
    with pytest.raises(InputError, match="raw counts"):
        load("dlpfc", copy)
    write(path, labels=["layer"], scale=-1.0)
    with pytest.raises(InputError, match="negative"):
        load("dlpfc", copy)
    write(path, labels=["layer"], spatial=False)
    with pytest.raises(InputError, match="spatial"):
        load("dlpfc", copy)
    path.write_bytes(b"not an h5ad file")
    with pytest.raises(InputError, match="cannot be read"):
        load("dlpfc", copy)
