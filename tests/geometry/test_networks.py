import pytest
import torch
from torch import nn

from spatialgears.expression.signal import masking_noise
from spatialgears.geometry.networks import ContextEncoder, Dropout, GeneMasking, Generator


def test_context_and_proposal_are_equivariant_and_ignore_padding(tiny, mask):
    config = tiny().geometry
    encoder, generator = ContextEncoder(10, config).eval(), Generator(6, config).eval()
    x, order = torch.randn(3, 20, 10), torch.randperm(20)
    h = encoder(x, mask)
    v = generator(h, mask)
    torch.testing.assert_close(encoder(x[:, order], mask[:, order]), h[:, order])
    torch.testing.assert_close(generator(h[:, order], mask[:, order]), v[:, order])
    alone = encoder(x[2:, :9])
    torch.testing.assert_close(h[2, :9], alone[0])
    torch.testing.assert_close(v[2, :9], generator(alone)[0])


def test_the_proposal_is_centred_over_real_points(tiny, mask):
    v = Generator(6, tiny().geometry)(torch.randn(3, 20, 16), mask)
    assert (v[~mask] == 0).all()
    torch.testing.assert_close(v.sum(1), torch.zeros(3, 6), atol=1e-5, rtol=0)


def test_without_a_hidden_layer_the_input_is_the_papers_linear_projection(tiny):
    config = tiny(hidden=0, input_dropout=0.0, context_blocks=3).geometry
    encoder = ContextEncoder(10, config)
    assert [type(layer) for layer in encoder.project] == [Dropout, nn.Linear]
    assert len(encoder.blocks) == 3


@pytest.mark.parametrize("p", [0.0, 0.3, 0.4, 1.0])
def test_dropout_hides_as_much_as_it_says_and_keeps_the_mean(p):
    x = torch.ones(1001, 999, requires_grad=True)
    dropped = Dropout(p)(x)
    hidden = dropped.detach() == 0
    assert hidden.float().mean() == pytest.approx(p, abs=0.003)
    assert dropped.detach().mean() == pytest.approx(1.0 if p < 1 else 0.0, abs=0.005)
    dropped.sum().backward()
    torch.testing.assert_close(x.grad, dropped.detach())
    if (
        0 < p < 1
    ):  # four coins come from one integer: neighbours, in either direction, must not know of each other
        for a, b in ((hidden[:, 1:], hidden[:, :-1]), (hidden[1:], hidden[:-1])):
            together = torch.corrcoef(torch.stack([a.flatten(), b.flatten()]).float())[0, 1]
            assert abs(together) < 0.01


def test_dropout_is_off_in_evaluation_and_follows_its_generator():
    layer, x = Dropout(0.5).eval(), torch.randn(8, 33)
    assert torch.equal(layer(x), x)
    first, again, other = (layer.drop(x, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_masking_genes_moves_coordinates_as_the_noise_says():
    """Coordinates of profiles whose genes are masked one by one have the covariance of :class:`GeneMasking`."""
    rng = torch.Generator().manual_seed(0)
    axes = torch.linalg.qr(torch.randn(300, 4, generator=rng)).Q
    y = torch.randn(4, generator=rng).expand(20_000, 4)
    x, p = y @ axes.T, 0.3
    masked = x * (torch.rand(x.shape, generator=rng) >= p) / (1 - p) @ axes
    layer = GeneMasking(p, masking_noise(x[:1], axes))
    drawn = layer.drop(y, rng)
    torch.testing.assert_close(drawn.T.cov(), masked.T.cov(), rtol=0.1, atol=2e-3)
    torch.testing.assert_close(drawn.mean(0), y[0], rtol=0, atol=0.02)
    assert torch.equal(layer.eval()(y), y) and not torch.equal(layer.train()(y), y)
