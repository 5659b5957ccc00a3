"""Several generators that have each missed other spots, speaking with one voice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from spatialgears.geometry.model import GeometryModel
from spatialgears.supervision.targets import centre, procrustes


class Ensemble(nn.Module):
    """The mean geometry of several models, each turned into the first one's frame.

    Errors of models that were trained apart differ, and their mean is better than any of them. The first
    model carries the refiner, which is given the mean proposal.

    Parameters
    ----------
    members
        Models of one configuration; only the first needs a refiner.
    """

    def __init__(self, members: Sequence[GeometryModel]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    @property
    def lead(self) -> GeometryModel:
        """The member that carries the refiner."""
        member = self.members[0]
        assert isinstance(member, GeometryModel)
        return member

    def bases(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """V_base of every member in the first one's frame, (members, B, n, d)."""
        first, *rest = (member(x, mask).float() for member in self.members)
        return torch.stack([first, *(base @ procrustes(base, first, mask) for base in rest)])

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The mean proposal (B, n, d) of features x (B, n, f)."""
        return centre(self.bases(x, mask).mean(0), mask)

    @torch.no_grad()
    def sample(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        steps: int,
        sigma_start: float,
        seeds: Tensor,
        guidance: float = 1.0,
        callback: Callable[[int, int], None] | None = None,
    ) -> Tensor:
        """V_pred (B, n, d): the mean proposal, refined along ``steps`` Heun steps; 0 returns it as it is."""
        base = self(x, mask)
        if steps == 0 or self.lead.config.refiner == "none":
            return base
        return self.lead.sample(
            x,
            mask,
            steps=steps,
            sigma_start=sigma_start,
            seeds=seeds,
            guidance=guidance,
            base=base,
            callback=callback,
        )
