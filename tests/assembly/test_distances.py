from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from spatialgears.assembly.distances import dense_distances, nearest_cells, neighbour_matrix, pair_distances
from spatialgears.errors import InputError


def test_three_ways_give_the_same_distances(tissue):
    coords = tissue(80)
    full = cdist(coords, coords)
    assert np.allclose(dense_distances(coords), full, atol=1e-6)
    assert dense_distances(coords).dtype == np.float32
    assert np.allclose(
        pair_distances(coords, [(0, 5), (7, 7), (79, 1)]), full[[0, 7, 79], [5, 7, 1]], atol=1e-6
    )
    index, distance = nearest_cells(coords, 6)
    np.fill_diagonal(full, np.inf)
    assert np.array_equal(index, np.argsort(full, axis=1)[:, :6])
    assert np.allclose(distance, np.sort(full, axis=1)[:, :6], atol=1e-6)
    matrix = neighbour_matrix(coords, 6)
    assert matrix.nnz == 480 and np.allclose(matrix[3].toarray()[0, index[3]], distance[3])


def test_duplicates_and_few_cells():
    index, distance = nearest_cells(np.zeros((9, 2)), 4)
    assert index.shape == (9, 4) and not (index == np.arange(9)[:, None]).any() and (distance == 0).all()
    assert neighbour_matrix(np.zeros((9, 2)), 4).nnz == 36  # zeros are kept
    assert nearest_cells(np.zeros((3, 2)), 10)[0].shape == (3, 2)
    assert nearest_cells(np.zeros((1, 2)), 10)[0].shape == (1, 0)
    assert pair_distances(np.zeros((3, 2)), []).shape == (0,)


def test_a_matrix_that_does_not_fit_is_refused_before_it_is_made():
    with pytest.raises(InputError, match="k nearest"):
        dense_distances(np.zeros((1_000_000, 2)))
    with pytest.raises(InputError, match=r"0\.0001 GB"):
        dense_distances(np.zeros((5000, 2)), memory_gb=1e-4)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        (np.triu_indices(5, 1), r"\(M, 2\), found int64 of shape \(2, 10\)"),
        ([1, 2, 3, 4], r"of shape \(4,\)"),
        ([(0.0, 1.0)], "found float64"),
        ([(0, 5)], "from 0 to 4, found 0 to 5"),
        ([(-1, 2)], "found -1 to 2"),
    ],
)
def test_what_is_not_pairs_of_cells_is_refused(pairs, words):
    with pytest.raises(InputError, match=words):
        pair_distances(np.zeros((5, 2)), pairs)
