from __future__ import annotations

from functools import cache
from typing import Any

import anndata as ad
import numpy as np
import pytest
from scipy import sparse
from scipy.spatial import cKDTree

from spatialgears.datasets import Tissue, simulate_tissue
from spatialgears.errors import InputError


@cache
def small(**changes: Any) -> Tissue:
    """A small tissue; the same object for the same changes, so no test may modify it."""
    return simulate_tissue(**{"n_cells": 400, "n_genes": 60, "spots": 100, **changes})


@pytest.fixture(scope="module")
def tissue() -> Tissue:
    return simulate_tissue(n_cells=1500, n_genes=120, spots=400, seed=3)


def log_normal(adata: ad.AnnData) -> np.ndarray:
    counts = adata.X.toarray()
    return np.log1p(counts / np.maximum(counts.sum(1, keepdims=True), 1) * 1e3)


def morans_i(values: np.ndarray, coords: np.ndarray) -> np.ndarray:
    """(G,) with the six nearest neighbours, from the definition."""
    centred = values - values.mean(0)
    around = cKDTree(coords).query(coords, k=7)[1][:, 1:]
    return (centred * centred[around].mean(1)).sum(0) / np.maximum((centred**2).sum(0), 1e-9)


def platform_gap(shift: float) -> float:
    """Mean absolute difference of the genes' log share between the cells and the first slide."""
    tissue = small(shift=shift)
    share = [np.asarray(a.X.sum(0)).ravel() / a.X.sum() for a in (tissue.cells, tissue.slides[0])]
    return float(np.abs(np.log(share[0] + 1e-6) - np.log(share[1] + 1e-6)).mean())


def types(tissue: Tissue) -> np.ndarray:
    return tissue.cells.obs["cell_type"].value_counts(normalize=True, sort=False).to_numpy()


def test_shapes_names_and_integer_counts(tissue):
    assert len(tissue.slides) == 2 and tissue.cells.shape == (1500, 120)
    for adata in (*tissue.slides, tissue.cells):
        assert isinstance(adata.X, sparse.csr_matrix) and adata.X.dtype == np.int32 and adata.X.data.min() > 0
        assert list(adata.var_names) == list(tissue.cells.var_names) and adata.obs_names.is_unique
    for slide in tissue.slides:
        assert slide.obsm["spatial"].shape == (slide.n_obs, 2)
        assert 340 <= slide.n_obs <= 460  # about the 400 asked for


def test_the_cells_do_not_hold_the_truth(tissue):
    assert not tissue.cells.obsm and not tissue.cells.uns and list(tissue.cells.obs) == ["cell_type"]
    assert list(tissue.truth.obs_names) == list(tissue.cells.obs_names) and tissue.truth.n_vars == 0
    assert list(tissue.truth.obs) == ["cell_type", "domain"]
    order = np.arange(tissue.truth.n_obs)  # nor does the order of the cells tell
    assert np.abs(np.corrcoef(order, tissue.truth.obsm["spatial"].T)[0, 1:]).max() < 0.1


def test_depths_are_as_asked(tissue):
    depth = [np.median(np.asarray(a.X.sum(1))) for a in (tissue.cells, *tissue.slides)]
    np.testing.assert_allclose(depth, [1000, 5000, 5000], rtol=0.25)
    assert tissue.slides[0].obs["n_cells"].mean() == pytest.approx(8, rel=0.25)


def test_a_seed_gives_one_tissue_and_another_seed_another():
    first, again, other = (make(seed=seed) for make, seed in ((small, 5), (small.__wrapped__, 5), (small, 6)))
    for a, b in zip([first.cells, *first.slides], [again.cells, *again.slides], strict=True):
        assert abs(a.X - b.X).sum() == 0
    np.testing.assert_array_equal(first.truth.obsm["spatial"], again.truth.obsm["spatial"])
    assert abs(first.cells.X - other.cells.X).sum() > 0


def test_more_cells_or_unpaired_cells_leave_the_slides_alone():
    first = small()
    for changes in ({"unpaired": True}, {"n_cells": 500}, {"cell_depth": 100}, {"composition_shift": 1.0}):
        other = small(**changes)
        assert all(abs(a.X - b.X).sum() == 0 for a, b in zip(first.slides, other.slides, strict=True))


def test_further_donors_leave_the_first_alone_and_are_named():
    one, two = small(n_sections=2), small(n_sections=2, n_donors=2)
    assert [slide.uns["donor"] for slide in two.slides] == ["donor 1", "donor 1", "donor 2", "donor 2"]
    assert "donor" not in one.slides[0].uns
    for alone, among in zip(one.slides, two.slides, strict=False):
        assert (alone.X != among.X).nnz == 0
    assert two.slides[2].shape != one.slides[0].shape or (two.slides[2].X != one.slides[0].X).nnz


def test_planted_genes_vary_in_space_and_others_do_not(tissue):
    slide = tissue.slides[0]
    moran = morans_i(log_normal(slide), slide.obsm["spatial"])
    programme = slide.var["programme"].to_numpy()
    assert moran[programme == "gradient"].mean() > 0.4
    assert moran[programme == "domain"].mean() > 0.15
    assert moran[np.isin(programme, ["cell state", "housekeeping"])].mean() < 0.15


def test_place_can_be_inferred_but_not_exactly(tissue):
    """Five nearest spots in standardised expression, the simplest reference."""
    slide, truth = tissue.slides[0], tissue.truth.obsm["spatial"]
    spots, cells = ((x - x.mean(0)) / (x.std(0) + 1e-2) for x in map(log_normal, (slide, tissue.cells)))
    similarity = cells @ spots.T / np.linalg.norm(spots, axis=1)
    nearest = np.argsort(-similarity, axis=1)[:, :5]
    guess = slide.obsm["spatial"][nearest].mean(1)
    pairs = np.random.default_rng(0).integers(0, len(truth), (2, 20_000))
    apart = [np.linalg.norm(x[pairs[0]] - x[pairs[1]], axis=1) for x in (guess, truth)]
    assert 0.5 < np.corrcoef(apart)[0, 1] < 0.95


def test_domains_are_layers_and_types_mix(tissue):
    observed = tissue.truth.obs
    assert (observed["domain"].value_counts() > 0).all()
    shares = observed.groupby("domain", observed=True)["cell_type"].value_counts(normalize=True).unstack()
    assert (shares.max(axis=1) < 0.95).all()  # no domain is of one type
    assert shares.loc["lining", "epithelial"] > 0.4 and shares.loc["outer cortex", "epithelial"] < 0.05
    assert shares["T cell"].min() < shares.loc["follicle", "T cell"]


def test_the_platform_effect_grows_with_shift():
    gaps = [platform_gap(shift) for shift in (0.0, 1.0, 2.0)]
    assert gaps[0] < gaps[1] < gaps[2]
    assert gaps[0] < 0.25 and gaps[2] > 3 * gaps[0]


def test_composition_departs_further_with_composition_shift():
    reference, *others = (types(small(composition_shift=c)) for c in (0.0, 1.0, 2.0))
    mild, strong = (np.abs(other - reference).sum() for other in others)
    assert 0.1 < mild < strong


def test_unpaired_cells_have_other_anatomy_and_composition():
    paired, unpaired = small(), small(unpaired=True)
    assert np.abs(types(paired) - types(unpaired)).sum() > 0.1
    gap = cKDTree(paired.truth.obsm["spatial"]).query(unpaired.truth.obsm["spatial"])[0]
    assert np.percentile(gap, 99) > 80  # micrometres: the outlines differ


def test_sections_differ_by_pose_and_deformation():
    straight = small(n_sections=3, deformation=0.0)
    extents = [np.linalg.norm(s.obsm["spatial"].std(0)) for s in straight.slides]
    assert len({round(extent) for extent in extents}) == 3  # scaled apart
    assert len(straight.slides) == 3
    bent = small(n_sections=3, deformation=0.08)
    assert any(a.n_obs != b.n_obs for a, b in zip(straight.slides, bent.slides, strict=True))


def test_low_depth_and_dropout_make_zeros():
    full = small(dropout=0.0)
    sparse_cells = small(dropout=0.6).cells
    shallow = small(cell_depth=100, dropout=0.0).cells
    assert sparse_cells.X.nnz < full.cells.X.nnz and shallow.X.nnz < 0.7 * full.cells.X.nnz


def test_the_smallest_tissue_and_a_file_and_back(tmp_path):
    tissue = simulate_tissue(n_cells=10, n_genes=40, n_sections=1, spots=30)
    for name, adata in {"st": tissue.slides[0], "sc": tissue.cells, "truth": tissue.truth}.items():
        adata.write_h5ad(tmp_path / f"{name}.h5ad")
        assert ad.read_h5ad(tmp_path / f"{name}.h5ad").shape == adata.shape


@pytest.mark.parametrize(
    "argument",
    [
        {"n_cells": 5},
        {"n_cells": 100.0},
        {"n_genes": 10},
        {"n_sections": 0},
        {"n_sections": True},
        {"spots": 5},
        {"cell_depth": 0},
        {"spot_depth": float("nan")},
        {"shift": -1},
        {"composition_shift": -0.1},
        {"deformation": 0.5},
        {"dispersion": -1},
        {"dropout": 1.0},
        {"seed": -1},
    ],
)
def test_bad_arguments_are_refused_by_name(argument):
    (name,) = argument
    with pytest.raises(InputError, match=name):
        simulate_tissue(**argument)
