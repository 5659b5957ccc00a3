"""Step 7 of section 3.5: Landmark Isomap start, then a weighted Huber solve of the distance graph."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import dijkstra

from spatialgears.assembly.stitch import DistanceGraph
from spatialgears.runtime.hashing import shuffled
from spatialgears.runtime.progress import Progress, silent

#: The paper's appendix: landmarks of Isomap, where the Huber loss turns linear, weight of the anchor to the start, and
#: peak learning rate.
LANDMARKS, DELTA, ANCHOR, RATE = 128, 0.1, 0.1, 1e-2
_RECORDS = 20


@dataclass(frozen=True)
class Layout:
    """A solved layout and how well it keeps the distances."""

    coords: NDArray[np.float64]  # (N, 2), in the units of the distances
    stress: list[float]  # ``sqrt(sum w r^2 / sum w d^2)`` along the solve, from the start to the end
    #: Of ``|r|`` at the end, where r is the layout's distance less the stitched one.
    residual_mean: float
    residual_median: float
    residual_max: float


def landmark_isomap(graph: DistanceGraph, *, landmarks: int = LANDMARKS, seed: int) -> NDArray[np.float64]:
    """(N, 2) start: shortest paths from random landmarks, scaling of these, triangulation of all others.

    Cells without a path to a landmark are put at 1.5 times the longest path.
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
    """Landmark scaling: (N, 2) coordinates from squared distances (L, N) to landmarks; exact for planar ones."""
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
    graph: DistanceGraph, start: NDArray[np.float64], *, steps: int, progress: Progress = silent
) -> Layout:
    """Minimise the weighted Huber loss of the residuals by full gradients (Adam with a cosine decay).

    Lengths are in units of the start's RMS radius, so that the constants mean the same at any scale. O(E) per step as
    sparse products; memory O(E).
    """
    unit = float(np.sqrt((start**2).sum(1).mean()))
    if unit == 0 or not len(graph.first):
        return _report(start, graph, [_stress(start, graph)])
    n_edges = len(graph.first)
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
        apart = difference @ coords
        length = np.sqrt((apart**2).sum(1))
        residual = length - target
        if step % every == 0:
            history.append(float(np.sqrt((weight * residual**2).sum() / (weight * target**2).sum())))
            progress("solve", step, steps, {"stress": history[-1]})
        pull = weight * np.clip(residual, -DELTA, DELTA) / np.maximum(length, 1e-9)
        gradient = gather @ (pull[:, None] * apart) + 2 * ANCHOR * (coords - origin)
        slope = 0.9 * slope + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient**2
        rate = RATE * 0.5 * (1 + np.cos(np.pi * step / steps))
        moved = slope / (1 - 0.9 ** (step + 1))
        coords = coords - rate * moved / (np.sqrt(square / (1 - 0.999 ** (step + 1))) + 1e-12)
    coords = coords * unit
    progress("solve", steps, steps, {})
    return _report(coords, graph, [*history, _stress(coords, graph)])


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
