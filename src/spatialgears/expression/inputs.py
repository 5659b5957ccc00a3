"""What the encoder is trained on: the measured profiles of one domain, and pairs of their views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spatialgears.expression.normalise import Matrix
from spatialgears.expression.views import Views
from spatialgears.runtime.seeds import torch_rng

#: Profiles of one domain that an encoder is trained on; of more, a random subset.
MAX_PROFILES = 20_000
#: Memory of a bank of projected views, and its largest number of pairs.
BANK_BYTES, MAX_PAIRS = 128 * 2**20, 24
CHUNK = 2048

Pair = Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Inputs:
    """Profiles of the groups (slides, or batches of cells) of one domain, concatenated."""

    clean: Tensor  # (n, f) as measured
    group: Tensor  # (n,) slide or batch
    pair: Pair  # ``pair(index, generator)``: two views (len(index), f) of each profile
    bank: Tensor | None = None  # (pairs, 2, n, f) precomputed views, if any

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """``count`` random profiles; every group is drawn equally often, whatever its size."""
        sizes = torch.bincount(self.group)
        first = sizes.cumsum(0) - sizes
        group = torch.randint(len(sizes), (count,), generator=generator)
        return first[group] + (torch.rand(count, generator=generator) * sizes[group]).long()


def gene_inputs(views: Views) -> Inputs:
    """Inputs on the genes themselves; views are computed as they are drawn."""
    return Inputs(views.clean(), views.group, views.draw_pair)


def projected_inputs(views: Views, basis: Tensor, *, seed: int) -> Inputs:
    """Inputs on a basis (G, f) of components, with a bank of precomputed projected views."""
    n, f = views.counts.shape[0], basis.shape[1]
    bank = torch.empty(max(1, min(MAX_PAIRS, BANK_BYTES // (8 * n * f))), 2, n, f)
    for view in range(len(bank)):
        for part in torch.arange(n).split(CHUNK):
            pair = views.draw_pair(part, torch_rng(seed, "pairs", view, int(part[0])))
            for half, x in enumerate(pair):
                bank[view, half, part] = x @ basis

    def pair_of(index: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        view = torch.randint(len(bank), index.shape, generator=generator)
        return bank[view, 0, index], bank[view, 1, index]

    return Inputs(views.clean() @ basis, views.group, pair_of, bank)


def random_rows(
    groups: Sequence[Matrix], *, rng: np.random.Generator, limit: int = MAX_PROFILES
) -> list[np.ndarray]:
    """Rows of each group (slide or batch), at most ``limit`` in all; small groups are kept whole."""
    sizes = np.array([x.shape[0] for x in groups])
    share = limit if sizes.sum() <= limit else max(1, limit // len(sizes))
    for _ in sizes:  # groups smaller than an equal share leave room for the others
        small = sizes <= share
        if small.all():
            break
        share = max(1, (limit - sizes[small].sum()) // int((~small).sum()))
    return [np.sort(rng.permutation(size)[: min(size, share)]) for size in sizes]
