"""Step 2 of section 3.5: overlapping patches that cover all cells and are connected.

A patch is a random walk on the locality graph. A walk that found too few different cells continues from its own cells, and
from another cell only after it has visited everything within reach.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import minimum_spanning_tree, reverse_cuthill_mckee

from spatialgears.runtime.hashing import hashed, shuffled, uniform
from spatialgears.runtime.seeds import child_seed

#: The paper's appendix: share of a walk that its twin repeats, cells that neighbouring patches share at least, and
#: patches that must hold a pair of cells for its distance to be supported.
OVERLAP, MIN_SHARED, MIN_SUPPORT = 0.7, 25, 2
_WALK_STEPS = 24
_VISITS = 6  # cells visited for each cell wanted, since walks return
_ROWS = 2048


@dataclass(frozen=True)
class Patches:
    """A connected cover of all cells."""

    cells: NDArray[np.int64]  # (P, n) indices of the cells of each patch, all different, in increasing order
    seeds: NDArray[np.int64]  # (P,) seeds for whatever is random in a patch's geometry
    n_cells: int  # N
    bridges: int  # patches added only to join others that shared too few cells

    @property
    def coverage(self) -> NDArray[np.int64]:
        """(N,) number of patches that hold each cell."""
        return np.bincount(self.cells.ravel(), minlength=self.n_cells)


def sample_patches(graph: sparse.csr_matrix, size: int, *, coverage: float, seed: int) -> Patches:
    """Sample about ``coverage * N / size`` patches, plus those needed to cover and join all cells.

    Patches come in twins: the second keeps a share of the first one's walk and continues from its end, so that pairs
    of cells are measured more than once. Walks start where coverage is lowest. O(coverage N) walk steps, each
    vectorised over patches; memory O(coverage N).
    """
    n_cells = graph.shape[0]
    size = min(size, n_cells)
    wanted = max(1, round(coverage * n_cells / size))
    walks = _twin_walks(graph, (wanted + 1) // 2, size, seed=seed)[:wanted]
    deck = shuffled(child_seed(seed, "deck"), n_cells, _count(walks, n_cells))
    rows = _walk_on(graph, walks, deck, seed=child_seed(seed, "on"))
    lacking = MIN_SUPPORT - _count(rows, n_cells)
    if lacking.max() > 0:
        along = reverse_cuthill_mckee(graph, symmetric_mode=True)  # puts neighbours close to each other
        extra = np.vstack(
            [  # a level at a time: in one walk a cell counts once
                _walks_from(graph, left, size, seed=child_seed(seed, "left", again))
                for again in range(MIN_SUPPORT)
                if len(left := along[lacking[along] > again])
            ]
        )
        rows = np.vstack([rows, _walk_on(graph, extra, deck, seed=child_seed(seed, "left on"))])
    bridges = _bridges(rows, n_cells, min(MIN_SHARED, size // 2))
    rows = np.vstack([rows, bridges])
    seeds = (hashed(child_seed(seed, "noise"), np.arange(len(rows))) >> np.uint64(1)).astype(np.int64)
    return Patches(np.sort(rows, axis=1), seeds, n_cells, len(bridges))


def walk(
    graph: sparse.csr_matrix, starts: NDArray[np.int64], steps: int, *, seed: int, ids: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Many simple random walks at once: (P, W) starts to (P, W * (steps + 1)) cells in order of step.

    The draws of a row depend on its entry in ``ids`` alone. A walker on a cell without edges stays. O(P W steps).
    """
    pointers, degree = graph.indptr.astype(np.int64), np.diff(graph.indptr)
    targets = graph.indices if graph.nnz else np.zeros(1, np.int64)
    walker, here, visited = np.arange(starts.shape[1]), starts, [starts]
    for step in range(steps):
        choice = (uniform(seed, ids[:, None], step, walker) * degree[here]).astype(np.int64)
        there = targets[np.minimum(pointers[here] + choice, len(targets) - 1)]
        here = np.where(degree[here] > 0, there, here)
        visited.append(here)
    return np.hstack(visited)


def first_distinct(rows: NDArray[Any], count: int) -> NDArray[np.int64]:
    """The first ``count`` different non-negative entries of each row, in their order, padded with -1."""
    order = np.argsort(rows, axis=1, kind="stable")
    ordered = np.take_along_axis(rows, order, 1)
    fresh = np.ones(rows.shape, bool)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = np.zeros(rows.shape, bool)
    np.put_along_axis(first, order, fresh & (ordered >= 0), 1)
    rank = np.cumsum(first, 1)
    row, column = np.nonzero(first & (rank <= count))
    result = np.full((len(rows), count), -1, np.int64)
    result[row, rank[row, column] - 1] = rows[row, column]
    return result


def overlaps(rows: NDArray[np.int64], n_cells: int) -> sparse.csr_matrix:
    """(P, P) numbers of cells that patches share, without the diagonal."""
    n_patches, size = rows.shape
    ones = np.ones(rows.size, np.int32)
    member = sparse.csr_matrix((ones, rows.ravel(), np.arange(n_patches + 1) * size), (n_patches, n_cells))
    shared = sparse.coo_matrix(member @ member.T)
    apart = shared.row != shared.col
    where = (shared.row[apart], shared.col[apart])
    return sparse.csr_matrix((shared.data[apart], where), (n_patches, n_patches))


def _twin_walks(graph: sparse.csr_matrix, pairs: int, length: int, *, seed: int) -> NDArray[np.int64]:
    """(2 * pairs, length) walks in order of visit, twins side by side; -1 where a component is too small."""
    n_cells = graph.shape[0]
    per_round, kept = -(-n_cells // length), round(OVERLAP * length)
    count = np.zeros(n_cells, np.int64)
    rounds: list[NDArray[np.int64]] = []
    for done in range(0, pairs, per_round):
        ids = np.arange(done, min(done + per_round, pairs))
        starts = shuffled(child_seed(seed, "starts", done), n_cells, count)[: len(ids)]
        first = _grow(graph, starts, length, seed=child_seed(seed, "walk"), ids=ids)
        end = first[np.arange(len(ids)), (first >= 0).sum(1) - 1]
        second = _grow(graph, end, length, seed=child_seed(seed, "twin"), ids=ids, keep=first[:, :kept])
        rounds.append(np.stack([first, second], axis=1).reshape(-1, length))
        count += _count(rounds[-1], n_cells)
    return np.vstack(rounds)


def _grow(
    graph: sparse.csr_matrix,
    starts: NDArray[np.int64],
    length: int,
    *,
    seed: int,
    ids: NDArray[np.int64],
    keep: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """(P, length) different cells: those to keep, then the visits of several walkers from each start."""
    walkers = -(-_VISITS * length // _WALK_STEPS)
    blocks = []
    for begin in range(0, len(starts), _ROWS):
        part = slice(begin, begin + _ROWS)
        from_start = np.repeat(starts[part, None], walkers, axis=1)
        visits = walk(graph, from_start, _WALK_STEPS, seed=seed, ids=ids[part])
        blocks.append(first_distinct(visits if keep is None else np.hstack([keep[part], visits]), length))
    return np.vstack(blocks)


def _walks_from(
    graph: sparse.csr_matrix, cells: NDArray[np.int64], length: int, *, seed: int
) -> NDArray[np.int64]:
    """Walks that between them hold all of ``cells``, a quarter of each walk being starts."""
    starts = max(1, length // 4)
    rows = np.resize(cells, (-(-len(cells) // starts), starts))
    return first_distinct(walk(graph, rows, _WALK_STEPS, seed=seed, ids=np.arange(len(rows))), length)


def _walk_on(
    graph: sparse.csr_matrix, walks: NDArray[np.int64], deck: NDArray[np.int64], *, seed: int
) -> NDArray[np.int64]:
    """(P, size) different cells: walks that lack some, marked -1, continue from all the cells they have.

    A row that found nothing new in a round has visited everything within reach. It then also starts from cells of the deck,
    twice as many each time, so that the rounds are few.
    """
    rows, size = walks.copy(), walks.shape[1]
    places, again = np.zeros(len(rows), np.int64), 0
    while len(short := np.flatnonzero(rows[:, -1] < 0)):
        for begin in range(0, len(short), _ROWS):
            ids = short[begin : begin + _ROWS]
            mine = rows[ids]
            free = np.arange(size)[::-1]  # new places stand at the end, where cells lack
            new = deck[(ids[:, None] * size + again + free) % len(deck)]
            starts = np.where(mine >= 0, mine, np.where(free < places[ids, None], new, mine[:, :1]))
            visits = walk(graph, starts, _VISITS, seed=child_seed(seed, again), ids=ids)
            found = first_distinct(np.hstack([mine, visits]), size)
            stuck = (found >= 0).sum(1) == (mine >= 0).sum(1)
            places[ids] = np.where(stuck | (places[ids] > 0), np.maximum(2 * places[ids], 1), 0)
            rows[ids] = found
        again += 1
    return rows


def _bridges(rows: NDArray[np.int64], n_cells: int, least: int) -> NDArray[np.int64]:
    """Half-and-half patches for edges of the maximum-overlap spanning tree that share less than ``least``."""
    n_patches, size = rows.shape
    if n_patches == 1:
        return rows[:0]
    shared = overlaps(rows, n_cells).astype(np.float64)
    chain = np.arange(n_patches - 1)
    chained = sparse.csr_matrix(
        (np.full(n_patches - 1, 0.5), (chain, chain + 1)), shared.shape
    )  # joins everything
    shared = shared.maximum(chained)
    cost = shared.copy()
    cost.data = size + 1 - cost.data
    first, second = minimum_spanning_tree(cost).nonzero()
    weak = np.asarray(shared[first, second]).ravel() < least
    first, second = rows[first[weak]], rows[second[weak]]
    half = size // 2
    return first_distinct(np.hstack([first[:, : size - half], second, first]), size)


def _count(rows: NDArray[np.int64], n_cells: int) -> NDArray[np.int64]:
    return np.bincount(rows[rows >= 0], minlength=n_cells)
