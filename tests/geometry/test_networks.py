import torch
from torch import nn

from spatialgears.geometry.networks import ContextEncoder, Generator


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
    assert [type(layer) for layer in encoder.project] == [nn.Dropout, nn.Linear]
    assert len(encoder.blocks) == 3
