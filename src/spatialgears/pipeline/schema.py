"""What the files of a model folder must hold, for the configuration of that model: facts, and every tensor.

One place for all of it: a tensor or a fact that a model keeps is described here, or the model cannot be loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from spatialgears.config import Config
from spatialgears.expression.encoder import HIDDEN
from spatialgears.expression.guard import Guard
from spatialgears.expression.other_genes import AXES, CLIP
from spatialgears.expression.other_genes import MOST as MOST_OTHERS
from spatialgears.metrics.wording import MAIN
from spatialgears.pipeline.cell_check import Verdict
from spatialgears.pipeline.gene_reading import MOST_GENES
from spatialgears.pipeline.self_check import SelfCheck
from spatialgears.storage.schema import Axis, Header, TensorSpec

#: Spots of all slides together, and views of held-out ones.
MOST_SPOTS, MOST_VIEWS = 10**8, 10**8
#: Members of an ensemble, and slides.
MOST_MEMBERS, MOST_SLIDES = 20, 1000
#: Largest of what is learnt (weights, features, coordinates in RMS radii), and least of what is positive.
WEIGHT, FEATURE, PLACE, POSITIVE = 1e6, 1e6, 1e4, 1e-12

Words = Annotated[str, Field(max_length=10_000)]


class Embedding(BaseModel):
    """What is known of stage A's embedding."""

    guard: Guard
    probe: FiniteFloat
    mixing: dict[str, FiniteFloat]
    reach: FiniteFloat | None = None


class ShownGenes(BaseModel):
    """The genes whose patterns the check on cells shows, and their slide."""

    model_config = ConfigDict(extra="forbid")

    genes: Annotated[list[Words], Field(max_length=3)]
    r: Annotated[list[FiniteFloat], Field(max_length=3)]
    slide: Annotated[int, Field(ge=0)]


class GeneTable(BaseModel):
    """The check on cells, gene by gene."""

    model_config = ConfigDict(extra="forbid")

    gene: list[Words]
    r: list[FiniteFloat]
    reference: list[FiniteFloat]
    ceiling: list[FiniteFloat]

    @model_validator(mode="after")
    def _even(self) -> Self:
        if len({len(self.gene), len(self.r), len(self.reference), len(self.ceiling)}) > 1:
            raise ValueError("its columns are not of one length")
        return self


class CellCheckFacts(BaseModel):
    """The check on cells by kept-out genes."""

    r: FiniteFloat | None
    se: FiniteFloat | None
    reference: FiniteFloat | None
    shuffled: FiniteFloat | None
    ceiling: FiniteFloat | None
    unmatched: FiniteFloat | None = None
    n_genes: Annotated[int, Field(ge=0)]
    n_cells: Annotated[int, Field(ge=0)]
    verdict: Verdict
    words: Words
    by_gene: GeneTable | Annotated[dict[str, str], Field(max_length=0)]
    patterns: ShownGenes | None


class OtherGeneFacts(BaseModel):
    """The genes that only the cells have."""

    model_config = ConfigDict(extra="forbid")

    genes: Annotated[list[Words], Field(min_length=1, max_length=MOST_OTHERS)]
    target: Annotated[FiniteFloat, Field(gt=0, le=1e12)]


class Facts(BaseModel):
    """``meta.json``, beside what :mod:`spatialgears.storage.model_folder` keeps there itself."""

    model_config = ConfigDict(strict=True)

    raw: bool
    matched: bool
    average: Annotated[FiniteFloat, Field(ge=0, le=1)]
    target: Annotated[FiniteFloat, Field(gt=0, le=1e12)]
    other_genes: OtherGeneFacts | None = None
    members: Annotated[int, Field(ge=1, le=MOST_MEMBERS)]
    slides: Annotated[int, Field(ge=1, le=MOST_SLIDES)]
    donors: Annotated[
        list[Annotated[Words, Field(min_length=1)]], Field(min_length=1, max_length=MOST_SLIDES)
    ]
    donors_stated: bool
    order: list[int]
    threads: Annotated[int, Field(ge=1, le=10_000)]
    crossfit: Annotated[int, Field(ge=0, le=MOST_MEMBERS)]
    left_out: Annotated[int, Field(ge=0, le=MOST_SLIDES)]
    checks: Annotated[list[SelfCheck], Field(max_length=MOST_SLIDES)]
    cell_check: CellCheckFacts | None
    warnings: Annotated[list[Words], Field(max_length=1000)]
    embedding: Embedding | Annotated[dict[str, str], Field(max_length=0)]
    history: dict[str, list[float]]

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if len(self.donors) != self.slides:
            raise ValueError(f"{len(self.donors)} donors of {self.slides} slides")
        shown = self.cell_check and self.cell_check.patterns
        if shown and (len(shown.genes) != len(shown.r) or shown.slide >= self.slides):
            raise ValueError("the patterns of the check on cells do not fit together")
        if sorted(self.order) != list(range(self.slides)):
            raise ValueError("the order of the slides does not name each once")
        for check in self.checks:
            if not (
                check.model.keys() >= MAIN.keys()
                and (not check.reference or check.reference.keys() >= MAIN.keys())
            ):
                raise ValueError("a self-check lacks metrics")
        return self


def check_facts(facts: Mapping[str, Any]) -> None:
    """Raise a ValueError that names what is wrong with the facts of a model."""
    try:
        Facts.model_validate_json(json.dumps(facts))  # strict, as JSON has it
        if (
            strange := {name for check in facts["checks"] for name in check}
            - SelfCheck.__dataclass_fields__.keys()
        ):
            raise ValueError(f"checks: {min(strange)} is not known")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}") from None


def expected_tensors(
    config: Config, facts: Mapping[str, Any], n_genes: int, header: Header
) -> dict[str, TensorSpec]:
    """The tensors of a model; ``header`` tells the optional ones, and lengths that the data decided."""
    from spatialgears.pipeline.fitted import build_network

    g, n_slides, n_spots = n_genes, int(facts["slides"]), Axis("spots of the fit", MOST_SPOTS)
    encoder = _encoder(g, header) if config.geometry.uses_embedding else {}
    h = header["encoder.scale"]["shape"][0] if encoder and "encoder.scale" in header else 0
    alone = config.geometry.inputs == "embedding"
    directions = "panel.signal" in header
    seen = h if alone else [g, *header["panel.signal"]["shape"]][-1] if directions else g
    with torch.device("meta"):  # shapes without memory
        network = build_network(seen, int(facts["members"]), config, directions=directions).state_dict()
    found = {f"network.{name}": _weights(TensorSpec.like(one)) for name, one in network.items()} | encoder
    found |= {name: TensorSpec((), low=POSITIVE) for name in found if name.endswith(".sigma_data")}
    found |= {
        "panel.weights": TensorSpec((g,), low=0, high=WEIGHT),
        "panel.morans_i": TensorSpec((g,), "F64", -100, 100),
        "cells.mean": TensorSpec((g,), low=-FEATURE, high=FEATURE),
        "cells.std": TensorSpec((g,), low=POSITIVE, high=FEATURE),
        "folds.part": TensorSpec((n_spots,), "I64", 0, 10**6),
        "folds.whole": TensorSpec((n_spots,), "I64", 0, n_slides - 1),
    }
    for i in range(n_slides):
        kept, anchors = Axis(f"spots of slide {i}", 10**6), Axis(f"anchors of slide {i}", 10**6)
        most = header.get(f"slide{i}.coords", {}).get("shape", (1,))[0] - 1
        found |= {
            f"slide{i}.coords": TensorSpec((kept, 2), "F64", -PLACE, PLACE),
            f"slide{i}.anchors": TensorSpec((anchors,), "I64", 0, most),
            f"slide{i}.centre": TensorSpec((2,), "F64"),
            f"slide{i}.scale": TensorSpec((), "F64", POSITIVE),
            f"slide{i}.pitch": TensorSpec((), "F64", 0, PLACE),
            f"slide{i}.given": TensorSpec((kept,), "I64", 0, most),
            **{
                f"slide{i}.checked.{name}": one for name, one in _checked(i, most, min(g, MOST_GENES)).items()
            },
        }
        if not alone:
            found[f"slide{i}.expression"] = TensorSpec((anchors, seen), low=-FEATURE, high=FEATURE)
        if encoder:
            found[f"slide{i}.embedding"] = TensorSpec((anchors, h), low=-FEATURE, high=FEATURE)
    if directions:
        found["panel.signal"] = TensorSpec((g, Axis("directions", g)), low=-2, high=2)
    elif config.expression.pull > 0 and not alone:
        bank = Axis("pulling spots", 10**6)
        found["pull.bank"] = TensorSpec((bank, g), low=-FEATURE, high=FEATURE)
        found["pull.axes"] = TensorSpec((g, Axis("pulling directions", g)), low=-2, high=2)
    if facts.get("other_genes"):
        found |= {f"other_genes.{name}": one for name, one in _other_genes(g, facts["other_genes"]).items()}
    if encoder and config.geometry.uses_nearest:
        found |= {f"network.nearest.{name}": one for name, one in _nearest(h, n_slides).items()}
    if facts["cell_check"] and (shown := facts["cell_check"]["patterns"]):
        found |= {f"cell_check.{name}": one for name, one in _patterns(len(shown["genes"])).items()}
    if any(name.startswith("confidence.") for name in header):
        found |= {f"confidence.{name}": one for name, one in _confidence(seen).items()}
    return found | {f"inputs.{name}": one for name, one in _inputs(g, header).items()}


def _weights(one: TensorSpec) -> TensorSpec:
    """The same, of weights."""
    return TensorSpec(one.shape, one.dtype, -WEIGHT, WEIGHT)


def _encoder(g: int, header: Header) -> dict[str, TensorSpec]:
    """The encoder's three forms: an MLP on genes, a residual MLP on a linear start, and the start alone."""
    h, inputs = Axis("embedding", 10**6), g
    found = {"encoder.scale": TensorSpec((h,), low=0, high=WEIGHT)}
    if "encoder.basis" in header:
        inputs = header["encoder.basis"]["shape"][-1]
        found["encoder.basis"] = TensorSpec((g, inputs))
    if "encoder.start" in header:
        found["encoder.start"] = TensorSpec((inputs, h))
    if "encoder.mlp.0.weight" in header or "encoder.start" not in header:
        widths: list[int | Axis] = [inputs, *HIDDEN, h]
        for i, (left, right) in enumerate(pairwise(widths)):
            found[f"encoder.mlp.{2 * i}.weight"] = TensorSpec((right, left))
            found[f"encoder.mlp.{2 * i}.bias"] = TensorSpec((right,))
    return {name: _weights(one) if name != "encoder.scale" else one for name, one in found.items()}


def _other_genes(g: int, facts: Mapping[str, Any]) -> dict[str, TensorSpec]:
    e, axes = len(facts["genes"]), Axis("directions of other genes", AXES)
    return {
        "mean": TensorSpec((e,), low=0, high=FEATURE),
        "std": TensorSpec((e,), low=POSITIVE, high=FEATURE),
        "centre": TensorSpec((e,), low=-CLIP, high=CLIP),
        "axes": TensorSpec((e, axes), low=-2, high=2),
        "onto": TensorSpec((axes, g), low=-FEATURE, high=FEATURE),
        "panel_mean": TensorSpec((g,), low=-FEATURE, high=FEATURE),
    }


def _nearest(h: int, n_slides: int) -> dict[str, TensorSpec]:
    bank = Axis("nearest spots", 10**6)
    return {
        "bank": TensorSpec((bank, h), low=-2, high=2),
        "crowding": TensorSpec((bank,), low=-2, high=2),
        "coords": TensorSpec((bank, 2), low=-PLACE, high=PLACE),
        "slide": TensorSpec((bank,), "I64", 0, n_slides - 1),
        "spot": TensorSpec((bank,), "I64", 0, MOST_SPOTS),
        "reach": TensorSpec((), low=0, high=PLACE),
        "share": TensorSpec((), low=0, high=1),
    }


def _confidence(seen: int) -> dict[str, TensorSpec]:
    bank, axes = Axis("views", MOST_VIEWS), Axis("axes", seen)
    return {
        "centre": TensorSpec((seen,), low=-FEATURE, high=FEATURE),
        "axes": TensorSpec((seen, axes), low=-2, high=2),
        "bank": TensorSpec((bank, axes), low=-100 * FEATURE, high=100 * FEATURE),
        "ratios": TensorSpec((bank,), low=0),
        "own": TensorSpec((Axis("views of known slides", MOST_VIEWS),), low=0),
        "far": TensorSpec((), "F64", low=0),
    }


def _checked(slide: int, most: int, genes: int) -> dict[str, TensorSpec]:
    spots = Axis(f"checked spots of slide {slide}", 10**6)
    return {
        "spots": TensorSpec((spots,), "I64", 0, most),
        "values": TensorSpec((spots, genes), "F16"),
        "ceiling": TensorSpec((genes,), "F64", 0, 1),
    }


def _patterns(genes: int) -> dict[str, TensorSpec]:
    spots = Axis("spots of patterns", 10**6)
    return {
        "coords": TensorSpec((spots, 2), "F64"),
        "measured": TensorSpec((spots, genes), low=-FEATURE, high=FEATURE),
        "predicted": TensorSpec((spots, genes), low=-FEATURE, high=FEATURE),
    }


def _inputs(g: int, header: Header) -> dict[str, TensorSpec]:
    genes = Axis("compared genes", g)
    found = {
        "genes": TensorSpec((genes,), "I64", 0, g - 1),
        "correlations": TensorSpec((genes, genes), low=-1.01, high=1.01),
        "reliability": TensorSpec((), "F64", low=-1e6, high=1e6),
        "spots": TensorSpec((Axis("fingerprints", MOST_SPOTS),), low=-1e38, high=1e38),
        "cells": TensorSpec((g,), "F64", low=-1e30, high=1e30),
        "key": TensorSpec((), "I64", -(2.0**63), 2.0**63),
    }
    return found | ({"means": TensorSpec((g,), "F64")} if "inputs.means" in header else {})
