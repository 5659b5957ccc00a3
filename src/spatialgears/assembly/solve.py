"""Step 7 of section 3.5: Landmark Isomap start, then a weighted Huber solve of the distance graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import dijkstra

from spatialgears.assembly.hashing import shuffled
from spatialgears.assembly.stitch import DistanceGraph
from spatialgears.config import AssemblyConfig
from spatialgears.runtime.progress import Progress, silent

_RECORDS = 20
_NOTABLE = 0.02  # mean residual of a fifth of delta


@dataclass(frozen=True)
class Layout:
    """A solved layout and how well it keeps the distances.

    Attributes
    ----------
    coords
        (N, 2), in the units of the distances.
    stress
        ``sqrt(sum w r^2 / sum w d^2)`` along the solve, from the start to the end.
    residual_mean, residual_median, residual_max
        Of ``|r|`` at the end, where r is the layout's distance less the stitched one.
    """

    coords: NDArray[np.float64]
    stress: list[float]
    residual_mean: float
    residual_median: float
    residual_max: float


def landmark_isomap(graph: DistanceGraph, landmarks: int, *, seed: int) -> NDArray[np.float64]:
    """(N, 2) start: shortest paths from random landmarks, scaling of these, triangulation of all others.

    Cells that no path joins to a landmark are set half as far again as the farthest that one does.
    O(landmarks (E + N log N)) time, O(landmarks N) memory.
    """
    shape = (graph.n_cells, graph.n_cells)
    edges = sparse.csr_matrix((graph.distance, (graph.first, graph.second)), shape)
    chosen = shuffled(seed, graph.n_cells)[: min(landmarks, graph.n_cells)]
    paths = dijkstra(edges, directed=False, indices=chosen)  # (L, N)
    reached = np.isfinite(paths)
    paths[~reached] = 1.5 * paths[reached].max()
    return triangulate(paths**2, chosen)


def triangulate(squares: NDArray[np.float64], landmarks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Landmark scaling: (N, 2) places from squared distances (L, N) to landmarks; exact for planar ones."""
    among = squares[:, landmarks]
    mean = among.mean(1)
    gram = -0.5 * (among - mean[:, None] - mean[None] + mean.mean())
    value, vector = np.linalg.eigh((gram + gram.T) / 2)
    if len(value) < 2:
        return np.zeros((squares.shape[1], 2))
    value, vector = value[:-3:-1], vector[:, :-3:-1]
    inverse = np.where(value > 1e-12 * max(value[0], 1e-300), 1 / np.sqrt(np.maximum(value, 1e-300)), 0.0)
    return -0.5 * ((squares - mean[:, None]).T @ vector) * inverse


def huber_solve(
    graph: DistanceGraph, start: NDArray[np.float64], config: AssemblyConfig, *, progress: Progress = silent
) -> Layout:
    """Minimise the weighted Huber loss of the residuals by full gradients (Adam with a cosine decay).

    With ``untangle``, cells that sit in the wrong place for their neighbours, as behind a mirror, are twice moved to the
    right one, and the anchor to the start decays to nothing over the first half; in the paper it stays. Lengths are in
    units of the start's RMS radius, so ``huber_delta`` and ``solve_lr`` mean the same at any scale. O(E) per step as
    sparse products; memory O(E).
    """
    unit = float(np.sqrt((start**2).sum(1).mean()))
    if unit == 0 or not len(graph.first):
        return _report(start, graph, [_stress(start, graph)])
    n_edges, delta, steps = len(graph.first), config.huber_delta, config.solve_steps
    ends = np.column_stack([graph.first, graph.second]).ravel()
    signs = np.tile([1.0, -1.0], n_edges)
    difference = sparse.csr_matrix(
        (signs, ends, np.arange(n_edges + 1) * 2), (n_edges, graph.n_cells)
    )  # x_i - x_j
    gather = difference.T.tocsr()
    target, weight = graph.distance / unit, graph.weight / graph.weight.sum() * graph.n_cells
    origin = (start - start.mean(0)) / unit
    coords, slope, square = origin.copy(), np.zeros_like(origin), np.zeros_like(origin)
    every, history = max(1, steps // _RECORDS), []
    for step in range(steps):
        if config.untangle and step in (steps // 4, steps // 2):
            stuck, better = misplaced(
                coords, graph.first, graph.second, target=target, weight=weight, delta=delta
            )
            coords[stuck], slope[stuck], square[stuck] = better, 0, 0
        apart = difference @ coords
        length = np.sqrt((apart**2).sum(1))
        residual = length - target
        if step % every == 0:
            history.append(float(np.sqrt((weight * residual**2).sum() / (weight * target**2).sum())))
            progress("solve", step, steps, {"stress": history[-1]})
        hold = config.anchor * (max(0.0, 1 - 2 * step / steps) if config.untangle else 1.0)
        pull = weight * np.clip(residual, -delta, delta) / np.maximum(length, 1e-9)
        gradient = gather @ (pull[:, None] * apart) + 2 * hold * (coords - origin)
        slope = 0.9 * slope + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        rate = config.solve_lr * 0.5 * (1 + np.cos(np.pi * step / steps))
        moved = slope / (1 - 0.9 ** (step + 1))
        coords = coords - rate * moved / (np.sqrt(square / (1 - 0.999 ** (step + 1))) + 1e-12)
    coords = coords * unit
    progress("solve", steps, steps, {})
    return _report(coords, graph, [*history, _stress(coords, graph)])


def misplaced(
    coords: NDArray[np.float64],
    first: NDArray[np.int64],
    second: NDArray[np.int64],
    *,
    target: NDArray[np.float64],
    weight: NDArray[np.float64],
    delta: float,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Cells (m,) much worse placed than most and better where trilateration puts them; these places (m, 2).

    With u = x_j - x_i, a move v of cell i that gives the right distances has
    ``2 u . v - |v|^2 = |u|^2 - d^2``: linear in (v, |v|^2), so least squares over its neighbours is a
    3 x 3 system for each cell. O(E + N).
    """
    n_cells = len(coords)
    here, there = np.concatenate([first, second]), np.concatenate([second, first])
    length, weight = np.concatenate([target, target]), np.concatenate([weight, weight])
    away = coords[there] - coords[here]
    rows = np.column_stack([2 * away, -np.ones(len(here))])  # (2 E, 3)
    wanted = (away**2).sum(1) - length**2
    spread = sparse.csr_matrix((weight, (here, np.arange(len(here)))), (n_cells, len(here)))
    system = (spread @ (rows[:, :, None] * rows[:, None]).reshape(-1, 9)).reshape(-1, 3, 3)
    trace = np.trace(system, axis1=1, axis2=2)
    system += (1e-9 * trace + 1e-300)[:, None, None] * np.eye(3)
    move = np.linalg.solve(system, (spread @ (rows * wanted[:, None]))[:, :, None])[:, :2, 0]

    def loss(shift: NDArray[np.float64]) -> NDArray[np.float64]:
        wrong = np.abs(np.sqrt(((away - shift[here]) ** 2).sum(1)) - length)
        return spread @ np.where(wrong < delta, 0.5 * wrong**2, delta * (wrong - 0.5 * delta))

    now = loss(np.zeros_like(coords))
    mean = now / np.maximum(spread @ np.ones(len(here)), 1e-300)
    notable = mean > max(_NOTABLE * delta**2, 4 * float(np.median(mean)))
    stuck = np.flatnonzero(notable & (loss(move) < 0.5 * now))
    return stuck, coords[stuck] + move[stuck]


def _lengths(coords: NDArray[np.float64], graph: DistanceGraph) -> NDArray[np.float64]:
    return np.sqrt(((coords[graph.first] - coords[graph.second]) ** 2).sum(1))


def _stress(coords: NDArray[np.float64], graph: DistanceGraph) -> float:
    scale = (graph.weight * graph.distance**2).sum()
    wrong = (graph.weight * (_lengths(coords, graph) - graph.distance) ** 2).sum()
    return float(np.sqrt(wrong / scale)) if scale > 0 else 0.0


def _report(coords: NDArray[np.float64], graph: DistanceGraph, stress: list[float]) -> Layout:
    residual = np.abs(_lengths(coords, graph) - graph.distance)
    if not len(residual):
        residual = np.zeros(1)
    return Layout(coords, stress, float(residual.mean()), float(np.median(residual)), float(residual.max()))
