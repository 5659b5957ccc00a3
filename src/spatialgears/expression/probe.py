"""How well a nearest-neighbour vote tells two domains apart in an embedding (appendix, Stage A)."""

from __future__ import annotations

import torch
from torch import Tensor

K = 20  # the paper's appendix: neighbours that vote


@torch.no_grad()
def balanced_probe(a: Tensor, b: Tensor, *, k: int = K) -> float:
    """Balanced accuracy of a leave-one-out vote of k nearest neighbours between two samples (n, h) and (m, h) of embeddings.

    Votes are divided by the size of each domain, so that 0.5 is a perfect mixture whatever the sizes.
    """
    joint = torch.cat([a, b])
    label = torch.cat([torch.zeros(len(a)), torch.ones(len(b))])
    distance = torch.cdist(joint, joint).fill_diagonal_(torch.inf)
    nearest = distance.topk(min(k, len(joint) - 1), largest=False).indices  # (n + m, k)
    votes = label[nearest]  # 1 for the second domain
    second, first = votes.sum(1) / len(b), (1 - votes).sum(1) / len(a)
    correct = (second > first).float() + 0.5 * (
        second == first
    ).float()  # votes for the second; a tie counts half
    return float(0.5 * ((1 - correct[: len(a)]).mean() + correct[len(a) :].mean()))
