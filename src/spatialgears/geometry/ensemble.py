"""An ensemble of cross-fitted generators: their mean geometry, and its spread under dropout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spatialgears.geometry.features import FeatureRows, Features
from spatialgears.geometry.model import GeometryModel, Proposal
from spatialgears.geometry.nearest import NearestSpots
from spatialgears.runtime.processes import share_of, summed
from spatialgears.runtime.seeds import child_seed, torch_rng
from spatialgears.supervision.targets import centre, procrustes

#: ``map``, or that of a pool of threads.
Mapper = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]

ROUNDING = 1e-3  # RMS radii; a smaller spread is a rounding error
DRAWS = 8  # passes with dropout that the spread of one model is measured over
ENSEMBLE_DRAWS = 12  # over all members: as precise as one model's, since each member has a mean of its own
SPREAD_CELLS = 20_000  # points in one such pass


@torch.no_grad()
def dropout_spread(model: nn.Module, x: Tensor, *, seed: int, draws: int = DRAWS) -> Tensor:
    """How far each point of one set x (n, f) moves under Monte Carlo dropout: (n,) RMS over ``draws`` passes.

    A position that rests on few genes, or on none, moves far. Cells unlike the training spots move further than spots,
    which no error measured on spots can show. The dropout rate is that of training.
    """
    assert isinstance(model, GeometryModel)
    hide = torch_rng(seed, "dropout")
    first, total, square = None, torch.zeros(len(x), model.dim), torch.zeros(len(x))
    for _ in range(draws):
        v = model.generate(model.context(x[None], hide=hide))[0].float()
        first = v if first is None else first
        v = v @ procrustes(v, first)
        total, square = total + v, square + v.square().sum(1)
    variance = (square - total.square().sum(1) / draws) / (draws - 1)
    return variance.clamp_min(ROUNDING**2).sqrt()


class Ensemble(nn.Module):
    """The mean geometry of several models, each turned into the first one's frame.

    Models trained on different spots err differently, so their mean is more accurate than any one of them. The first model
    carries the refiner, which refines the mean proposal.

    Parameters
    ----------
    members
        Models of one configuration; only the first needs a refiner.
    nearest
        Moves the mean towards the most similar spots within reach, by the embedding of the features.
    """

    def __init__(self, members: Sequence[GeometryModel], nearest: NearestSpots | None = None) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.nearest = nearest

    @property
    def lead(self) -> GeometryModel:
        """The member that carries the refiner."""
        member = self.members[0]
        assert isinstance(member, GeometryModel)
        return member

    def bases(self, seen: Tensor, mask: Tensor | None = None) -> Tensor:
        """V_base (members, B, n, d) of every member for features ``seen`` (B, n, f), in the first one's frame."""
        first, *rest = (member(seen, mask).float() for member in self.members)
        return torch.stack([first, *(base @ procrustes(base, first, mask) for base in rest)])

    def generated(self, features: Features, mask: Tensor | None = None) -> Tensor:
        """The mean (B, n, d) of the members alone."""
        return centre(self.bases(features.seen, mask).mean(0), mask)

    def forward(self, features: Features, mask: Tensor | None = None) -> Tensor:
        """The proposal (B, n, d) for features (B, n, .), by the members' mean and the nearest spots."""
        return self.guided(features, self.generated(features, mask), mask)

    def guided(self, features: Features, geometry: Tensor, mask: Tensor | None = None) -> Tensor:
        """The ``geometry`` (B, n, d) moved towards the most similar spots within reach; unchanged without :attr:`nearest`."""
        if self.nearest is None:
            return geometry
        assert features.embedding is not None
        return centre(self.nearest(features.embedding.float(), geometry, mask), mask)

    @torch.no_grad()
    def noise(self, features: Features, *, seed: int) -> float:
        """Median over points (n, .) of the variance between members, divided by the squared spread."""
        one = features[None]
        bases = torch.stack([self.guided(one, base)[0] for base in self.bases(one.seen)])  # (members, n, d)
        variance = (bases - bases.mean(0)).square().sum(-1).mean(0)
        return float((variance / self.spread(features, seed=seed).square()).median())

    def spread(self, x: FeatureRows, *, seed: int, each: Mapper = map) -> Tensor:
        """How far points (n, .) move under dropout: (n,) RMS over the members.

        Sets too large for one pass are split at random, so that every part represents the whole. ``each`` maps the work of
        a member on a part, and may do so in threads; with several processes each takes some parts.
        """
        order = torch.randperm(len(x), generator=torch_rng(seed, "spread"))
        draws = max(2, -(-ENSEMBLE_DRAWS // len(self.members)))  # a spread needs two
        parts = share_of(order.chunk(-(-len(x) // SPREAD_CELLS)))
        jobs = [(part, i) for part in parts for i in range(len(self.members))]

        def square(job: tuple[Tensor, int]) -> Tensor:
            part, i = job
            member_seed = child_seed(seed, "dropout", i)
            return dropout_spread(self.members[i], x[part].seen, seed=member_seed, draws=draws).square()

        total = torch.zeros(len(x))
        for (part, _), found in zip(jobs, each(square, jobs), strict=True):
            total[part] += found
        return torch.from_numpy(summed(total.numpy())).div(len(self.members)).sqrt()

    @torch.no_grad()
    def propose(self, features: Features, mask: Tensor | None = None) -> Proposal:
        """The mean proposal, for all samples that :meth:`sample` draws of the same set."""
        return self.lead.propose(features.seen, mask, self(features, mask))

    @torch.no_grad()
    def sample(
        self,
        features: Features,
        mask: Tensor | None = None,
        *,
        steps: int,
        sigma_start: float,
        seeds: Tensor,
        proposal: Proposal | None = None,
    ) -> Tensor:
        """V_pred (B, n, d): the mean proposal, or that given, refined along ``steps`` Heun steps; 0 returns it as it is."""
        if steps == 0 or self.lead.config.refiner == "none":
            return self(features, mask) if proposal is None else proposal.base
        proposal = self.propose(features, mask) if proposal is None else proposal
        return self.lead.refine(proposal, mask, steps=steps, sigma_start=sigma_start, seeds=seeds)
