"""The report on inputs before a run: what they are, what is odd, and what a run will cost."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from scipy import sparse
from sklearn.neighbors import NearestNeighbors

from spatialgears.config import Config
from spatialgears.errors import InputError
from spatialgears.validate import ValidInputs, validate_inputs

if TYPE_CHECKING:
    from anndata import AnnData

#: Moran's I from which a gene is called spatial.
SPATIAL = 0.1

#: Address space that is mapped, but not used, by threads and libraries loaded on the way.
RESERVED = 5e8

#: Depth of spots, relative to cells, below which they are called shallow.
SHALLOW = 0.7


@dataclass(frozen=True)
class Coefficients:
    """What the cost model is made of; measured on two cores, one place to calibrate it again."""

    start_seconds: float = 8.0  # importing, reading, writing
    panel_seconds: float = 2e-8  # per spot and shared gene
    step_seconds: float = 0.01  # per training step, whatever its size
    macs_per_second: float = 3.5e10  # multiply-adds on one core in these small networks
    core_gain: float = 0.5  # n cores are n to this power as fast as one
    refine_factor: float = 3.0  # graphs and landmarks of the denoiser, over its multiply-adds
    solve_seconds: float = 4e-6  # per cell and step of the global solve
    base_bytes: float = 7.5e8  # the interpreter with torch and scanpy
    stored_bytes: float = 32.0  # per stored value of the inputs: read, validated, and a copy under way
    count_bytes: float = 2.0  # per entry of spots or cells by shared genes: sparse, some copies
    view_bytes: float = 12.0  # per entry of spots or cells by panel genes: dense, some copies
    activation_bytes: float = 4.0  # per value kept for the backward pass


@dataclass(frozen=True)
class Cost:
    """What a run is expected to take on this machine."""

    seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class InputSummary:
    """One input in numbers: medians per observation on the shared genes; for slides the spacing of spots."""

    name: str
    observations: int
    genes: int
    depth: float
    detected: float
    empty: int
    spacing: float | None = None


@dataclass(frozen=True)
class CheckReport:
    """What :func:`check_inputs` found.

    Attributes
    ----------
    slides, cells
        Each input in numbers.
    kind
        ``"counts"`` or ``"normalised"``.
    shared_genes, panel_genes, spatial_genes
        Genes in every input; at most this many are used; those with a mean Moran's I above 0.1.
    depth_ratio
        Median depth of spots over that of cells; None without cells or counts.
    agreement
        Pearson correlation between slides and cells of the log mean expression of genes; None without cells.
    odd
        What is odd, in words; empty if nothing is.
    cost
        Expected time and memory of a run with this configuration.
    """

    slides: list[InputSummary]
    cells: InputSummary | None
    kind: str
    shared_genes: int
    panel_genes: int
    spatial_genes: int
    depth_ratio: float | None
    agreement: float | None
    odd: list[str]
    cost: Cost

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def check_inputs(
    slides: Sequence[AnnData],
    cells: AnnData | None = None,
    *,
    config: Config | None = None,
    names: Sequence[str] | None = None,
    layer: str | None = None,
    spatial_key: str = "spatial",
    normalised: bool = False,
) -> CheckReport:
    """Validate inputs (see :func:`~spatialgears.validate.validate_inputs`) and describe them.

    Raises
    ------
    InputError
        If they cannot be used.
    """
    config = config or Config.preset()
    names = list(names or [*(f"slide {i + 1}" for i in range(len(slides))), "the cells"])
    valid = validate_inputs(
        slides, cells, layer=layer, spatial_key=spatial_key, normalised=normalised, names=names
    )
    spatial = _spatial_genes(valid, config)
    panel = min(config.expression.n_genes, len(valid.genes))
    summaries = [
        _summary(names[i], valid.slides[i], slide.n_vars, valid.empty_spots[i], valid.coords[i])
        for i, slide in enumerate(slides)
    ]
    placed = None
    if valid.cells is not None and cells is not None:
        placed = _summary(names[len(slides)], valid.cells, cells.n_vars, valid.empty_cells)
    cost = cost_of(valid, config)
    report = CheckReport(
        slides=summaries,
        cells=placed,
        kind=valid.kind,
        shared_genes=len(valid.genes),
        panel_genes=panel,
        spatial_genes=spatial,
        depth_ratio=_depth_ratio(valid),
        agreement=_agreement(valid),
        odd=[],
        cost=cost,
    )
    report.odd.extend([*valid.warnings, *_odd(report, valid, config)])
    return report


def cost_of(valid: ValidInputs, config: Config) -> Cost:
    """:func:`predict_cost` of a run on these inputs."""
    n_spots, n_cells = (
        sum(one.shape[0] for one in valid.slides),
        0 if valid.cells is None else valid.cells.shape[0],
    )
    stored = sum(one.nnz for one in [*valid.slides, *([] if valid.cells is None else [valid.cells])])
    panel = min(config.expression.n_genes, len(valid.genes))
    return predict_cost(n_spots, n_cells, panel, config, stored=stored)


def require_memory(cost: Cost) -> None:
    """Refuse work that would be ended half-way for want of memory.

    Raises
    ------
    InputError
        If more memory is needed than the machine has, or than a limit on this process leaves.
    """
    needed = cost.peak_bytes
    rooms = {"the machine has": float(psutil.virtual_memory().total)}
    group = Path("/sys/fs/cgroup/memory.max")
    if group.exists() and (told := group.read_text().strip()).isdecimal():
        rooms["the control group allows"] = float(told)
    rooms |= _limits()
    where, room = min(rooms.items(), key=lambda item: item[1])
    if needed > room:
        raise InputError(
            f"This takes about {needed / 1e9:.1f} GB of memory; {where} {max(room, 0) / 1e9:.1f} GB.",
            "Raise the limit, use a larger machine, or fewer cells, fewer genes (--set expression.n_genes=500), "
            "or --preset quick.",
        )


def _limits() -> dict[str, float]:
    """Peak memory that limits on this process leave room for, beside what it has mapped and does not use."""
    try:
        import resource
    except ImportError:  # Windows
        return {}
    memory = psutil.Process().memory_info()
    mapped = {
        resource.RLIMIT_AS: ("ulimit -v leaves", memory.vms),
        resource.RLIMIT_DATA: ("ulimit -d leaves", getattr(memory, "data", memory.rss)),
    }
    found = {}
    for kind, (name, used) in mapped.items():
        soft, _ = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY:
            found[name] = soft - max(used - memory.rss, 0) - RESERVED
    return found


def predict_cost(n_spots: int, n_cells: int, n_genes: int, config: Config, *, stored: int = 0) -> Cost:
    """Expected time and memory of a run, linear in spots, cells, genes and training steps.

    Time is the multiply-adds of the networks (three passes per training step, one per sample and half Heun
    step) over the speed of the cores, plus fixed costs per step, per cell of the global solve, and per entry
    of the input. Memory is the larger of one training step and one pass over the cells, beside the data.
    ``n_genes`` is the size of the gene panel, ``stored`` the number of values of all inputs that are not zero.
    The :class:`Coefficients` were fitted to runs on 581 spots and
    10,150 cells on an otherwise idle machine; a busy one takes longer.
    """
    c, a, e, g, s = Coefficients(), config.assembly, config.expression, config.geometry, config.supervision
    cores = config.threads or min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, 8)
    speed = c.macs_per_second * cores**c.core_gain
    embedded = g.inputs != "expression"
    width_in = {"expression": n_genes, "embedding": e.embed_dim, "both": n_genes + e.embed_dim}[g.inputs]
    block = 12 * g.width**2 + 4 * g.inducing * g.width  # multiply-adds of one ISAB per element
    enter = width_in * g.hidden + g.hidden * g.width if g.hidden else width_in * g.width
    generator = enter + (g.context_blocks + g.generator_blocks) * block
    denoiser = g.denoiser_blocks * block if g.refiner != "none" else 0
    size = (min(s.n_min, n_spots) + min(s.n_max, n_spots)) / 2
    elements = g.batch_size * size
    pairs = 6 * size * s.dim
    joint = denoiser if not g.refiner_steps else 0
    training = (
        g.steps * max(g.crossfit, 1) * (c.step_seconds + 3 * elements * (generator + joint + pairs) / speed)
    )
    if denoiser and g.refiner_steps:
        each = c.refine_factor * 3 * elements * (generator + denoiser + pairs) / speed
        training += g.refiner_steps * (
            c.step_seconds + each * (0.3 if g.crossfit else 1)
        )  # sets of unseen spots are small
    if embedded:
        layers = [n_genes, *e.hidden, e.embed_dim]
        encoder = sum(left * right for left, right in itertools.pairwise(layers))
        batches = e.epochs * math.ceil(n_spots / e.batch_size)
        training += batches * (c.step_seconds + 12 * e.batch_size * encoder / speed)
    passes = a.coverage if a.mode == "patches" else 1
    refine = 2 * c.refine_factor * a.steps * denoiser
    solve = n_cells * a.solve_steps * c.solve_seconds if a.mode == "patches" else 0
    members = max(g.crossfit, 1)
    sampling = (
        passes * n_cells * (1 + a.samples) * (members * generator + refine) / speed + (1 + a.samples) * solve
    )
    data = (c.count_bytes + c.view_bytes) * (n_spots + n_cells) * n_genes + c.stored_bytes * stored
    kept = 8 * (width_in + g.hidden) + 40 * g.width * (
        g.context_blocks + g.generator_blocks + g.denoiser_blocks
    )
    step_bytes = elements * kept * c.activation_bytes
    pass_bytes = min(
        n_cells * 8 * g.width * c.activation_bytes * min(cores, 1 + a.samples), a.memory_gb * 2**30
    )
    return Cost(
        seconds=c.start_seconds + c.panel_seconds * n_spots * n_genes + training + sampling,
        peak_bytes=int(c.base_bytes + data + max(step_bytes, pass_bytes)),
    )


def _summary(
    name: str, counts: sparse.csr_matrix, n_genes: int, empty: np.ndarray, coords: np.ndarray | None = None
) -> InputSummary:
    spacing = None
    if coords is not None:
        nearest, _ = NearestNeighbors(n_neighbors=1).fit(coords).kneighbors()
        spacing = float(np.median(nearest))
    return InputSummary(
        name=name,
        observations=counts.shape[0],
        genes=n_genes,
        depth=float(np.median(_depths(counts))),
        detected=float(np.median(np.diff(counts.indptr))),
        empty=int(empty.sum()),
        spacing=spacing,
    )


def _depths(counts: sparse.csr_matrix) -> np.ndarray:
    return np.asarray(counts.sum(axis=1)).ravel()


def _depth_ratio(valid: ValidInputs) -> float | None:
    if valid.cells is None or valid.kind != "counts":
        return None
    spots = np.concatenate([_depths(slide) for slide in valid.slides])
    return float(np.median(spots) / max(np.median(_depths(valid.cells)), 1))


def _agreement(valid: ValidInputs) -> float | None:
    if valid.cells is None or "scaled" in valid.forms:
        return None
    means = [np.asarray(matrix.mean(axis=0)).ravel() for matrix in (sparse.vstack(valid.slides), valid.cells)]
    logs = [np.log1p(1e4 * mean / max(mean.sum(), 1e-12)) for mean in means]
    return float(np.corrcoef(*logs)[0, 1]) if all(log.std() > 0 for log in logs) else None


def _spatial_genes(valid: ValidInputs, config: Config) -> int:
    from spatialgears.expression.panel import morans_i  # torch comes with it: only once the input is valid

    neighbors = config.expression.moran_neighbors
    per_slide = [
        morans_i(slide, coords, n_neighbors=neighbors, raw=form in ("counts", "linear"))
        for slide, coords, form in zip(valid.slides, valid.coords, valid.forms, strict=False)
    ]
    return int((np.mean(per_slide, axis=0) > SPATIAL).sum())


def _odd(report: CheckReport, valid: ValidInputs, config: Config) -> list[str]:
    odd = []
    if report.depth_ratio is not None and report.depth_ratio < SHALLOW and config.expression.thinning:
        odd.append(
            f"Spots have {report.depth_ratio:.2g} of the depth of cells; thinning cannot deepen them. Were slides and cells "
            "swapped?"
        )
    if report.agreement is not None and report.agreement < 0.4:
        odd.append(
            f"Mean expression of slides and cells hardly agrees (r = {report.agreement:.2f}): one tissue?"
        )
    if report.spatial_genes < 10:
        odd.append(f"Only {report.spatial_genes} genes vary over the slides (Moran's I above {SPATIAL}).")
    matrices = [*valid.slides, *([valid.cells] if valid.cells is not None else [])]
    names = [*(one.name for one in report.slides), report.cells.name if report.cells else ""]
    for i, left in enumerate(matrices):
        for j in range(i + 1, len(matrices)):
            if (
                left.shape == matrices[j].shape
                and left.nnz == matrices[j].nnz
                and not (left != matrices[j]).nnz
            ):
                odd.append(f"{names[i]} and {names[j]} hold the same values.")
    available = psutil.virtual_memory().available
    if report.cost.peak_bytes > available:
        odd.append(
            f"A run needs about {report.cost.peak_bytes / 1e9:.1f} GB, {available / 1e9:.1f} GB are free; "
            "try --preset quick or fewer genes (--set expression.n_genes=500)."
        )
    return odd
