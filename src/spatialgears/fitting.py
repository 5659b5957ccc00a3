"""From valid inputs to a fitted model: panel, views, geometry, self-check and confidence, in the paper's order."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from spatialgears.assembly.confidence import Confidence
from spatialgears.config import Config
from spatialgears.engine import Progress, child_seed, make_fabric, numpy_rng, silent, torch_rng
from spatialgears.expression.normalise import Standardiser
from spatialgears.expression.panel import Panel, build_panel
from spatialgears.expression.views import SpotViews, cell_features
from spatialgears.geometry.ensemble import Ensemble
from spatialgears.geometry.heldout import Draw
from spatialgears.geometry.model import GeometryModel
from spatialgears.geometry.training import Folds, GeometryFit, train_geometry
from spatialgears.selfcheck import SelfCheck, score
from spatialgears.store import StoredModel, flatten, part
from spatialgears.supervision.slides import Frame, canonicalise
from spatialgears.supervision.targets import centre, procrustes
from spatialgears.validate import ValidInputs

logger = logging.getLogger(__name__)

VIEWS = 4  # views of each held-out spot that the confidence is learnt from
ANCHORS = 512  # spots per slide whose features are kept, to find the slide's frame among the cells
FOOTPRINT = 5000  # spots per slide whose places are kept


@dataclass(frozen=True, eq=False)
class Slide:
    """What a fitted model keeps of a slide: its outline, and some spots as they look to the network.

    Attributes
    ----------
    coords
        (n, 2) canonical places of its spots, a sample of them when there are many.
    anchors
        (a,) some of these, whose features are kept.
    features
        (a, f) a view of each anchor.
    frame
        The way from canonical coordinates back to the slide's own.
    """

    coords: NDArray[np.float64]
    anchors: NDArray[np.int64]
    features: Tensor
    frame: Frame


@dataclass(frozen=True, eq=False)
class Fitted:
    """Everything that placing cells needs, and nothing of the training data but a sample of spots."""

    panel: Panel
    raw: bool
    standardiser: Standardiser
    network: Ensemble
    slides: list[Slide]
    confidence: Confidence | None
    checks: list[SelfCheck]
    history: dict[str, list[float]]
    warnings: list[str]

    def features(self, counts: sparse.csr_matrix, config: Config, *, missing: NDArray[np.bool_]) -> Tensor:
        """What the network sees of cells with these counts (N, G); a missing gene is taken as average."""
        x, _ = cell_features(counts, self.panel, config.expression, standardiser=self.standardiser, raw=self.raw)
        if missing.any():
            x[:, torch.from_numpy(missing)] = 0
        return x

    def tensors(self) -> dict[str, Tensor]:
        """The numbers, by name, for a model folder."""
        tensors = flatten("network", self.network.state_dict())
        tensors |= {
            "panel.weights": torch.from_numpy(self.panel.weights),
            "panel.morans_i": torch.from_numpy(np.asarray(self.panel.morans_i)),
            "cells.mean": self.standardiser.mean,
            "cells.std": self.standardiser.std,
        }
        for i, slide in enumerate(self.slides):
            tensors |= {
                f"slide{i}.coords": torch.from_numpy(slide.coords),
                f"slide{i}.anchors": torch.from_numpy(slide.anchors),
                f"slide{i}.features": slide.features,
                f"slide{i}.centre": torch.from_numpy(np.asarray(slide.frame.centre)),
                f"slide{i}.scale": torch.tensor(slide.frame.scale, dtype=torch.float64),
            }
        if self.confidence is not None:
            tensors |= flatten("confidence", self.confidence.tensors())
        return tensors

    def meta(self) -> dict[str, Any]:
        """The facts, for ``meta.json``."""
        return {
            "raw": self.raw,
            "target": self.panel.target,
            "members": len(self.network.members),
            "slides": len(self.slides),
            "checks": [check.to_dict() for check in self.checks],
            "warnings": self.warnings,
            "history": self.history,
        }

    @classmethod
    def restore(cls, stored: StoredModel) -> Fitted:
        """A fitted model from what :mod:`spatialgears.store` read."""
        tensors, meta, config = stored.tensors, stored.meta, stored.config
        network = build_network(len(stored.genes), int(meta["members"]), config)
        network.load_state_dict(part("network", tensors))
        slides = []
        for i in range(int(meta["slides"])):
            one = part(f"slide{i}", tensors)
            frame = Frame(one["centre"].numpy(), float(one["scale"]))
            slides.append(Slide(one["coords"].numpy(), one["anchors"].numpy(), one["features"], frame))
        confidence = part("confidence", tensors)
        return cls(
            panel=Panel(
                stored.genes, tensors["panel.weights"].numpy(), tensors["panel.morans_i"].numpy(), float(meta["target"])
            ),
            raw=bool(meta["raw"]),
            standardiser=Standardiser(tensors["cells.mean"], tensors["cells.std"]),
            network=network.eval(),
            slides=slides,
            confidence=Confidence.from_tensors(confidence) if confidence else None,
            checks=[SelfCheck(**check) for check in meta["checks"]],
            history=meta["history"],
            warnings=meta["warnings"],
        )


def build_network(n_features: int, members: int, config: Config) -> Ensemble:
    """An untrained ensemble; only its first member has a refiner."""
    plain = config.geometry.model_copy(update={"refiner": "none"})
    dim = config.supervision.dim
    return Ensemble([GeometryModel(n_features, dim, config.geometry if i == 0 else plain) for i in range(members)])


def fit_model(
    inputs: ValidInputs, config: Config, *, checkpoint: Path | None = None, progress: Progress = silent
) -> Fitted:
    """Stages A to C on valid inputs, then what the held-out spots tell."""
    seed, raw = config.seed, inputs.kind == "counts"
    kept = [np.flatnonzero(~empty) for empty in inputs.empty_spots]
    spots = [counts[rows] for counts, rows in zip(inputs.slides, kept, strict=True)]
    places = [coords[rows] for coords, rows in zip(inputs.coords, kept, strict=True)]
    cells = inputs.cells[np.flatnonzero(~inputs.empty_cells)]
    panel, columns = build_panel(spots, places, cells, genes=inputs.genes, config=config.expression, raw=raw)
    spots, cells = [counts[:, columns] for counts in spots], cells[:, columns]
    depths = np.asarray(cells.sum(1)).ravel()
    views = SpotViews(
        spots, depths, panel, config=config.expression, seed=child_seed(seed, "views"), raw=raw
    )
    _, standardiser = cell_features(cells, panel, config.expression, raw=raw)
    canonical, frames = zip(*(canonicalise(coords) for coords in places), strict=True)
    fit = train_geometry(
        views.draw,
        canonical,
        len(panel),
        config=config,
        seed=child_seed(seed, "geometry"),
        fabric=make_fabric(config),
        checkpoint=checkpoint,
        progress=progress,
    )
    members = [fit.model, *(fit.folds.models if fit.folds else [])]
    checks, confidence = examine(fit, views.draw, list(canonical), seed=seed)
    return Fitted(
        panel=panel,
        raw=raw,
        standardiser=standardiser,
        network=Ensemble(members).eval(),
        slides=_keep_slides(views.draw, list(canonical), list(frames), seed=seed),
        confidence=confidence,
        checks=checks,
        history=fit.history,
        warnings=inputs.warnings,
    )


@dataclass(frozen=True)
class Unseen:
    """Spots as placed by models that had not seen them, in the frames of their slides.

    Attributes
    ----------
    spot
        (m,) number of the spot among all; several views of each.
    slide
        (m,) its slide.
    features
        (m, f) the view that was placed.
    places, truth
        (m, 2) where it was put, and where it is.
    view
        (m,) number of the view.
    """

    spot: Tensor
    slide: Tensor
    features: Tensor
    places: Tensor
    truth: Tensor
    view: Tensor

    @property
    def error(self) -> Tensor:
        """(m,) how far off each was placed."""
        return (self.places - self.truth).norm(dim=1)


@torch.no_grad()
def place_unseen(folds: Folds, draw: Draw, slides: list[NDArray[np.float64]], *, seed: int) -> Unseen:
    """Place every spot with the model that has not seen it, among all spots of its slide.

    The pose of a slide is found from the spots the model has seen, or, where it has seen none, from all.
    """
    starts = np.cumsum([0, *map(len, slides)])
    parts: list[tuple[Tensor, ...]] = []
    for number, model in enumerate(folds.models):
        for s, coords in enumerate(slides):
            unseen = torch.from_numpy(folds.fold[starts[s] : starts[s + 1]] == number)
            if not unseen.any():
                continue
            posed = ~unseen if (~unseen).sum() > unseen.sum() else torch.ones_like(unseen)
            index = torch.arange(starts[s], starts[s + 1])
            truth = torch.from_numpy(coords).float()
            for view in range(VIEWS):
                x = draw(index[None], torch_rng(seed, "unseen", number, s, view))
                geometry = model(x)[0].float()
                shift, origin = geometry[posed].mean(0), truth[posed].mean(0)
                turn = procrustes(truth[posed] - origin, geometry[posed] - shift)  # (2, d)
                places = (geometry - shift) @ turn.T + origin
                rows = (index[unseen], torch.full((int(unseen.sum()),), s), x[0, unseen], places[unseen])
                parts.append((*rows, truth[unseen], torch.full((int(unseen.sum()),), view)))
    return Unseen(*(torch.cat(column) for column in zip(*parts, strict=True)))


def examine(
    fit: GeometryFit, draw: Draw, slides: list[NDArray[np.float64]], *, seed: int
) -> tuple[list[SelfCheck], Confidence | None]:
    """Self-checks on held-out spots and slides, and the confidence learnt from them."""
    checks: list[SelfCheck] = []
    found: list[Unseen] = []
    for folds, what in ((fit.folds, "Held-out spots"), (fit.slide_folds, "Held-out slide")):
        if folds is None:
            continue
        unseen = place_unseen(folds, draw, slides, seed=seed)
        found.append(unseen)
        for s in range(len(slides)):
            one = (unseen.slide == s) & (unseen.view == 0)
            if one.sum() >= 10:
                title = what if len(slides) == 1 else f"{what} {'of slide ' if folds is fit.folds else ''}{s + 1}"
                checks.append(score(title, unseen.places[one].numpy(), unseen.truth[one].numpy()))
    if not found:
        return checks, None
    confidence = Confidence.fit(
        torch.cat([one.features for one in found]),
        torch.cat([one.error for one in found]),
        torch.cat([one.spot for one in found]),
    )
    return checks, confidence


def _keep_slides(
    draw: Draw, slides: list[NDArray[np.float64]], frames: list[Frame], *, seed: int
) -> list[Slide]:
    starts = np.cumsum([0, *map(len, slides)])
    kept = []
    for s, (coords, frame) in enumerate(zip(slides, frames, strict=True)):
        rng = numpy_rng(seed, "kept spots", s)
        chosen = np.sort(rng.permutation(len(coords))[:FOOTPRINT])
        anchors = np.sort(rng.permutation(len(chosen))[:ANCHORS])
        index = torch.from_numpy(starts[s] + chosen[anchors])
        kept.append(Slide(coords[chosen], anchors, draw(index, torch_rng(seed, "anchors", s)), frame))
    return kept
