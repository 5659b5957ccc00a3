from __future__ import annotations

import numpy as np
import pytest
from anndata import AnnData
from scipy import sparse

import spatialgears as sg
from spatialgears.datasets import pseudo_visium, same_spots
from spatialgears.errors import InputError


def cells_at(coords: list[list[float]]) -> AnnData:
    """One cell per point; cell i holds 2^i counts of gene 0 and one of gene 1: sums name their cells."""
    counts = np.column_stack([2 ** np.arange(len(coords)), np.ones(len(coords), int)]).astype(np.int32)
    adata = AnnData(sparse.csr_matrix(counts), obsm={"spatial": np.array(coords, dtype=float)})
    adata.var_names = ["a", "b"]
    return adata


# The cells span [0, 2] x [0, 4]: on a (2, 3) grid both pitches are 2, and a spot of .5 reaches .5 around.
SQUARE = cells_at([[0, 0], [2, 4], [0.5, 0.5], [0.45, 0.45], [0.6, 0], [1.6, 2.3], [2, 1.6], [1, 1]])


def test_square_spots_sum_exactly_the_cells_under_them():
    spots = pseudo_visium(SQUARE, grid=(2, 3), spot_fraction=0.5, min_cells=1)
    assert list(spots.obs_names) == ["ST_0", "ST_3", "ST_5"]  # row by row, the first coordinate fastest
    np.testing.assert_array_equal(spots.obsm["spatial"], [[0, 0], [2, 2], [2, 4]])
    np.testing.assert_array_equal(spots.X.toarray(), [[1 + 4 + 8, 3], [32 + 64, 2], [2, 1]])
    np.testing.assert_array_equal(spots.obs["n_cells"], [3, 2, 1])
    assert spots.X.dtype == np.int64 and sparse.issparse(spots.X)


def test_spots_with_few_cells_are_left_out_and_keep_their_names():
    spots = pseudo_visium(SQUARE, grid=(2, 3), spot_fraction=0.5, min_cells=2)
    assert list(spots.obs_names) == ["ST_0", "ST_3"]


def test_hex_spots_are_discs_on_shifted_rows():
    # Columns at 0, 2, 4; rows at 0, 2, 4; the middle row is shifted to 1, 3 and holds one spot fewer.
    # Neighbours are 2 apart within a row and sqrt(5) across rows: a spot of fraction .5 has radius .5.
    hexagonal = cells_at(
        [[0, 0], [4, 4], [0.4, 0.4], [0.3, 0.3], [1, 2.45], [3.3, 2], [2, 2], [2, 4], [0, 2]]
    )
    spots = pseudo_visium(hexagonal, grid=(3, 3), spot_fraction=0.5, min_cells=1, layout="hex")
    np.testing.assert_array_equal(spots.obsm["spatial"], [[0, 0], [1, 2], [3, 2], [2, 4], [4, 4]])
    assert list(spots.obs_names) == ["ST_0", "ST_3", "ST_4", "ST_6", "ST_7"]
    np.testing.assert_array_equal(
        spots.X.toarray()[:, 0], [1 + 8, 16, 32, 128, 2]
    )  # (.4, .4) is outside the disc


def test_full_squares_lose_no_cell():
    rng = np.random.default_rng(0)
    cells = cells_at([[0, 0], [1, 1], *rng.uniform(0, 1, (20, 2)).tolist()])
    spots = pseudo_visium(cells, grid=(4, 5), spot_fraction=1.0, min_cells=1)
    np.testing.assert_array_equal(spots.X.sum(0), cells.X.sum(0))
    assert spots.obs["n_cells"].sum() == cells.n_obs


@pytest.mark.parametrize("layout", ["square", "hex"])
def test_every_kept_spot_equals_a_direct_sum(layout):
    rng = np.random.default_rng(1)
    coords = rng.uniform(0, [10, 20], (3000, 2))
    counts = rng.poisson(1.0, (3000, 4))
    spots = pseudo_visium(AnnData(counts, obsm={"spatial": coords}), grid=(8, 9), layout=layout)
    pitch = np.ptp(coords, axis=0) / [7, 8]
    for centre, row, n in zip(spots.obsm["spatial"], spots.X.toarray(), spots.obs["n_cells"], strict=True):
        offset = coords - centre
        if layout == "square":
            under = (np.abs(offset) <= 0.55 * pitch / 2).all(1)
        else:
            under = np.hypot(*offset.T) <= 0.55 * min(pitch[0], np.hypot(pitch[0] / 2, pitch[1])) / 2
        np.testing.assert_array_equal(row, counts[under].sum(0))
        assert n == under.sum() >= 3


def test_sparse_equals_dense_and_the_input_is_unchanged():
    before = SQUARE.copy()
    dense = AnnData(SQUARE.X.toarray(), var=SQUARE.var, obsm={"spatial": SQUARE.obsm["spatial"]})
    options = {"grid": (2, 3), "spot_fraction": 0.5, "min_cells": 1}
    assert same_spots(pseudo_visium(SQUARE, **options), pseudo_visium(dense, **options))
    np.testing.assert_array_equal(SQUARE.X.toarray(), before.X.toarray())
    np.testing.assert_array_equal(SQUARE.obsm["spatial"], before.obsm["spatial"])


def test_same_spots_sees_every_difference():
    first = pseudo_visium(SQUARE, grid=(2, 3), spot_fraction=0.5, min_cells=1)
    moved, counted, named = first.copy(), first.copy(), first.copy()
    moved.obsm["spatial"] = moved.obsm["spatial"] + 1e-6
    counted.X = counted.X + counted.X
    named.obs_names = ["x", "y", "z"]
    assert same_spots(first, first.copy())
    assert not any(same_spots(first, other) for other in (moved, counted, named, first[:2].copy()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": (1, 5)}, "grid"),
        ({"spot_fraction": 0}, "spot_fraction"),
        ({"spot_fraction": 1.1}, "spot_fraction"),
        ({"min_cells": 0}, "min_cells"),
        ({"layout": "ring"}, "square, hex"),
        ({"spatial_key": "places"}, 'no obsm\\["places"\\]; there is spatial'),
        ({"min_cells": 100}, "fullest"),
    ],
)
def test_bad_arguments_are_refused_by_name(options, message):
    with pytest.raises(InputError, match=message):
        pseudo_visium(SQUARE, **options)


@pytest.mark.parametrize("coords", [[[0, 0], [0, 1]], [[0, np.nan], [1, 1]], [[0, 0, 0], [1, 1, 1]]])
def test_bad_coordinates_are_refused(coords):
    with pytest.raises(InputError):
        pseudo_visium(cells_at(coords), grid=(2, 2), min_cells=1)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, bool])
def test_narrow_counts_do_not_overflow(dtype):
    coords = np.random.default_rng(0).random((300, 2))
    cells = AnnData(np.full((300, 2), 100).astype(dtype), obsm={"spatial": coords})
    spots = pseudo_visium(cells, grid=(2, 2), spot_fraction=1.0)
    np.testing.assert_array_equal(
        spots.X.toarray()[:, 0], spots.obs["n_cells"].to_numpy() * int(cells.X[0, 0])
    )


def test_cells_on_disk_are_summed_too(tmp_path):
    cells = AnnData(np.ones((50, 3), np.float32), obsm={"spatial": np.random.default_rng(0).random((50, 2))})
    cells.write_h5ad(tmp_path / "c.h5ad")
    spots = pseudo_visium(sg.read(tmp_path / "c.h5ad", backed=True), grid=(2, 2), spot_fraction=1.0)
    np.testing.assert_array_equal(
        spots.X.toarray(), pseudo_visium(cells, grid=(2, 2), spot_fraction=1.0).X.toarray()
    )
