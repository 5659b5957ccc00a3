"""All losses of one training batch, weighted and gated by noise level as in section 3.4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from spatialgears.config import GeometryConfig
from spatialgears.geometry import losses
from spatialgears.geometry.edm import SIGMA_MIN, loss_weight, noise_levels, sigma_cap
from spatialgears.geometry.model import GeometryModel
from spatialgears.supervision.targets import centre, procrustes

Part = Literal["generator", "refiner", "joint"]
#: The paper's appendix: weights of the losses that all presets share (those of the generator are ours).
WEIGHTS = {"score": 1.0, "gram": 1.0, "gram_scale": 0.5, "gen_align": 1.0, "gen_gram": 1.0}
GATE = 1.0  # in sigma_data,resid: sets with more noise show no structure, and are left out of geometry losses
#: The paper's appendix: sigma, in the units of the coordinates, below which overlap losses apply.
OVERLAP_GATE = 1.0
NEIGHBORS = 10  # true neighbours of a point in the neighbourhood losses
SIGMA_MEMORY = 0.01  # sigma_data,resid follows the generator as a running mean over about 1 / 0.01 batches


class Batch(NamedTuple):
    """Features x (B, n, f), true coordinates (B, n, 2), real points (B, n) or ``None`` when all are.

    With ``shared`` (P, k), the B = 2 P sets are P first views and then their P twins, whose first k positions hold the same
    spots. ``base`` replaces the generator's proposal, to train a refiner on out-of-fold residuals; it is rotated into the
    generator's frame first, in which the refiner works.
    """

    x: Tensor
    coords: Tensor
    mask: Tensor | None = None
    shared: Tensor | None = None
    base: Tensor | None = None


class Noise(NamedTuple):
    """Levels (B,) in units of sigma_data, epsilon (B, n, d), and whether this step is self-conditioned."""

    level: Tensor
    epsilon: Tensor
    self_condition: bool


@dataclass(frozen=True)
class _Truth:
    """V_target,aligned (B, n, d), the true neighbours, and the temperature of the neighbourhood losses, (B,)."""

    target: Tensor
    near: losses.Neighbours
    temperature: Tensor


def draw_noise(
    shape: torch.Size | tuple[int, int, int], *, progress: float, pairs: bool, generator: torch.Generator
) -> Noise:
    """Noise for a batch (B, n, d) at a share of training; both views of a pair have the same level."""
    batch = shape[0] // 2 if pairs else shape[0]
    level = noise_levels(batch, SIGMA_MIN, sigma_cap(progress), generator)
    torch.rand(batch, generator=generator)  # unused: keeps the random numbers of earlier versions
    if pairs:
        level = level.repeat(2)
    epsilon = torch.randn(shape, generator=generator)
    coin = bool(torch.rand((), generator=generator) < 0.5)
    return Noise(level, epsilon, coin)


class Objective(nn.Module):
    """The training objective of a geometry model, a module so that any Fabric strategy can wrap it.

    Parameters
    ----------
    model
        The model to train.
    part
        ``"generator"`` trains context encoder and generator, ``"refiner"`` the denoiser with these frozen,
        ``"joint"`` everything at once, as the paper does.
    """

    seen: Tensor

    def __init__(self, model: GeometryModel, part: Part) -> None:
        super().__init__()
        self.model, self.part = model, part
        self.register_buffer("seen", torch.zeros(()))
        model.requires_grad_(part == "joint")
        if part == "generator":
            model.context.requires_grad_(True)
            model.generate.requires_grad_(True)
        if part == "refiner":
            model.denoiser.requires_grad_(True)
            if model.refiner_context is not None:
                model.refiner_context.requires_grad_(True)

    def train(self, mode: bool = True) -> Objective:
        """Training mode; frozen parts stay in evaluation mode, without dropout."""
        super().train(mode)
        if self.part == "refiner":
            self.model.context.eval()
            self.model.generate.eval()
        return self

    def forward(
        self, batch: Batch, noise: Noise | None = None, hide: torch.Generator | None = None
    ) -> dict[str, Tensor]:
        """Weighted losses by name; their sum is the loss. Dropout is drawn from ``hide``, or torch's global generator."""
        model, config, mask = self.model, self.model.config, batch.mask
        h = model.context(batch.x, mask, hide=hide)
        base = model.generate(h, mask)
        with torch.autocast(base.device.type, enabled=False):
            if batch.base is not None:
                given = batch.base.float()  # Fabric passes everything on in reduced precision
                base = given @ procrustes(given, base)
            truth = _truth(batch, base.detach(), config)
            terms = {} if self.part == "refiner" else _generator_terms(base, truth, batch, config)
            if noise is None:
                return terms | _overlap_terms(base, truth, batch, config)
        clean = truth.target - base.detach()
        level = noise.level.float()  # the inverse square of sigma overflows 16 bits
        sigma = level * self._track_scale(clean, mask)
        estimate = self._estimate(
            model.refiner_condition(batch.x, h, mask), base.detach(), clean, sigma, batch, noise
        )
        with torch.autocast(base.device.type, enabled=False):
            pred = base + estimate
            weight = loss_weight(sigma, model.sigma_data)
            terms["score"] = WEIGHTS["score"] * losses.score_loss(estimate, clean, weight, mask).mean()
            gate = noise.level < GATE
            terms |= _geometry_terms(pred, truth, batch, config, gate)
            return terms | _overlap_terms(pred, truth, batch, config, sigma < OVERLAP_GATE)

    def _estimate(
        self, condition: Tensor, base: Tensor, clean: Tensor, sigma: Tensor, batch: Batch, noise: Noise
    ) -> Tensor:
        """The denoiser's clean estimate of a noised signal, in half of the steps given its own first estimate."""
        noisy = clean + sigma[:, None, None] * centre(noise.epsilon, batch.mask)
        guess = None
        if noise.self_condition:
            with torch.no_grad():
                guess = self.model.denoise(noisy, sigma, condition, base, batch.mask)
        return self.model.denoise(noisy, sigma, condition, base, batch.mask, previous=guess)

    @torch.no_grad()
    def _track_scale(self, clean: Tensor, mask: Tensor | None) -> Tensor:
        """sigma_data: the running RMS of the clean signal, which shrinks as the generator improves."""
        sigma_data = self.model.sigma_data
        if self.training:
            count = clean.shape[0] * clean.shape[1] if mask is None else mask.sum()
            variance = clean.square().sum() / (count * clean.shape[-1])
            self.seen += 1
            rate = (1 / self.seen).clamp_min(SIGMA_MEMORY)
            sigma_data.copy_(sigma_data.square().lerp(variance, rate).sqrt().clamp_min(1e-6))
        return sigma_data.clone()


@torch.no_grad()
def _truth(batch: Batch, base: Tensor, config: GeometryConfig) -> _Truth:
    coords = centre(batch.coords.float(), batch.mask)  # (B, n, 2): V_target without its zero columns
    target = coords @ procrustes(coords, base)  # (B, n, d)
    near = losses.neighbours(coords, NEIGHBORS, batch.mask)
    if config.nca_temperature:
        temperature = coords.new_full((len(coords),), config.nca_temperature)
    else:
        temperature = losses.nca_temperature(near, batch.mask)
    return _Truth(target, near, temperature)


def _generator_terms(base: Tensor, truth: _Truth, batch: Batch, config: GeometryConfig) -> dict[str, Tensor]:
    return _weigh(
        config,
        gen_align=lambda: losses.gen_align_loss(base, truth.target, batch.mask),
        gen_gram=lambda: losses.gram_loss(base, truth.target),
        gen_scale=lambda: losses.gen_scale_loss(base, truth.target),
        gen_nca=lambda: losses.nca_loss(base, truth.near, truth.temperature, batch.mask),
    )


def _geometry_terms(
    pred: Tensor, truth: _Truth, batch: Batch, config: GeometryConfig, gate: Tensor
) -> dict[str, Tensor]:
    """Gram and scale losses on V_pred for sets with little noise, and neighbourhood losses for these or for all."""
    gram = _weigh(
        config,
        gate,
        gram=lambda: losses.gram_loss(pred, truth.target),
        gram_scale=lambda: losses.gram_scale_loss(pred, truth.target),
    )
    return gram | _weigh(
        config,
        gate if config.nca_gate else None,
        nca=lambda: losses.nca_loss(pred, truth.near, truth.temperature, batch.mask),
        local_scale=lambda: losses.local_scale_loss(pred, truth.near),
    )


def _overlap_terms(
    pred: Tensor, truth: _Truth, batch: Batch, config: GeometryConfig, gate: Tensor | None = None
) -> dict[str, Tensor]:
    """Losses on the agreement of the two views of each pair on their shared spots."""
    if batch.shared is None:
        return {}
    pairs, k = batch.shared.shape
    first, second, temperature = pred[:pairs, :k], pred[pairs:, :k], truth.temperature[:pairs]
    return _weigh(
        config,
        None if gate is None else gate[:pairs],
        overlap_shape=lambda: losses.overlap_shape_loss(first, second, batch.shared),
        overlap_scale=lambda: losses.overlap_scale_loss(first, second, batch.shared),
        overlap_kl=lambda: losses.overlap_kl_loss(first, second, temperature, batch.shared),
    )


def _weigh(
    config: GeometryConfig, gate: Tensor | None = None, **terms: Callable[[], Tensor]
) -> dict[str, Tensor]:
    """Each loss times its weight, averaged over the sets that pass the gate; losses of weight zero are left out."""
    weighed = {}
    for name, values in terms.items():
        weight = WEIGHTS[name] if name in WEIGHTS else getattr(config, name)
        if not weight:
            continue
        per_set = values()
        mean = per_set.mean() if gate is None else (per_set * gate).sum() / gate.sum().clamp_min(1)
        weighed[name] = weight * mean
    return weighed
