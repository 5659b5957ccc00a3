"""The settings of each stage, frozen and validated. Their defaults are the ``default`` preset."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Fraction = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0, le=1e6)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]


def setting(default: Any, description: str, *, when: str) -> Any:
    """A field that users have a reason to set, which is given as ``when``."""
    return Field(default, description=description, json_schema_extra={"role": "setting", "when": when})


def constant(default: Any, description: str) -> Any:
    """A field of the method, for the paper preset and ablations."""
    return Field(default, description=description, json_schema_extra={"role": "constant"})


class Stage(BaseModel):
    """A frozen part of the configuration, which refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


class ExpressionConfig(Stage):
    """Stage A (section 3.1): gene panel, views and the shared encoder f_theta."""

    n_genes: Count = setting(
        2000,
        "largest number of genes in the panel, the most spatial first",
        when="you have few spots and many genes, or too little memory: fewer",
    )
    gene_selection: Literal["moran", "variable"] = setting(
        "moran",
        "how genes are ranked: by Moran's I on the slides, or by variability on slides and cells",
        when="Moran's I cannot be measured, as with very few spots: `variable`",
    )
    gene_agreement: bool = setting(
        True,
        "weight genes by how well their co-expression agrees, where slides and cells differ",
        when="all genes should count as on the slides: `false`",
    )
    max_steps: Count = setting(
        300,
        "training steps of the encoder at most",
        when="its loss in the report still falls at the end: more",
    )
    gene_weights: Literal["moran", "none"] = constant(
        "moran", "weight of a gene: the square root of Moran's I, or 1"
    )
    min_detection: Fraction = constant(
        0.05, "whole transcriptomes: genes detected in no more than this share of observations are left out"
    )
    target_sum: Annotated[float, Field(ge=0)] = constant(
        0.0, "library size before log1p; 0: the median depth of the cells"
    )
    standardise: bool = constant(True, "standardise genes within each slide and within the cells")
    signal: Literal["auto", "spatial", "none"] = constant(
        "auto",
        "spatial: project expression on the directions that neighbouring spots share; none: use it as it is; "
        "auto: project whole transcriptomes, not targeted panels",
    )
    pull: Fraction = constant(
        0.15, "targeted panels: how far a cell's profile moves towards the mean of its most similar spots"
    )
    other_genes: Fraction = constant(
        0.5,
        "targeted panels: how far a cell's profile moves to what the cell's other genes, which the slides lack, predict of it",
    )
    average: Literal["auto"] | Fraction = setting(
        "auto",
        "how far a cell's profile moves towards the mean of its 20 most similar cells; 0: not at all; auto: up to 0.65, "
        "further the less co-expression agrees between slides and cells, and at least half of that for cells of another donor. "
        "With slides of several donors, left-out donors choose. The more profiles move, the less positions move towards "
        "similar spots; from 0.325 on, training on one slide is shorter",
        when="the cells are of the slides' donor, and differ by their platform only: `0`",
    )
    thinning: bool = constant(True, "thin the counts of spots binomially to the depth of random cells")
    embedding: Literal["auto", "encoder", "reference"] = constant(
        "auto",
        "embedding that is used: the trained encoder, the simple reference, or the one that places held-out spots better",
    )
    encoder_genes: Count = constant(
        3000, "takes the place of n_genes if the generators see the embedding alone (geometry.inputs)"
    )
    embed_dim: Annotated[int, Field(ge=2, le=4096)] = constant(64, "dimensions of the embedding Z")
    residual: bool = constant(True, "the encoder's MLP is a residual on a weighted SVD of the expression")
    lambda_inv: Weight = constant(0.0, "weight of VICReg's invariance loss")
    lambda_var: Weight = constant(0.0, "weight of VICReg's variance loss")
    lambda_cov: Weight = constant(0.0, "weight of VICReg's covariance loss")
    anchor: Weight = constant(
        1.0, "weight of the distance between a view and the SVD's embedding of its profile; needs residual"
    )
    adversary: Weight = constant(0.0, "weight of the discriminator between spots and cells")
    slide_adversary: Weight = constant(0.0, "weight of the discriminator between slides")
    grl_warmup_epochs: Annotated[int, Field(ge=0)] = constant(
        20, "epochs before the discriminators' gradients are reversed"
    )
    grl_ramp_epochs: Count = constant(80, "epochs in which the reversed gradients rise to full strength")
    mmd: Weight = constant(0.0, "weight of the maximum mean discrepancy between spots and cells")
    coral: Weight = constant(0.0, "weight of the difference between the covariances of spots and cells")
    local_alignment: Weight = constant(
        0.5, "weight of the distance between each profile and its nearest ones in the other domain"
    )
    epochs: Count = constant(200, "passes over the spots at most")
    lr: Annotated[float, Field(gt=0, le=1)] = constant(5e-4, "learning rate of the encoder")
    batch_size: Annotated[int, Field(ge=4, le=65536)] = constant(
        256, "profiles of a step, half of them cells"
    )

    @model_validator(mode="after")
    def _learns(self) -> Self:
        if self.anchor and not self.residual:
            raise ValueError(f"anchor needs residual = true, found anchor = {self.anchor} without it")
        if not (self.anchor or self.lambda_inv):
            raise ValueError("one of anchor and lambda_inv must be positive, found both zero")
        return self


class SupervisionConfig(Stage):
    """Stage B (section 3.2): minisets of spots."""

    n_min: Annotated[int, Field(ge=8, le=4096)] = constant(96, "smallest size of a miniset")
    n_max: Annotated[int, Field(ge=8, le=4096)] = constant(256, "largest size of a miniset")
    pool: Annotated[float, Field(ge=0, le=1000)] = constant(
        0.0,
        "spots nearest to the centre that a miniset is drawn from, in multiples of its size; 0: all spots of the slide",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.n_max < self.n_min:
            raise ValueError(f"n_max must be at least n_min = {self.n_min}, found {self.n_max}")
        if 0 < self.pool < 1:
            raise ValueError(f"pool must be 0 or at least 1, found {self.pool}")
        return self


class GeometryConfig(Stage):
    """Stage C (sections 3.3 and 3.4): context encoder, generator, residual diffusion refiner."""

    steps: Count = setting(
        1000,
        "training steps of each generator at most",
        when="the training curves in the report still fall at the end: more",
    )
    views: Annotated[int, Field(ge=0)] = setting(
        900,
        "a cross-fitted generator is trained until each spot was seen about this often; 0: for all its steps",
        when="the curves still fall at the end, and one slide has fewer than 800 spots: more",
    )
    crossfit: Annotated[int, Field(ge=0, le=20)] = setting(
        2,
        "generators that are averaged, each trained without a different part of the spots (a tenth or less). The held-out "
        "spots are used for early stopping, the self-check and the radii. Models that leave out whole slides count, too, "
        "but at least one generator remains. 0: one generator, trained on all spots",
        when="accuracy matters more than time: more. With 0 there are no radii, and no self-check on spots",
    )
    slide_steps: Annotated[int, Field(ge=0)] = setting(
        400,
        "with several slides: training steps of models that each leave out a donor, or a slide if there is one donor. They "
        "decide how long the others are trained, and feed the self-check. 0: no such models",
        when="the score on the left-out slide still rises at the end: more. You need no check on whole slides: 0",
    )
    nearest: bool = constant(
        True,
        "move each cell towards its most similar spots near the generators' position; held-out spots choose the search "
        "radius, so crossfit is needed",
    )
    eval_every: Count = setting(
        50,
        "steps between checkpoints, and between evaluations on held-out spots",
        when="runs are interrupted often: fewer",
    )
    inputs: Literal["expression", "embedding"] = constant(
        "expression", "what the generators see: weighted expression, or stage A's frozen embedding Z"
    )
    input_dropout: Fraction = constant(0.3, "dropout of the features")
    hidden_dropout: Fraction = constant(0.4, "dropout of the hidden layer")
    hidden: Annotated[int, Field(ge=0, le=8192)] = constant(
        512, "units of the hidden layer before the sets; 0: a linear projection"
    )
    width: Annotated[int, Field(ge=4, le=4096, multiple_of=4)] = constant(128, "c, the context dimension")
    inducing: Annotated[int, Field(ge=1, le=4096)] = constant(32, "m, inducing points of an ISAB")
    context_blocks: Annotated[int, Field(ge=0, le=32)] = constant(1, "ISABs of the context encoder")
    generator_blocks: Annotated[int, Field(ge=0, le=32)] = constant(1, "ISABs of the generator")
    refiner: Literal["residual", "none"] = constant("residual", "the diffusion refiner; none leaves it out")
    denoiser_blocks: Annotated[int, Field(ge=1, le=32)] = constant(1, "blocks of the refiner's denoiser")
    reference: Annotated[int, Field(ge=16, le=65536)] = constant(
        256, "points that carry the local graphs of the denoiser; larger sets use a random subset"
    )
    refiner_steps: Annotated[int, Field(ge=0)] = constant(
        150, "training steps of the refiner alone, after the generators; 0: both are trained jointly"
    )
    nca: Weight = constant(0.3, "weight of the refiner's neighbourhood loss")
    nca_temperature: Annotated[float, Field(ge=0)] = constant(
        0.0, "tau_NCA; 0: for each miniset the squared median distance to the last of its neighbours"
    )
    nca_gate: bool = constant(
        True,
        "leave minisets with much noise out of the refiner's neighbourhood losses, as is done for its Gram losses",
    )
    local_scale: Weight = constant(0.0, "weight of the refiner's loss on local scale")
    gen_scale: Weight = constant(0.0, "weight of the generator's loss on scale")
    gen_nca: Weight = constant(0.3, "weight of the generator's neighbourhood loss")
    overlap_shape: Weight = constant(0.0, "weight of the loss on the shape of spots that two minisets share")
    overlap_scale: Weight = constant(0.0, "weight of the loss on their scale")
    overlap_kl: Weight = constant(0.0, "weight of the loss on their distance distributions")
    batch_size: Annotated[int, Field(ge=1, le=4096)] = constant(8, "minisets of a step at most")
    slide_batch: Annotated[int, Field(ge=1, le=4096)] = constant(4, "minisets of a step and slide at most")
    lr: Annotated[float, Field(gt=0, le=1)] = constant(2e-3, "peak learning rate")
    weight_decay: Annotated[float, Field(ge=0, le=10)] = constant(0.05, "weight decay of AdamW")
    ema: Annotated[float, Field(ge=0, lt=1)] = constant(
        0.995, "decay of the averaged weights; 0: the last weights"
    )

    @model_validator(mode="after")
    def _trained_apart(self) -> Self:
        if self.crossfit and self.refiner != "none" and not self.refiner_steps:
            raise ValueError("crossfit needs refiner_steps > 0 or refiner = none, found joint training")
        return self

    @property
    def pairs(self) -> bool:
        """Whether minisets are drawn in pairs that overlap."""
        return any((self.overlap_shape, self.overlap_scale, self.overlap_kl))

    def generators(self, left_out: int) -> int:
        """Number of cross-fitted generators; ``left_out`` models that leave out a whole slide or donor count, too."""
        return max(min(self.crossfit, 1), self.crossfit - left_out)

    def sets(self, n_slides: int) -> int:
        """Minisets of a training step on so many slides."""
        return min(self.batch_size, self.slide_batch * n_slides)

    @property
    def wide(self) -> bool:
        """Whether one operation gains from several threads; at smaller widths models are trained in parallel instead."""
        return self.width >= 256

    @property
    def uses_nearest(self) -> bool:
        """Whether cells move towards similar spots: only held-out spots can choose the search radius."""
        return self.nearest and self.crossfit > 0

    @property
    def uses_embedding(self) -> bool:
        """Whether stage A's embedding is needed at all."""
        return self.inputs == "embedding" or self.uses_nearest


class AssemblyConfig(Stage):
    """Stage D (section 3.5): placing cells in one pass, in parts or through stitched patches."""

    mode: Literal["auto", "one-shot", "patches"] = setting(
        "auto",
        "auto: all cells in one pass through the networks, or in large parts if that needs more than memory_gb; "
        "one-shot: always one pass; patches: the paper's stitched patches",
        when="you study the published method: `patches`",
    )
    memory_gb: Annotated[float, Field(gt=0, le=1e6)] = setting(
        1.0,
        "auto: memory that one pass over all cells may take",
        when="`gears check` says that memory is short: less. The machine has plenty: more",
    )
    core_cells: Annotated[int, Field(ge=100)] = setting(
        20_000,
        "auto: cells at most that are placed first, if the others are placed in parts",
        when="parts need too much memory: fewer",
    )
    samples: Annotated[int, Field(ge=0, le=1000)] = setting(
        4,
        "layouts drawn in addition to the best guess; 0: none, and the refiner's result is the best guess",
        when="you need to know which other layouts are plausible: more",
    )
    sample_cells: Annotated[int, Field(ge=0)] = setting(
        50_000,
        "no samples are drawn of more cells than this: each sample costs many passes",
        when="you need samples of more cells and have the time: more",
    )
    spacing: Fraction = setting(
        0.8,
        "how far cells are moved to fill the slides' footprint evenly, as a share of the way; 0: not at all",
        when="the cells are only a part of the tissue, such as one sorted type: 0",
    )
    spacing_reach: Annotated[float, Field(gt=0)] = setting(
        0.15,
        "limit of that move: root mean square over the cells, in RMS radii of the slides",
        when="an even density matters more than distances: 1",
    )
    spacing_cells: Count = setting(
        200,
        "fewer cells than this do not fill a tissue, and are not moved",
        when="you have few cells that come from all over the tissue: fewer",
    )
    steps: Annotated[int, Field(ge=0, le=10_000)] = constant(6, "Heun steps of the refiner; 0: no refinement")
    sigma_start: Annotated[float, Field(gt=0, le=100)] = constant(
        1.0, "noise level at which the refiner starts, in units of sigma_data,resid"
    )
    patch_size: Annotated[int, Field(ge=8, le=8192)] = constant(256, "cells of a patch")
    coverage: Annotated[float, Field(ge=1, le=1000)] = constant(6.0, "mean number of patches per cell")
    reliability: bool = constant(
        True, "patches that agree with others get more weight in the stitched distances"
    )
    solve_steps: Annotated[int, Field(ge=0)] = constant(
        200, "steps of the global solve of the stitched distances"
    )
