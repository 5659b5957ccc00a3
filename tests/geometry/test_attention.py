import math

import pytest
import torch

from spatialgears.geometry import attention
from spatialgears.geometry.attention import ISAB, MAB, pointwise


@pytest.fixture
def points():
    return torch.randn(3, 20, 8)


def test_blocks_are_permutation_equivariant(points, mask):
    block = ISAB(8, 3)
    order = torch.randperm(20)
    torch.testing.assert_close(block(points[:, order], mask[:, order]), block(points, mask)[:, order])


def test_padding_changes_nothing(points, mask):
    block = ISAB(8, 3)
    noisy = torch.where(mask[..., None], points, 1e3 * torch.randn_like(points))
    out = block(noisy, mask)
    for row, size in enumerate([20, 15, 9]):
        torch.testing.assert_close(out[row, :size], block(points[row : row + 1, :size])[0])


def test_mab_is_multihead_attention_then_a_feed_forward_layer(points, mask):
    mab, queries = MAB(8), torch.randn(3, 5, 8)
    bias = torch.randn(3, 4, 5, 20)
    q = mab.query(mab.norm_query(queries))
    k, v = mab.key_value(mab.norm_key(points)).split(8, dim=-1)
    heads = []
    for h in range(4):
        part = slice(2 * h, 2 * h + 2)
        logits = q[..., part] @ k[..., part].mT / math.sqrt(2) + bias[:, h]
        heads.append(logits.masked_fill(~mask[:, None], -torch.inf).softmax(-1) @ v[..., part])
    expected = queries + mab.out(torch.cat(heads, dim=-1))
    expected = expected + mab.feed(mab.norm_out(expected))
    torch.testing.assert_close(mab(queries, points, mask, bias), expected)


def test_large_sets_in_pieces_give_the_same(points, monkeypatch):
    block = ISAB(8, 3)
    with torch.no_grad():
        whole = block(points)
        monkeypatch.setattr(attention, "CHUNK", 7)
        torch.testing.assert_close(block(points), whole)
        sizes = []
        pointwise(lambda piece: sizes.append(piece.shape[1]) or piece, points)
    assert sizes == [7, 7, 6]
