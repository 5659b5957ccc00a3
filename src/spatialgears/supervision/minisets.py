"""Minisets: localised random subsets of one slide's spots, drawn a batch at a time (section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spatialgears.config import SupervisionConfig
from spatialgears.errors import InputError

#: tau_spatial (the paper is silent). Without a pool: a range in RMS radii of the slide, of which one value is drawn per
#: miniset. With a pool: in units of the pool's radius.
TAU, POOL_TAU = (0.2, 3.0), 0.5
#: The paper's appendix: alpha, the share of a miniset that its twin also holds, and the fewest spots they share.
OVERLAP, MIN_OVERLAP = 0.5, 20
TAKEN = 1e6  # a key above every random key, which are below 100: the spot is always drawn
SHARED = 1e7  # above that, minus 1,000 per rank: shared spots come first, in their order


@dataclass(frozen=True)
class Minisets:
    """A batch: ``index`` (B, n) into all spots, ``mask`` (B, n) true for real ones, ``slide`` (B,)."""

    index: Tensor
    mask: Tensor
    slide: Tensor


@dataclass(frozen=True)
class PairedMinisets:
    """Twins: positions 0..k-1 of both hold the same spots; ``shared`` (B, k) is true where these are real."""

    first: Minisets
    second: Minisets
    shared: Tensor


class MinisetSampler:
    """Draws minisets of n spots around a centre c with p(i | c) proportional to exp(-distance / tau).

    A draw without replacement is the n largest values of log p + Gumbel noise, for all sets of a batch at once. Only one
    row of distances per set is held, so memory and time are linear in the spots of the largest slide.

    ``slides`` are canonical coordinates (n_spots, 2). The size n is drawn once per batch, so that sets are padded only
    where a slide is small. ``keep`` marks the spots that may be drawn, over the slides in order; a slide with fewer than
    three is skipped.
    """

    def __init__(
        self, slides: Sequence[np.ndarray], config: SupervisionConfig, *, keep: np.ndarray | None = None
    ) -> None:
        self.config = config
        sizes = [len(slide) for slide in slides]
        keep = np.ones(sum(sizes), dtype=bool) if keep is None else keep
        members = [
            start + np.flatnonzero(keep[start : start + size])
            for start, size in zip(np.cumsum([0, *sizes[:-1]]), sizes, strict=True)
        ]
        if max(map(len, members)) < 3:
            raise InputError(
                f"No slide has more than {max(map(len, members))} spots to draw from, at least 3 are needed.",
                "Hold out fewer spots, or use fewer folds.",
            )
        members = [member if len(member) >= 3 else member[:0] for member in members]
        widest = max(map(len, members))
        coords = torch.from_numpy(np.concatenate(slides)).float()
        self._sizes = torch.tensor([len(member) for member in members])  # (slides,)
        padded = np.stack([np.resize(member, widest) for member in members])
        self._index = torch.from_numpy(padded)  # (slides, widest), padding repeats real spots
        self._coords = coords.T[:, self._index].contiguous()  # (2, slides, widest)
        self._padding = torch.arange(widest) >= self._sizes[:, None]  # (slides, widest)

    @property
    def n_slides(self) -> int:
        """Slides that spots are drawn from."""
        return int((self._sizes > 0).sum())

    def draw(self, batch: int, generator: torch.Generator) -> Minisets:
        """A batch of independent minisets."""
        slide, logp, n = self._around_centres(batch, generator)
        return self._gather(slide, *_top(logp, n, generator))

    def draw_pairs(self, batch: int, generator: torch.Generator) -> PairedMinisets:
        """Pairs with |I| = max(MIN_OVERLAP, floor(alpha n)) shared spots; the rest is drawn anew."""
        slide, logp, n = self._around_centres(batch, generator)
        local, mask = _top(logp, n, generator)
        order = (
            torch.rand(local.shape, generator=generator).masked_fill_(~mask, -1).argsort(1, descending=True)
        )
        local, mask = (
            local.gather(1, order),
            mask.gather(1, order),
        )  # real spots in random order, then padding
        k = min(n, max(MIN_OVERLAP, int(OVERLAP * n)))
        ranks = torch.where(mask[:, :k], SHARED - 1e3 * torch.arange(k), -torch.inf)
        again, mask_again = _top(logp.scatter(1, local[:, :k], ranks), n, generator)
        first, second = self._gather(slide, local, mask), self._gather(slide, again, mask_again)
        return PairedMinisets(first, second, shared=mask[:, :k])

    def _around_centres(self, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor, int]:
        """Slide (B,) and unnormalised log p (B, widest) of a batch, and the size n they share."""
        low, high = self.config.n_min, self.config.n_max
        n = int(torch.randint(low, high + 1, (1,), generator=generator).clamp_max(int(self._sizes.max())))
        pool = min(round(self.config.pool * n), int(self._sizes.max()))
        tau = None if pool else torch.empty(batch, 1).uniform_(*TAU, generator=generator)
        spot = torch.randint(int(self._sizes.sum()), (batch,), generator=generator)
        ends = self._sizes.cumsum(0)
        slide = torch.searchsorted(ends, spot, right=True)
        place = spot - (ends - self._sizes)[slide]
        across, down = (axis[slide] - axis[slide, place, None] for axis in self._coords)  # (B, widest) each
        distance, outside = torch.hypot(across, down), self._padding[slide]
        if tau is None:  # the nearest spots of the centre, all of them on a small slide
            nearest = distance.masked_fill(outside, torch.inf).topk(pool, dim=1, largest=False).values
            radius = nearest.masked_fill_(nearest.isinf(), 0).amax(1, keepdim=True)
            outside, tau = outside | (distance > radius), (POOL_TAU * radius).clamp_min(1e-9)
        logp = distance.div_(-tau).masked_fill_(outside, -torch.inf)
        return slide, logp.scatter_(1, place[:, None], TAKEN), n

    def _gather(self, slide: Tensor, local: Tensor, mask: Tensor) -> Minisets:
        return Minisets(self._index[slide[:, None], local], mask, slide)


def _top(logp: Tensor, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Positions (B, n) of the n largest values of log p + Gumbel noise, and which of them are real."""
    uniform = torch.rand(logp.shape, generator=generator).clamp_min_(1e-30)
    keys, places = (logp - uniform.log_().neg_().log_()).topk(n, dim=1)  # log p + Gumbel noise
    return places, keys > -torch.inf
