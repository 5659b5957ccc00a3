"""Set Transformer blocks with masks: MAB and ISAB (section 3.4), pre-norm.

Sets are (B, n, c). Masks are (B, n) booleans, true for real points, or ``None`` when every point is real. Padding is never
attended to, so it cannot influence real points. What a block returns at padded positions is meaningless.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HEADS = 4  # the paper's appendix
#: Above this many points, and without gradients, point-wise layers run in pieces, which stay in the processor's cache.
CHUNK = 1024


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers of the given sizes with SiLU between them."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.SiLU()]
    return nn.Sequential(*layers[:-1])


def pointwise(function: Callable[..., Tensor], *values: Tensor) -> Tensor:
    """``function(*values)``, in pieces for large sets; it must treat each point (dimension 1) separately."""
    if values[0].shape[1] <= CHUNK or torch.is_grad_enabled():
        return function(*values)
    pieces = zip(*(value.split(CHUNK, dim=1) for value in values), strict=True)
    return torch.cat([function(*piece) for piece in pieces], dim=1)


class MAB(nn.Module):
    """Multihead attention block: queries attend to keys, then a feed-forward layer; both are residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_query, self.norm_key, self.norm_out = (nn.LayerNorm(width) for _ in range(3))
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out, self.feed = nn.Linear(width, width), mlp(width, 2 * width, width)

    def forward(
        self, queries: Tensor, keys: Tensor, mask: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """From ``queries`` (B, n, c) to ``keys`` (B, m, c); ``bias`` (B, heads, n, m) is added to logits."""
        q = self._split(self.query(self.norm_query(queries)))  # (B, heads, n, c / heads)
        k, v = map(self._split, self.key_value(self.norm_key(keys)).chunk(2, dim=-1))
        allowed = None if mask is None else mask[:, None, None, :]  # (B, 1, 1, m)
        if bias is not None:
            allowed = bias if allowed is None else bias.masked_fill(~allowed, -torch.inf)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        out = queries + self.out(attended.transpose(1, 2).flatten(2))
        return out + self.feed(self.norm_out(out))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class ISAB(nn.Module):
    """Self-attention through m learnt inducing points, O(n m): linear in the size of the set."""

    def __init__(self, width: int, inducing: int) -> None:
        super().__init__()
        self.inducing = nn.Parameter(0.02 * torch.randn(1, inducing, width))
        self.gather, self.spread = MAB(width), MAB(width)

    def forward(self, points: Tensor, mask: Tensor | None = None) -> Tensor:
        """Points (B, n, c) after attending to a summary of their set."""
        summary = self.gather(self.inducing.expand(len(points), -1, -1), points, mask)  # (B, m, c)
        return pointwise(lambda piece: self.spread(piece, summary), points)
