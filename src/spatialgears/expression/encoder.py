"""The shared encoder f_theta (section 3.1): an MLP, alone or as a residual on a linear start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

HIDDEN = (512, 256)  # the paper's appendix: widths of the hidden layers
#: Profiles embedded at a time.
CHUNK = 8192


class Encoder(nn.Module):
    """f_theta: weighted expression (n, G) to embedding (n, h).

    Three forms share this class: the paper's MLP on genes; a residual MLP on a linear ``start`` (n_inputs, h), which sees
    the expression in a ``basis`` (G, n_inputs) of components and is zero before training; and the ``start`` alone (no
    ``hidden`` widths). ``scale`` (h,) are weights of the finished embedding's dimensions, which the losses see
    unweighted.
    """

    basis: Tensor | None
    start: Tensor | None
    scale: Tensor

    def __init__(
        self,
        n_inputs: int,
        embed_dim: int,
        *,
        hidden: Sequence[int] | None,
        basis: Tensor | None = None,
        start: Tensor | None = None,
        scale: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("basis", basis)
        self.register_buffer("start", start)
        self.register_buffer("scale", torch.ones(embed_dim) if scale is None else scale)
        self.mlp = None if hidden is None else _mlp(n_inputs, *hidden, embed_dim)
        if self.mlp is not None and start is not None:
            last = self.mlp[-1]
            assert isinstance(last, nn.Linear)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Encoder:
        """The encoder whose ``state_dict()`` this is, frozen."""
        layers = {
            int(name.split(".")[1]): w for name, w in state.items() if name.startswith("mlp.") and w.ndim == 2
        }
        widths = [layers[number] for number in sorted(layers)]
        linear = widths[0] if widths else state["start"].T
        encoder = cls(
            linear.shape[1],
            len(state["scale"]),
            hidden=[w.shape[0] for w in widths[:-1]] if widths else None,
            basis=state.get("basis"),
            start=state.get("start"),
        )
        encoder.load_state_dict(dict(state))
        return encoder.freeze()

    def freeze(self) -> Encoder:
        """Switch off gradients and training mode, as the paper does after convergence. Returns self."""
        return self.requires_grad_(False).eval()

    def project(self, x: Tensor) -> Tensor:
        """Weighted expression (n, G) as the MLP sees it (n, n_inputs)."""
        return x if self.basis is None else x @ self.basis

    def forward(self, inputs: Tensor) -> Tensor:
        """Embedding (n, h) before ``scale``, of ``inputs`` (n, n_inputs); the losses are computed on this."""
        if self.mlp is None:
            assert self.start is not None
            return inputs @ self.start
        out: Tensor = self.mlp(inputs)
        return out if self.start is None else inputs @ self.start + out

    @torch.no_grad()
    def embed(self, x: Tensor) -> Tensor:
        """The finished embedding (n, h) of weighted expression ``x`` (n, G), as later stages use it."""
        return torch.cat([self(self.project(part)) * self.scale for part in x.split(CHUNK)])


def _mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (left, right) in enumerate(pairwise(widths)):
        layers += [nn.Linear(left, right)] if i == len(widths) - 2 else [nn.Linear(left, right), nn.SiLU()]
    return nn.Sequential(*layers)
