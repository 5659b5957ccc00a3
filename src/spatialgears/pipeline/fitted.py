"""A fitted model: all that placing cells needs, and its way to and from a model folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from spatialgears.assembly.confidence import Confidence
from spatialgears.config import Config
from spatialgears.expression.encoder import Encoder
from spatialgears.expression.normalise import Standardiser
from spatialgears.expression.other_genes import OtherGenes
from spatialgears.expression.panel import Panel
from spatialgears.expression.pull import Pull
from spatialgears.geometry.ensemble import Ensemble
from spatialgears.geometry.features import Features
from spatialgears.geometry.model import GeometryModel
from spatialgears.geometry.nearest import NearestSpots
from spatialgears.pipeline.cell_check import CellCheck
from spatialgears.pipeline.features import CellFeatures, CellView, OtherCounts
from spatialgears.pipeline.gene_reading import CheckedSlide
from spatialgears.pipeline.self_check import SelfCheck
from spatialgears.storage.model_folder import StoredModel, flatten, part
from spatialgears.supervision.folds import Folds
from spatialgears.supervision.slides import Frame
from spatialgears.supervision.targets import DIM
from spatialgears.validate.donors import Donors
from spatialgears.validate.new_cells import FitRecord

LEAST_PRESENT = 0.5  # share of their library that cells must have of the other genes, or these are not used


@dataclass(frozen=True, eq=False)
class KeptSlide:
    """What a fitted model keeps of a slide: its outline, and the features of some spots."""

    #: (n, 2) canonical coordinates of its spots, a sample of them when there are many.
    coords: NDArray[np.float64]
    anchors: NDArray[np.int64]  # (a,) some of these, whose features are kept
    features: Features  # a view of each anchor
    frame: Frame  # the way from canonical coordinates back to the slide's own
    pitch: float  # distance of neighbours if these spots filled the tissue evenly
    given: NDArray[np.int64]  # (n,) these spots in the order in which the slide has them
    checked: CheckedSlide  # expression of some spots, which the check on cells compares with

    def tensors(self) -> dict[str, Tensor]:
        """The numbers, by name."""
        parts = {"expression": self.features.expression, "embedding": self.features.embedding}
        return {
            "coords": torch.from_numpy(self.coords),
            "anchors": torch.from_numpy(self.anchors),
            **{name: one for name, one in parts.items() if one is not None},
            "centre": torch.from_numpy(np.asarray(self.frame.centre)),
            "scale": torch.tensor(self.frame.scale, dtype=torch.float64),
            "pitch": torch.tensor(self.pitch, dtype=torch.float64),
            "given": torch.from_numpy(self.given),
            **flatten("checked", self.checked.tensors()),
        }

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> KeptSlide:
        """Back from :meth:`tensors`."""
        return cls(
            tensors["coords"].numpy(),
            tensors["anchors"].numpy(),
            Features(tensors.get("expression"), tensors.get("embedding")),
            Frame(tensors["centre"].numpy(), float(tensors["scale"])),
            float(tensors["pitch"]),
            tensors["given"].numpy(),
            CheckedSlide.from_tensors(part("checked", tensors)),
        )


@dataclass(frozen=True, eq=False)
class Fitted:
    """Everything that placing cells needs, and nothing of the training data but a sample of spots."""

    view: CellView  # how counts of cells become features
    network: Ensemble  # the generators, the refiner, and the nearest spots
    slides: list[KeptSlide]  # what is kept of each slide, in canonical order
    confidence: Confidence | None  # how errors of held-out spots become radii; None where none were held out
    checks: list[SelfCheck]  # the self-checks on held-out spots and slides
    history: dict[str, list[float]]  # training curves by name
    warnings: list[str]  # warnings about the inputs, in words
    embedding: dict[str, Any]  # scores of stage A's embedding: guard, probe, mixing; empty without one
    inputs: FitRecord  # what later cells are compared with
    folds: Folds  # which spots were held out of which model
    donors: Donors  # of the slides
    order: list[int]  # for each slide, in the order given, its position in ``slides``
    threads: int  # threads of the fit: sums are split over them, and rounded accordingly
    #: The check on the cells of the fit by kept-out genes; None until it is made.
    cell_check: CellCheck | None = None
    #: Whether slides had values that are not counts, and counts were matched to those of the cells.
    matched: bool = False
    average: float = 0.0  # how far each cell moves towards the mean of the cells most similar to it

    @property
    def panel(self) -> Panel:
        """The genes and their weights."""
        return self.view.panel

    @property
    def given_slides(self) -> list[KeptSlide]:
        """What is kept of each slide, in the order in which the slides were given."""
        return [self.slides[i] for i in self.order]

    @property
    def raw(self) -> bool:
        """Whether it was fitted on counts."""
        return self.view.raw

    def features(
        self,
        counts: sparse.csr_matrix,
        config: Config,
        *,
        missing: NDArray[np.bool_],
        others: OtherCounts | None = None,
    ) -> CellFeatures:
        """Features of cells with these counts (N, G) on the panel; a ``missing`` gene (G,) is taken as average."""
        view = self.view
        if self.raw and missing.any():  # genes that are there keep their share of the library
            sums = self.inputs.cells
            target = self.panel.target * float(sums[~missing].sum() / sums.sum())
            view = replace(view, panel=replace(self.panel, target=target))
        return CellFeatures(view, counts, config, missing, others=others).averaged(self.average)

    @property
    def other_genes(self) -> NDArray[np.str_]:
        """Names of the genes that slides lack and the model uses."""
        used = self.view.other_genes
        return np.empty(0, dtype=str) if used is None else used.genes

    def others_of(self, counts: sparse.csr_matrix, missing: NDArray[np.bool_]) -> OtherCounts | None:
        """Counts (N, E) of cells in these genes; None where the model uses none, or cells lack most of what they count."""
        used = self.view.other_genes
        if used is None or used.present(missing) < LEAST_PRESENT:
            return None
        return OtherCounts(counts, used.genes, missing)

    def shown_all(self, others: OtherCounts | None) -> bool:
        """Whether cells show, with these counts, all that the cells of the fit showed of other genes."""
        return self.view.other_genes is None or (others is not None and not others.missing.any())

    def tensors(self) -> dict[str, Tensor]:
        """The numbers, by name, for a model folder."""
        tensors = flatten("network", self.network.state_dict())
        tensors |= {
            "panel.weights": torch.from_numpy(self.panel.weights),
            "panel.morans_i": torch.from_numpy(np.asarray(self.panel.morans_i)),
            "cells.mean": self.view.standardiser.mean,
            "cells.std": self.view.standardiser.std,
            "folds.part": torch.from_numpy(self.folds.part),
            "folds.whole": torch.from_numpy(self.folds.whole),
        }
        for i, slide in enumerate(self.slides):
            tensors |= flatten(f"slide{i}", slide.tensors())
        if self.view.axes is not None:
            tensors["panel.signal"] = self.view.axes
        if self.view.pull is not None:
            tensors |= {"pull.bank": self.view.pull.bank, "pull.axes": self.view.pull.axes}
        if self.view.encoder is not None:
            tensors |= flatten("encoder", self.view.encoder.state_dict())
        if self.view.other_genes is not None:
            tensors |= flatten("other_genes", self.view.other_genes.tensors())
        if self.confidence is not None:
            tensors |= flatten("confidence", self.confidence.tensors())
        if self.cell_check is not None and self.cell_check.patterns is not None:
            tensors |= flatten("cell_check", self.cell_check.patterns.tensors())
        arrays = self.inputs.arrays()
        return tensors | flatten("inputs", {name: torch.from_numpy(one) for name, one in arrays.items()})

    def meta(self) -> dict[str, Any]:
        """The facts, for ``meta.json``."""
        others = self.view.other_genes
        return {
            "raw": self.raw,
            "matched": self.matched,
            "average": self.average,
            "target": self.panel.target,
            "other_genes": None
            if others is None
            else {"genes": others.genes.tolist(), "target": others.target},
            "members": len(self.network.members),
            "slides": len(self.slides),
            "donors": list(self.donors.names),
            "donors_stated": self.donors.stated,
            "order": self.order,
            "threads": self.threads,
            "crossfit": self.folds.crossfit,
            "left_out": self.folds.left_out,
            "checks": [check.to_dict() for check in self.checks],
            "cell_check": None if self.cell_check is None else self.cell_check.meta(),
            "warnings": self.warnings,
            "embedding": self.embedding,
            "history": self.history,
        }

    @classmethod
    def restore(cls, stored: StoredModel) -> Fitted:
        """A fitted model from what :mod:`spatialgears.storage.model_folder` read."""
        tensors, meta, config = stored.tensors, stored.meta, stored.config
        pull, confidence = part("pull", tensors), part("confidence", tensors)
        encoder = Encoder.from_state(state).freeze() if (state := part("encoder", tensors)) else None
        view = CellView(
            panel=Panel(
                stored.genes,
                tensors["panel.weights"].numpy(),
                tensors["panel.morans_i"].numpy(),
                float(meta["target"]),
            ),
            standardiser=Standardiser(tensors["cells.mean"], tensors["cells.std"]),
            raw=bool(meta["raw"]),
            axes=tensors.get("panel.signal"),
            pull=Pull(pull["bank"], pull["axes"], config.expression.pull) if pull else None,
            encoder=encoder,
            other_genes=OtherGenes.from_tensors(
                others, **meta["other_genes"], share=config.expression.other_genes
            )
            if (others := part("other_genes", tensors))
            else None,
        )
        slides = [KeptSlide.from_tensors(part(f"slide{i}", tensors)) for i in range(int(meta["slides"]))]
        directions = view.axes is not None
        network = build_network(slides[0].features.width, int(meta["members"]), config, directions=directions)
        if spots := part("network.nearest", tensors):
            network.nearest = NearestSpots(**spots)
        network.load_state_dict(part("network", tensors))
        return cls(
            view=view,
            network=network.eval(),
            slides=slides,
            confidence=Confidence.from_tensors(confidence) if confidence else None,
            checks=[SelfCheck(**check) for check in meta["checks"]],
            history=meta["history"],
            warnings=meta["warnings"],
            embedding=meta["embedding"],
            inputs=FitRecord.from_arrays(
                {name: one.numpy() for name, one in part("inputs", tensors).items()}
            ),
            folds=Folds(
                tensors["folds.part"].numpy(),
                tensors["folds.whole"].numpy(),
                int(meta["crossfit"]),
                int(meta["left_out"]),
            ),
            donors=Donors(tuple(meta["donors"]), meta["donors_stated"]),
            cell_check=CellCheck.restore(meta["cell_check"], part("cell_check", tensors))
            if meta["cell_check"]
            else None,
            matched=bool(meta["matched"]),
            average=float(meta["average"]),
            order=meta["order"],
            threads=int(meta["threads"]),
        )


def build_network(n_features: int, members: int, config: Config, *, directions: bool) -> Ensemble:
    """An untrained ensemble, on genes or on ``directions`` of expression; only its first member has a refiner."""
    lead, noise = config.geometry, torch.zeros(n_features, n_features) if directions else None
    plain = lead.model_copy(update={"refiner": "none"})
    return Ensemble(
        [GeometryModel(n_features, DIM, plain if i else lead, noise=noise) for i in range(members)]
    )
