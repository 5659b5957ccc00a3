"""Cells are moved to the spots most like them, by the share that is asked for and no further."""

from __future__ import annotations

import torch

from spatialgears.expression.pull import NEAREST, Pull


def test_cells_move_to_the_mean_of_their_nearest_spots():
    generator = torch.Generator().manual_seed(0)
    groups = torch.eye(6)[[0, 1, 2]] * 5
    spots = groups.repeat_interleave(20, 0) + 0.1 * torch.randn(60, 6, generator=generator)
    views = spots + 0.2 * torch.randn(4, 60, 6, generator=generator)
    cells = groups.repeat_interleave(7, 0) + torch.randn(21, 6, generator=generator) * 0.3
    pull = Pull.fit(views.mean(0), 0.25)
    assert torch.equal(pull.bank, views.mean(0))
    moved = pull(cells)
    towards = (moved - cells) / 0.25 + cells  # a mean of spots of the cell's own group
    assert (towards - groups.repeat_interleave(7, 0)).norm(dim=1).max() < 0.6
    assert torch.allclose(pull(cells[4:5]), moved[4:5], atol=1e-6)


def test_nothing_moves_without_a_share_and_few_spots_are_enough():
    x = torch.randn(5, 8)
    assert torch.equal(Pull.fit(torch.randn(40, 8), 0.0)(x), x)
    assert Pull.fit(torch.randn(NEAREST - 2, 8), 0.5)(x).shape == x.shape
    assert Pull.fit(torch.randn(40, 8), 0.5)(x[:0]).shape == (0, 8)
