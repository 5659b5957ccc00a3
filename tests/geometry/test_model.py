import pytest
import torch

from spatialgears.config import Config
from spatialgears.geometry import attention
from spatialgears.geometry.attention import ISAB
from spatialgears.geometry.model import GeometryModel, set_noise
from spatialgears.supervision.targets import DIM


def build(config, sigma_data=0.2):
    model = GeometryModel(10, 6, config.geometry).eval()
    model.sigma_data.fill_(sigma_data)
    return model


@pytest.fixture
def x():
    return torch.randn(3, 20, 10)


def prepare(model, x, mask=None):
    with torch.no_grad():
        h = model.context(x, mask)
        return model.refiner_condition(x, h, mask), model.generate(h, mask)


def test_the_denoiser_leaves_a_signal_without_noise_alone(tiny, x):
    model = build(tiny())
    condition, base = prepare(model, x)
    u = 0.2 * torch.randn(3, 20, 6)
    with torch.no_grad():
        torch.testing.assert_close(
            model.denoise(u, torch.full((3,), 1e-6), condition, base), u, atol=1e-4, rtol=0
        )


def test_the_network_sees_inputs_of_unit_variance_at_every_level(tiny, x):
    model, seen = build(tiny()), []
    model.denoiser.register_forward_pre_hook(lambda _, args: seen.append(args[0].std(dim=(1, 2))))
    condition, base = (t.repeat(1, 40, 1) for t in prepare(model, x))  # (3, 800, .)
    sigma = torch.tensor([0.004, 0.2, 1.0])
    noisy = 0.2 * torch.randn(3, 800, 6) + sigma[:, None, None] * torch.randn(3, 800, 6)
    with torch.no_grad():
        model.denoise(noisy, sigma, condition, base)
    assert seen[0].tolist() == pytest.approx([1, 1, 1], abs=0.05)


@pytest.mark.parametrize("guess", [False, True])
def test_denoising_is_permutation_equivariant_and_ignores_padding(tiny, x, mask, guess):
    model, sigma = build(tiny()), torch.tensor([0.1, 0.2, 0.3])
    condition, base = prepare(model, x, mask)
    u = 0.3 * torch.randn(3, 20, 6) * mask[..., None]
    previous = 0.1 * torch.randn(3, 20, 6) * mask[..., None] if guess else None

    def denoise(rows, places):
        def pick(t):
            return None if t is None else t[rows][:, places]

        with torch.no_grad():
            return model.denoise(
                pick(u), sigma[rows], pick(condition), pick(base), pick(mask), previous=pick(previous)
            )

    everything, order = torch.arange(3), torch.randperm(20)
    out = denoise(everything, torch.arange(20))
    torch.testing.assert_close(denoise(everything, order), out[:, order], atol=1e-5, rtol=1e-4)
    for row, size in enumerate([20, 15, 9]):
        alone = denoise(torch.tensor([row]), torch.arange(size))
        torch.testing.assert_close(out[row, :size], alone[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("changes", [{}, {"reference": 16}, {"refiner_steps": 5}])
def test_samples_do_not_depend_on_batch_composition_or_padding(tiny, x, mask, changes):
    model, seeds = build(tiny(**changes)), torch.tensor([11, 12, 13])
    options = {"steps": 3, "sigma_start": 2.0}
    together = model.sample(x, mask, seeds=seeds, **options)
    reverse = model.sample(x.flip(0), mask.flip(0), seeds=seeds.flip(0), **options).flip(0)
    torch.testing.assert_close(together, reverse, atol=1e-5, rtol=1e-4)
    for row, size in enumerate([20, 15, 9]):
        alone = model.sample(x[row : row + 1, :size], seeds=seeds[row : row + 1], **options)
        torch.testing.assert_close(together[row, :size], alone[0], atol=1e-5, rtol=1e-4)


def test_seeds_decide_samples(tiny, x):
    model = build(tiny())

    def sample(seed):
        return model.sample(x[:1], steps=2, sigma_start=1.0, seeds=torch.tensor([seed]))

    assert torch.equal(sample(1), sample(1))
    assert not torch.allclose(sample(1), sample(2))


def test_no_steps_or_no_refiner_give_the_proposal(tiny, x):
    for config in (tiny(), tiny(refiner="none")):
        model = build(config)
        steps = 0 if config.geometry.refiner != "none" else 5
        out = model.sample(x, steps=steps, sigma_start=1.0, seeds=torch.zeros(3, dtype=torch.long))
        with torch.no_grad():
            assert torch.equal(out, model(x))


def test_samples_are_centred(tiny, x, mask):
    out = build(tiny()).sample(x, mask, steps=2, sigma_start=1.0, seeds=torch.arange(3))
    torch.testing.assert_close(out.sum(1), torch.zeros(3, 6), atol=1e-5, rtol=0)


def test_noise_is_centred_standard_normal_for_real_points(mask):
    noise = set_noise(20, 6, torch.arange(3), mask)
    assert (noise[~mask] == 0).all()
    torch.testing.assert_close(noise.sum(1), torch.zeros(3, 6), atol=1e-5, rtol=0)
    assert float(set_noise(5000, 6, torch.tensor([1])).std()) == pytest.approx(1, abs=0.02)


def test_the_paper_preset_has_the_architecture_of_the_appendix():
    config = Config.preset("paper")
    model = GeometryModel(config.expression.embed_dim, DIM, config.geometry)
    assert [len(part.blocks) for part in (model.context, model.generate, model.denoiser)] == [3, 4, 4]
    sets = [block for block in model.modules() if isinstance(block, ISAB)]
    assert len(sets) == 11 and {tuple(block.inducing.shape) for block in sets} == {(1, 128, 256)}
    assert model.generate.head[-1].out_features == 32 and model.refiner_context is None
    block = model.denoiser.blocks[0]
    assert block.bias.num_embeddings == block.graph.distance.num_embeddings == 24
    assert model.denoiser.project.in_features == 3 * 32 + 256 + 8  # U, V_base, its own estimate, H, angles


def test_a_proposal_from_elsewhere_is_refined_in_the_generators_frame(tiny, x):
    model, options = build(tiny()), {"steps": 2, "sigma_start": 1.0, "seeds": torch.arange(3)}
    turn = torch.linalg.qr(torch.randn(6, 6))[0]
    with torch.no_grad():
        base = model(x)
    torch.testing.assert_close(
        model.sample(x, base=base @ turn, **options), model.sample(x, **options), atol=1e-4, rtol=1e-3
    )


@pytest.mark.parametrize("changes", [{}, {"reference": 16}])
def test_large_sets_in_pieces_are_placed_as_in_one(tiny, x, mask, changes, monkeypatch):
    model, options = build(tiny(**changes)), {"steps": 2, "sigma_start": 1.0, "seeds": torch.arange(3)}
    whole = model.sample(x, mask, **options)
    monkeypatch.setattr(attention, "CHUNK", 6)
    torch.testing.assert_close(model.sample(x, mask, **options), whole, atol=1e-5, rtol=1e-4)


def test_a_whole_data_set_passes_as_one_set(tiny):
    model = build(tiny())
    out = model.sample(torch.randn(1, 20_000, 10), steps=1, sigma_start=1.0, seeds=torch.tensor([0]))
    assert out.shape == (1, 20_000, 6) and torch.isfinite(out).all()
