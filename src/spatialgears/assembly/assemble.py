"""Stage D in one call: from the features of all cells to their coordinates."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from spatialgears.assembly.canonical import canonical, principal_plane
from spatialgears.assembly.extend import extend
from spatialgears.assembly.graph import locality_graph
from spatialgears.assembly.measure import Geometry, geometries, measure
from spatialgears.assembly.patches import sample_patches
from spatialgears.assembly.solve import huber_solve, landmark_isomap
from spatialgears.assembly.stitch import stitch
from spatialgears.config import AssemblyConfig
from spatialgears.errors import InputError
from spatialgears.geometry.features import FeatureRows, Features
from spatialgears.runtime.hashing import shuffled
from spatialgears.runtime.progress import Clock, Progress, silent
from spatialgears.runtime.seeds import child_seed

#: How cells were placed: in one pass, a core in one pass and the others in parts, or through stitched patches.
Mode = Literal["one-shot", "parts", "patches"]

FEWEST = 5  # cells that can be stitched: fewer share too little for patches to be compared
_LOCALITY_DIM = 32
_BLOCK = 20_000  # cells whose features are held at once
_BYTES_PER_VALUE, WORKING_VALUES = 4, 4096


@dataclass(frozen=True)
class Assembly:
    """Coordinates of all cells and how they were found."""

    #: (N, 2) single precision, canonical pose, in units of the training slides' RMS radius.
    coords: NDArray[np.float32]
    mode: Mode  # how the cells were placed
    status: str  # what happened, in sentences
    diagnostics: dict[str, Any]  # numbers by name; lists where there is one for each recorded step
    profile: dict[str, float]  # seconds by step; ``network`` is the time inside ``geometry``


def assemble(
    features: FeatureRows,
    geometry: Geometry,
    config: AssemblyConfig,
    *,
    locality: NDArray[Any] | None = None,
    seed: int,
    progress: Progress = silent,
) -> Assembly:
    """Place all cells (section 3.5), in one pass or through stitched patches.

    Parameters
    ----------
    features
        Network inputs of the N cells, held in memory or computed on demand.
    geometry
        The network, see :data:`~spatialgears.assembly.measure.Geometry`.
    config
        ``mode="auto"`` takes one pass if it fits in ``memory_gb``. Otherwise a core of the cells goes through the network
        in one pass, and the other cells in large parts together with some of the core. ``mode="patches"`` is the paper's way.
    locality
        (N, h) the space of the locality graph; by default the leading principal components of the features.
    seed
        Decides the core, walks, long edges and the noise of every patch.
    progress
        Called after each step of the work.

    Notes
    -----
    Linear in N: what does not fit in one pass is aligned to a core of at most ``core_cells`` cells. Patches are all
    stitched, whatever their number.
    """
    n_cells = len(features)
    if n_cells == 0:
        raise InputError("There are no cells to place.", "Check the filters that were applied to the cells.")
    clock = _Clock(geometry)
    room = cells_in_one_pass(features.width, config)
    if in_one_pass(features, config):
        coords, diagnostics, notes = _one_pass(features, clock, np.arange(n_cells), seed=seed)
        return _finish(coords, "one-shot", clock, diagnostics=diagnostics, notes=notes)
    if config.mode == "patches":
        coords, diagnostics, notes = _patches(
            features, clock, config, locality=locality, seed=seed, progress=progress
        )
        return _finish(coords, "patches", clock, diagnostics=diagnostics, notes=notes)
    size = min(config.core_cells, max(room, config.patch_size))
    core = np.sort(shuffled(child_seed(seed, "core cells"), n_cells)[:size])
    coords, diagnostics, notes = _one_pass(features, clock, core, seed=seed)
    with clock("extend"):
        coords = extend(features, clock.network, core, coords=coords, seed=seed, progress=progress)
    notes.append(f"{n_cells - len(core):,} further cells were aligned to a core of {len(core):,}.")
    return _finish(coords, "parts", clock, diagnostics=diagnostics, notes=notes)


def in_one_pass(features: FeatureRows, config: AssemblyConfig) -> bool:
    """Whether all cells go through the networks as one set."""
    if config.mode == "patches":
        return len(features) < FEWEST
    room = max(cells_in_one_pass(features.width, config), config.patch_size)
    return config.mode == "one-shot" or len(features) <= room


def pass_bytes(width: int) -> float:
    """Bytes that a cell of ``width`` values takes in a pass through the networks, by a rule of thumb."""
    return _BYTES_PER_VALUE * (2.0 * width + WORKING_VALUES)


def cells_in_one_pass(width: int, config: AssemblyConfig) -> int:
    """Cells of ``width`` values each that one pass may hold within ``memory_gb``."""
    return int(config.memory_gb * 1e9 / pass_bytes(width))


def _one_pass(
    features: FeatureRows, clock: _Clock, cells: NDArray[np.int64], *, seed: int
) -> tuple[NDArray[np.float64], dict[str, Any], list[str]]:
    """The given cells through the network as one set: coordinates, diagnostics and notes."""
    seeds = np.array([child_seed(seed, "one-shot")])
    with clock("plane"):
        points = geometries(features, clock.network, cells[None], seeds=seeds)[0]
        coords, share = principal_plane(points)
    who = f"All {len(cells):,}" if len(cells) == len(features) else f"{len(cells):,}"
    return coords, {"planar_share": share}, [f"{who} cells were placed in one pass."]


def _patches(
    features: FeatureRows,
    clock: _Clock,
    config: AssemblyConfig,
    *,
    locality: NDArray[Any] | None,
    seed: int,
    progress: Progress,
) -> tuple[NDArray[np.float64], dict[str, Any], list[str]]:
    """Steps 1 to 7: coordinates, diagnostics and notes."""
    with clock("graph"):
        space = _leading(features) if locality is None else locality
        graph = locality_graph(space, seed=child_seed(seed, "graph"))
    with clock("patches"):
        patches = sample_patches(
            graph.adjacency, config.patch_size, coverage=config.coverage, seed=child_seed(seed, "patches")
        )
    with clock("measure"):
        points = geometries(features, clock.network, patches.cells, seeds=patches.seeds, progress=progress)
        measured = measure(points, patches, seed=child_seed(seed, "long edges"))
    with clock("stitch"):
        distances = stitch(measured, weighted=config.reliability)
    with clock("start"):
        start = landmark_isomap(distances, seed=child_seed(seed, "landmarks"))
    with clock("solve"):
        layout = huber_solve(distances, start, steps=config.solve_steps, progress=progress)
    diagnostics = {
        "patches": len(patches.cells),
        "coverage": float(patches.coverage.mean()),
        "bridges": patches.bridges,
        "isolated": graph.isolated,
        "measurements": len(measured.distance),
        "edges": len(distances.first),
        "edges_dropped": distances.dropped,
        "edges_rejoined": distances.rejoined,
        "support": float(distances.support.mean()) if len(distances.support) else 0.0,
        "disagreement": distances.disagreement,
        "reliability_min": float(distances.reliability.min()),
        "reliability_median": float(np.median(distances.reliability)),
        "stress": layout.stress,
        "residual_mean": layout.residual_mean,
        "residual_median": layout.residual_median,
        "residual_max": layout.residual_max,
    }
    return layout.coords, diagnostics, _words(diagnostics, patches.cells.shape[1], len(features))


def _words(values: dict[str, Any], size: int, n_cells: int) -> list[str]:
    notes = [
        f"{n_cells:,} cells were placed through {values['patches']:,} patches of {size:,}, stitched by "
        f"{values['edges']:,} distances; patches differ by {values['disagreement']:.1%} where they overlap, "
        f"and the layout keeps the distances to a stress of {values['stress'][-1]:.3f}."
    ]
    if values["isolated"]:
        notes.append(
            f"{values['isolated']:,} cells have no robust neighbour in expression; "
            "each was joined to its nearest cell."
        )
    if values["bridges"]:
        notes.append(
            f"{values['bridges']:,} patches were added to join parts of the cells that shared too little."
        )
    if values["edges_rejoined"]:
        notes.append(
            f"{values['edges_rejoined']:,} distances with little support were kept, because nothing else joined "
            "their cells; raise assembly.coverage if these are many."
        )
    return notes


def _finish(
    coords: NDArray[np.float64],
    mode: Mode,
    clock: _Clock,
    *,
    diagnostics: dict[str, Any],
    notes: list[str],
) -> Assembly:
    placed = canonical(coords)
    if placed.rms < 1e-9:
        notes.append("The model puts all cells at one point: it cannot distinguish them.")
    diagnostics = {**diagnostics, "rms_radius": placed.rms}
    return Assembly(placed.coords.astype(np.float32), mode, " ".join(notes), diagnostics, clock.profile())


def _leading(features: FeatureRows) -> NDArray[np.float32]:
    """The leading principal components of the features, for the locality graph; O(N f^2), a block at a time."""
    n_cells, width = len(features), features[np.arange(1)].width
    blocks = np.array_split(np.arange(n_cells), -(-n_cells // _BLOCK))

    def rows(block: NDArray[np.int64]) -> NDArray[np.float32]:
        return features[block].seen.numpy()

    if width <= _LOCALITY_DIM:
        return np.concatenate([rows(block) for block in blocks])
    mean = np.sum([rows(block).sum(0, dtype=np.float64) for block in blocks], axis=0) / n_cells
    mean = mean.astype(np.float32)
    square = np.zeros((width, width), np.float32)
    for block in blocks:
        centred = rows(block) - mean
        square += centred.T @ centred
    axes = np.linalg.eigh(square)[1][:, -_LOCALITY_DIM:]
    return np.concatenate([(rows(block) - mean) @ axes for block in blocks])


class _Clock(Clock):
    """Seconds by step, with those of the network separately."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__()
        self.geometry, self.inside = geometry, 0.0

    def network(self, features: Features, mask: Tensor, seeds: Tensor) -> Tensor:
        start = time.perf_counter()
        points = self.geometry(features, mask, seeds)
        self.inside += time.perf_counter() - start
        return points

    def apart(self) -> float:
        """Seconds inside the network."""
        return self.inside

    def profile(self) -> dict[str, float]:
        return {"network": self.inside, **self.seconds}
