"""Frozen, validated configuration: one class per stage inside a root :class:`Config`.

The defaults written in the classes are the ``default`` preset.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from spatialgears.config.presets import PRESETS
from spatialgears.config.removed import without_removed
from spatialgears.errors import ConfigError
from spatialgears.text import alike

Fraction = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0, le=1e6)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]


class _Stage(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


class ExpressionConfig(_Stage):
    """Stage A (section 3.1): gene panel, views and the shared encoder f_theta."""

    n_genes: Count = Field(2000, description="largest size of the gene panel")
    gene_selection: Literal["moran", "variable"] = Field(
        "moran",
        description="which genes make the panel: the most spatial on the slides, or the most variable everywhere",
    )
    gene_weights: Literal["moran", "none"] = Field(
        "moran", description="weight genes by the square root of Moran's I"
    )
    gene_agreement: bool = Field(
        True,
        description="where slides and cells are unlike, genes count by how alike they go together with others in both",
    )
    moran_neighbors: Annotated[int, Field(ge=2, le=100)] = 6
    min_detection: Fraction = Field(
        0.05,
        description="whole transcriptome: genes detected in no more than this share of observations are left out",
    )
    target_sum: Annotated[float, Field(ge=0)] = Field(
        0.0, description="library size before log1p; 0: the median depth of the cells"
    )
    standardise: bool = Field(True, description="standardise genes within each slide and each set of cells")
    signal: Literal["auto", "spatial", "none"] = Field(
        "auto",
        description="what stage C sees of the expression: the part neighbouring spots share, or all of it; "
        "auto: that part on whole transcriptomes, all of a targeted panel",
    )
    pull: Fraction = Field(
        0.15,
        description="targeted panels: how far a cell's profile is moved to the mean of the spots most like it",
    )
    thinning: bool = Field(True, description="thin spot counts binomially to the depth of random cells")
    thin_min: Fraction = Field(
        0.3,
        description="views of spots no deeper than cells are thinned further, down to this share of their counts",
    )
    cell_thin_min: Fraction = Field(
        0.7, description="cells are thinned by a factor drawn from [cell_thin_min, 1]"
    )
    # the shared encoder
    embedding: Literal["auto", "encoder", "reference"] = Field(
        "auto",
        description="which embedding is used: what places held-out spots better, or always the one named",
    )
    encoder_genes: Count = Field(
        3000, description="instead of n_genes, where stage C sees the embedding alone (geometry.inputs)"
    )
    hidden: tuple[Count, ...] = (512, 256)
    embed_dim: Count = 64
    residual: bool = Field(True, description="the MLP is a residual on a weighted SVD of the expression")
    basis_dim: Count = Field(200, description="components of that SVD, which a residual MLP sees")
    view_dropout: Fraction = 0.3
    view_noise: Annotated[float, Field(ge=0, le=10)] = 0.015
    view_jitter: Fraction = 0.25
    # losses on views: VICReg, or the anchor to the linear start
    lambda_inv: Weight = 0.0
    lambda_var: Weight = 0.0
    lambda_cov: Weight = 0.0
    gamma: Annotated[float, Field(gt=0, le=100)] = 1.0
    anchor: Weight = Field(
        1.0, description="a view must lie where the start puts its profile; needs residual"
    )
    # alignment of domains and slides
    adversary: Weight = 0.0
    slide_adversary: Weight = 0.0
    discriminator_hidden: Count = 512
    discriminator_dropout: Fraction = 0.1
    grl_max: Weight = 1.0
    grl_warmup_epochs: Annotated[int, Field(ge=0)] = 20
    grl_ramp_epochs: Count = 80
    mmd: Weight = 0.0
    coral: Weight = 0.0
    local_alignment: Weight = 0.5
    # training
    epochs: Count = Field(200, description="passes over the spots")
    max_steps: Count = Field(300, description="training ends after so many steps even if epochs are left")
    lr: Annotated[float, Field(gt=0, le=1)] = 5e-4
    batch_size: Annotated[int, Field(ge=4, le=65536)] = 256
    probe_k: Count = 20
    probe_margin: Fraction = 0.08

    @model_validator(mode="after")
    def _learns(self) -> Self:
        if self.anchor and not self.residual:
            raise ValueError(f"anchor needs residual = true, found anchor = {self.anchor} without it")
        if not (self.anchor or self.lambda_inv):
            raise ValueError("one of anchor and lambda_inv must be positive, found both zero")
        return self


class SupervisionConfig(_Stage):
    """Stage B (section 3.2): minisets of spots and their pose-invariant targets."""

    n_min: Annotated[int, Field(ge=8, le=4096)] = 96
    n_max: Annotated[int, Field(ge=8, le=4096)] = 256
    tau: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]] = Field(
        (0.2, 3.0),
        description="range of tau_spatial in units of the slide's RMS radius; one is drawn per miniset",
    )
    overlap: Fraction = Field(0.5, description="alpha: share of a miniset that its twin also holds")
    min_overlap: Annotated[int, Field(ge=2)] = 20
    dim: Annotated[int, Field(ge=2, le=256)] = Field(32, description="d, the overcomplete latent dimension")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.n_max < self.n_min:
            raise ValueError(f"n_max must be at least n_min = {self.n_min}, found {self.n_max}")
        if self.tau[1] < self.tau[0]:
            raise ValueError(f"tau must be (low, high) with low <= high, found {self.tau}")
        return self


class GeometryConfig(_Stage):
    """Stage C (sections 3.3 and 3.4): context encoder, generator, residual diffusion refiner."""

    inputs: Literal["expression", "embedding"] = Field(
        "expression", description="what the context encoder sees: weighted expression, or the frozen Z"
    )
    input_dropout: Fraction = 0.3
    hidden_dropout: Fraction = 0.4
    hidden: Annotated[int, Field(ge=0, le=8192)] = Field(
        512, description="hidden layer before the sets; 0: linear"
    )
    width: Annotated[int, Field(ge=4, le=4096)] = Field(128, description="c, the context dimension")
    heads: Annotated[int, Field(ge=1, le=64)] = 4
    inducing: Annotated[int, Field(ge=1, le=4096)] = Field(32, description="m, inducing points per ISAB")
    context_blocks: Annotated[int, Field(ge=0, le=32)] = 2
    generator_blocks: Annotated[int, Field(ge=0, le=32)] = 2
    # refiner
    refiner: Literal["residual", "none"] = "residual"
    denoiser_blocks: Annotated[int, Field(ge=1, le=32)] = 2
    self_conditioning: bool = True
    distance_bins: Annotated[int, Field(ge=0, le=256)] = 24
    angle_bins: Annotated[int, Field(ge=0, le=256)] = 8
    knn: Annotated[int, Field(ge=2, le=128)] = 15
    landmarks: Annotated[int, Field(ge=0, le=1024)] = 16
    reference: Annotated[int, Field(ge=16, le=65536)] = Field(
        256, description="points that carry the local graphs of the denoiser; larger sets use a random subset"
    )
    sigma_min: Annotated[float, Field(gt=0)] = Field(0.02, description="in units of sigma_data,resid")
    sigma_max: Annotated[float, Field(gt=0)] = Field(5.0, description="in units of sigma_data,resid")
    curriculum: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (1.0, 3.0, 5.0), min_length=1, description="sigma_cap of each stage, in units of sigma_data,resid"
    )
    # loss weights
    score: Weight = 1.0
    gram: Weight = 1.0
    gram_scale: Weight = 0.5
    nca: Weight = 0.3
    nca_temperature: Annotated[float, Field(ge=0)] = Field(
        0.0,
        description="tau_NCA; 0: the squared median distance to the last of the neighbours, for each miniset",
    )
    nca_neighbors: Annotated[int, Field(ge=1, le=128)] = 10
    local_scale: Weight = 0.0
    gen_align: Weight = 1.0
    gen_gram: Weight = 1.0
    gen_scale: Weight = 0.0
    gen_nca: Weight = 0.3
    overlap_shape: Weight = 0.0
    overlap_scale: Weight = 0.0
    overlap_kl: Weight = 0.0
    gram_sigma_gate: Annotated[float, Field(gt=0)] = Field(
        1.0,
        description="Gram, NCA and local scale losses of the refiner apply below this many sigma_data,resid",
    )
    overlap_sigma_gate: Annotated[float, Field(gt=0)] = Field(
        1.0, description="overlap losses apply below this many sigma_data,resid"
    )
    # training
    steps: Count = 1000
    refiner_steps: Annotated[int, Field(ge=0)] = Field(
        150, description="steps of the refiner alone, after the generator; 0: both are trained jointly"
    )
    crossfit: Annotated[int, Field(ge=0, le=20)] = Field(
        3,
        description="generators that are each trained without another part of the spots (a tenth, or less), which tells "
        "when each was best and how far off it is; their mean is used. 0: one generator, trained on all",
    )
    nearest: bool = Field(
        True,
        description="put cells where the spots most like them in stage A's embedding are, of those in reach of the "
        "generators' place; spots that neither has seen tell how far that is; needs crossfit",
    )
    slide_steps: Annotated[int, Field(ge=0)] = Field(
        400,
        description="with several slides, steps of models that each miss one; they tell how long to train the others "
        "(instead of steps, where crossfit trains several), and feed the self-check; 0: none",
    )
    slide_views: Annotated[int, Field(ge=0)] = Field(
        200,
        description="views of each spot, about, that the others are given (in at most steps) where these are no worse",
    )
    views: Annotated[int, Field(ge=0)] = Field(
        900,
        description="views of each spot, about, after which a cross-fitted generator is done; 0: it takes all its steps",
    )
    batch_size: Annotated[int, Field(ge=1, le=4096)] = Field(8, description="minisets of a step, at most")
    slide_batch: Annotated[int, Field(ge=1, le=4096)] = Field(
        4, description="minisets of a step for each slide, at most: of one slide alone few tell enough"
    )
    lr: Annotated[float, Field(gt=0, le=1)] = 2e-3
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.05
    warmup: Fraction = 0.1
    grad_clip: Annotated[float, Field(gt=0)] = 1.0
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.995
    eval_every: Count = Field(50, description="steps between looks at held-out spots, and checkpoints")

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"heads must divide width = {self.width}, found {self.heads}")
        if self.crossfit and self.refiner != "none" and not self.refiner_steps:
            raise ValueError("crossfit needs refiner_steps > 0 or refiner = none, found joint training")
        return self

    @property
    def pairs(self) -> bool:
        """Whether minisets are drawn in pairs that overlap."""
        return any((self.overlap_shape, self.overlap_scale, self.overlap_kl))

    def sets(self, n_slides: int) -> int:
        """Minisets of a training step on so many slides."""
        return min(self.batch_size, self.slide_batch * n_slides)

    @property
    def uses_nearest(self) -> bool:
        """Whether nearest spots take part: without spots that were missed, nothing tells by how much."""
        return self.nearest and self.crossfit > 0

    @property
    def uses_embedding(self) -> bool:
        """Whether stage A's embedding is needed at all."""
        return self.inputs != "expression" or self.uses_nearest


class AssemblyConfig(_Stage):
    """Stage D (section 3.5): patches, stitching and the global solve."""

    mode: Literal["auto", "one-shot", "patches"] = Field(
        "auto",
        description="auto: all cells in one pass through the networks, or in large parts if memory_gb is too little; "
        "one-shot: always one pass; patches: the paper's stitched patches",
    )
    memory_gb: Annotated[float, Field(gt=0)] = Field(
        1.0, description="auto: memory that one pass over all cells may take"
    )
    core_cells: Annotated[int, Field(ge=100)] = Field(
        20_000, description="auto: cells at most that are placed first, if the others are placed in parts"
    )
    samples: Annotated[int, Field(ge=0, le=1000)] = Field(
        4,
        description="layouts drawn beside the best guess; 0: none, and the refiner's result is the best guess",
    )
    sample_cells: Annotated[int, Field(ge=0)] = Field(
        50_000, description="with more cells than this no samples are drawn: each costs many passes"
    )
    spacing: Fraction = Field(
        0.8,
        description="how far at most the best guess is moved to fill the slides' footprint evenly; 0: not at all",
    )
    spacing_reach: Annotated[float, Field(gt=0)] = Field(
        0.15,
        description="how far cells are moved for that at most, root mean square, in RMS radii of the slides",
    )
    spacing_cells: Count = Field(
        200, description="fewer cells than this do not fill a tissue, and are not moved"
    )
    steps: Annotated[int, Field(ge=0, le=10_000)] = Field(6, description="Heun steps of the refiner; 0: none")
    sigma_start: Annotated[float, Field(gt=0, le=100)] = Field(
        1.0, description="noise level at which the refiner starts, in units of sigma_data,resid"
    )
    patch_size: Annotated[int, Field(ge=8, le=8192)] = Field(256, description="cells of a patch")
    coverage: Annotated[float, Field(ge=1, le=1000)] = Field(
        6.0, description="mean number of patches per cell"
    )
    reliability: bool = Field(
        True, description="patches that agree with others have more weight in the stitched distances"
    )
    solve_steps: Annotated[int, Field(ge=0)] = Field(
        200, description="steps of the global solve of the stitched distances"
    )


class Config(_Stage):
    """Everything that decides a result, apart from the data.

    Examples
    --------
    >>> Config.preset("quick").with_values(["geometry.steps=200", "seed=7"]).geometry.steps
    200
    """

    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    threads: Annotated[int, Field(ge=0, le=1024)] = Field(
        0, description="0: as many as this process may use cores, at most 8"
    )
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "cpu"
    devices: Annotated[int, Field(ge=1)] = 1
    num_nodes: Annotated[int, Field(ge=1)] = 1
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    compile: bool = Field(
        False,
        description="compile stage C's training steps (torch.compile): takes minutes to begin with, and a C++ compiler; "
        "dropout is drawn otherwise, so that results differ as those of another seed; `gears bench scaling` prints the gain",
    )
    expression: ExpressionConfig = ExpressionConfig()
    supervision: SupervisionConfig = SupervisionConfig()
    geometry: GeometryConfig = GeometryConfig()
    assembly: AssemblyConfig = AssemblyConfig()

    @property
    def panel(self) -> ExpressionConfig:
        """``expression`` as the panel is chosen by: a network that sees the embedding has the encoder's genes."""
        found = self.expression
        genes = found.encoder_genes if self.geometry.inputs == "embedding" else found.n_genes
        return found.model_copy(update={"n_genes": genes})

    @property
    def processes(self) -> int:
        """How many take part in a run."""
        return self.devices * self.num_nodes

    @classmethod
    def preset(cls, name: str = "default") -> Config:
        """The named preset: ``quick``, ``default`` or ``paper``.

        Parameters
        ----------
        name
            ``quick``, ``default`` or ``paper``.

        Returns
        -------
        Config
            The preset.

        Examples
        --------
        >>> import spatialgears as sg
        >>> sg.Config.preset("quick").geometry.crossfit
        1
        """
        for known, changes in PRESETS.items():
            if name == known:
                return cls.from_dict(changes)
        raise ConfigError(
            f"No preset is called {name!r}; there are {', '.join(PRESETS)}.", "Choose one of these."
        )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Config:
        """Build and validate a configuration; a :class:`ConfigError` names each field that is wrong.

        Keys of earlier versions are accepted if they hold the value that is fixed now, and refused by name otherwise.

        Parameters
        ----------
        values
            Nested, one mapping per stage; what is left out is the default.

        Returns
        -------
        Config
            The configuration.

        Examples
        --------
        >>> import spatialgears as sg
        >>> sg.Config.from_dict({"geometry": {"steps": 200}}).geometry.steps
        200
        """
        try:
            return cls.model_validate(without_removed(values))
        except ValidationError as error:
            raise _explain(error) from None

    @classmethod
    def from_file(cls, path: str | Path) -> Config:
        """Read a JSON file, which may name a ``preset`` to start from and give only what differs.

        Parameters
        ----------
        path
            The file; ``"preset"`` in it names what the other values change.

        Returns
        -------
        Config
            The configuration.

        Examples
        --------
        >>> import spatialgears as sg
        >>> sg.Config.from_file("mine.json")  # doctest: +SKIP
        """
        path = Path(path)
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(
                f"There is no configuration file {path}.", "Check the path given to --config."
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{path} is not a JSON file: {error}.", "Write one with Config.to_json()."
            ) from None
        if not isinstance(values, dict):
            raise ConfigError(
                f"{path} holds a JSON {type(values).__name__}, expected an object.",
                'Write an object, such as {"seed": 1}.',
            )
        base = cls.preset(values.pop("preset", "default"))
        return cls.from_dict(_merge(base.model_dump(), values))

    def with_values(self, assignments: str | Iterable[str] | Mapping[str, Any]) -> Config:
        """A copy with ``stage.key=value`` assignments, or a mapping, applied and validated.

        Parameters
        ----------
        assignments
            One text such as ``"geometry.steps=200"`` or several, or a mapping, nested or with keys such as
            ``"geometry.steps"``.

        Returns
        -------
        Config
            The changed copy.

        Examples
        --------
        >>> import spatialgears as sg
        >>> sg.Config.preset("quick").with_values({"geometry.steps": 200}).geometry.steps
        200
        """
        if isinstance(assignments, Mapping):
            given = list(assignments.items())
        else:
            given = [
                _assignment(one) for one in ([assignments] if isinstance(assignments, str) else assignments)
            ]
        changes: dict[str, Any] = {}
        for key, value in given:
            *parents, leaf = str(key).split(".")
            level = changes
            for parent in parents:
                inner = level.get(parent, {})
                if not isinstance(inner, Mapping):
                    raise ConfigError(f"{key!r} sets a part of a value set before.", "Give each key once.")
                level[parent] = dict(inner)
                level = level[parent]
            level.update(_merge(level, {leaf: value}))
        return self.from_dict(_merge(self.model_dump(), changes))

    def to_json(self) -> str:
        """The configuration as JSON text, which :meth:`from_file` reads back to an equal object.

        Returns
        -------
        str
            JSON, indented, with every value.

        Examples
        --------
        >>> import json
        >>> import spatialgears as sg
        >>> json.loads(sg.Config.preset("quick").to_json())["seed"]
        0
        """
        return self.model_dump_json(indent=2) + "\n"


def _assignment(text: str) -> tuple[str, Any]:
    """``stage.key=value`` as key and value."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"--set expects stage.key=value, found {text!r}.", "Example: --set seed=1")
    return key.strip(), _parse(value.strip())


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return {"True": True, "False": False}.get(text, text)


def _merge(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if nested else value
    return merged


#: What pydantic says in its own terms, by the first word of the kind of error.
_EXPECTED = {"int": "expected a whole number", "float": "expected a number", "bool": "expected true or false"}


def _explain(error: ValidationError) -> ConfigError:
    lines = []
    for item in error.errors():
        location = item["loc"]
        field = ".".join(str(part) for part in location) or "config"
        if item["type"] == "extra_forbidden":
            known = list(_model_of(location[:-1]).model_fields)
            close = _elsewhere(str(location[-1])) or alike(str(location[-1]), known)[:1]
            hint = f"did you mean {' or '.join(close)}?" if close else f"allowed are {', '.join(known)}"
            lines.append(f"{field}: there is no such key; {hint}")
        else:
            message = _EXPECTED.get(item["type"].split("_")[0]) or item["msg"].removeprefix("Value error, ")
            found = "" if isinstance(item["input"], dict | BaseModel) else f", found {item['input']!r}"
            lines.append(f"{field}: {message[0].lower()}{message[1:]}{_allowed(location)}{found}")
    return ConfigError(
        "The configuration cannot be used:\n  - " + "\n  - ".join(lines), "Correct these keys and run again."
    )


def _elsewhere(key: str) -> list[str]:
    """Where a key of this name is, such as ``geometry.steps``."""
    own = [key] * (key in Config.model_fields)
    stages = [stage for stage in Config.model_fields if _model_of((stage,)) is not Config]
    return own + [f"{stage}.{key}" for stage in stages if key in _model_of((stage,)).model_fields]


def _model_of(location: tuple[int | str, ...]) -> type[BaseModel]:
    """The class of the section a key lies in."""
    annotation = Config.model_fields[str(location[0])].annotation if location else Config
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else Config


def _allowed(location: tuple[int | str, ...]) -> str:
    """The range of a field in words, such as " (allowed: >= 0 and <= 1)"; empty where it has none."""
    model = _model_of(location[:-1] if len(location) > 1 else ())
    field = model.model_fields.get(str(location[-1])) if location else None
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    bounds = [
        f"{sign} {getattr(rule, name):,}"
        for rule in (field.metadata if field else [])
        for name, sign in signs.items()
        if getattr(rule, name, None) is not None
    ]
    return f" (allowed: {' and '.join(bounds)})" if bounds else ""
