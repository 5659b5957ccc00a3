import pytest
import torch

from spatialgears.geometry.model import GeometryModel
from spatialgears.geometry.objective import Batch, Objective, draw_noise
from spatialgears.supervision import procrustes

EVERYTHING = {
    "local_scale": 1.0,
    "gen_scale": 1.0,
    "overlap_shape": 1.0,
    "overlap_scale": 1.0,
    "overlap_kl": 1.0,
}


def pairs(shared=6, n=20):
    mask = torch.arange(n) < torch.tensor([n, 14, n, 14])[:, None]
    x, coords = torch.randn(4, n, 10), torch.randn(4, n, 2)
    coords[2:, :shared] = coords[:2, :shared]
    return Batch(x, coords, mask, mask[:2, :shared])


def noise_for(batch, level=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (*batch.x.shape[:2], 6)
    noise = draw_noise(shape, progress=1.0, pairs=batch.shared is not None, generator=generator)
    if level is not None:
        noise.level.fill_(level)
    return noise


def build(config, part):
    return Objective(GeometryModel(10, 6, config), part)


def test_gradients_reach_every_parameter_in_joint_training(tiny):
    config = tiny(**EVERYTHING).geometry
    objective, batch = build(config, "joint"), pairs()
    for seed in range(4):  # with and without self-conditioning, at several levels
        sum(objective(batch, noise_for(batch, seed=seed)).values()).backward()
    missing = [n for n, p in objective.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert not missing


def test_every_loss_of_the_paper_is_there_and_finite(tiny):
    config, batch = tiny(**EVERYTHING).geometry, pairs()
    terms = build(config, "joint")(batch, noise_for(batch, level=0.1))
    assert set(terms) == {
        "score", "gram", "gram_scale", "nca", "local_scale", "gen_align", "gen_gram", "gen_scale", "gen_nca",
        "overlap_shape", "overlap_scale", "overlap_kl",
    }  # fmt: skip
    assert all(torch.isfinite(value) and value > 0 for value in terms.values())


def test_noise_in_half_precision_does_not_overflow(tiny):
    """As Fabric hands it on with 16-mixed; the weight of the score is about the inverse square of sigma."""
    config, batch = tiny(refiner_steps=1).geometry, pairs()._replace(shared=None)
    objective = build(config, "refiner").eval()
    objective.model.sigma_data.fill_(0.05)
    noise = noise_for(batch, level=0.02)
    half = noise._replace(level=noise.level.half(), epsilon=noise.epsilon.half())
    with torch.no_grad():
        found = objective(batch._replace(coords=batch.coords.half()), half)["score"]
        assert float(found) == pytest.approx(float(objective(batch, noise)["score"]), rel=0.05)


def test_structure_losses_are_gated_by_noise(tiny):
    objective, batch = build(tiny(**EVERYTHING).geometry, "joint"), pairs()
    gated = ("gram", "gram_scale", "nca", "local_scale", "overlap_shape", "overlap_scale", "overlap_kl")

    def shut(level):
        terms = objective(batch, noise_for(batch, level=level))
        return {name for name in gated if terms[name] == 0}

    assert shut(0.5) == set() and shut(1e3) == set(gated)


def test_overlap_losses_apply_below_a_sigma_of_one_and_the_papers_neighbourhood_losses_always(tiny):
    """The gate of the appendix is on sigma itself, that of the Gram losses on sigma / sigma_data,resid."""
    config, batch = tiny(**EVERYTHING, nca_gate=False).geometry, pairs()
    objective = build(config, "joint").eval()
    overlap = ("overlap_shape", "overlap_scale", "overlap_kl")
    for scale, level, open_ in ((0.1, 5.0, True), (0.1, 15.0, False), (4.0, 0.5, False), (4.0, 0.2, True)):
        objective.model.sigma_data.fill_(scale)
        with torch.no_grad():
            terms = objective(batch, noise_for(batch, level=level))
        assert [bool(terms[name] > 0) for name in overlap] == [open_] * 3
        assert bool(terms["gram"] > 0) == (level < 1) and terms["nca"] > 0 and terms["local_scale"] > 0


@pytest.mark.parametrize("part", ["generator", "refiner"])
def test_the_other_part_is_frozen_and_without_dropout(tiny, part):
    config = tiny(refiner_steps=5).geometry
    objective, batch = build(config, part).train(), pairs()
    batch = Batch(batch.x, batch.coords, batch.mask)
    noise = noise_for(batch, level=0.5) if part == "refiner" else None
    sum(objective(batch, noise).values()).backward()
    mine = {"generator": {"context", "generate"}, "refiner": {"denoiser", "refiner_context"}}[part]
    for name, parameter in objective.model.named_parameters():
        assert (parameter.grad is not None) == (name.split(".")[0] in mine), name
    assert objective.model.context.training == (part == "generator")


def test_the_objective_does_not_see_the_pose_of_the_slide(tiny):
    config, batch = tiny(**EVERYTHING).geometry, pairs()
    objective, noise = build(config, "joint").eval(), None
    turn = torch.linalg.qr(torch.randn(2, 2))[0]
    moved = Batch(batch.x, batch.coords @ turn + 5.0, batch.mask, batch.shared)
    noise = noise_for(batch, level=0.3)
    with torch.no_grad():
        before, after = objective(batch, noise), objective(moved, noise)
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, atol=1e-4, rtol=1e-3, msg=name)


def test_padding_and_batch_mates_do_not_change_a_sets_losses(tiny):
    config, whole = tiny(gen_scale=1.0).geometry, pairs()
    objective = build(config, "generator").eval()
    with torch.no_grad():
        each = [
            objective(Batch(whole.x[i : i + 1, :n], whole.coords[i : i + 1, :n]))
            for i, n in enumerate((20, 14))
        ]
        both = objective(Batch(whole.x[:2], whole.coords[:2], whole.mask[:2]))
    for name, value in both.items():
        torch.testing.assert_close(value, (each[0][name] + each[1][name]) / 2, atol=1e-5, rtol=1e-4, msg=name)


def test_sigma_data_follows_the_residual(tiny):
    config, batch = tiny().geometry, pairs()
    objective = build(config, "refiner").train()
    with torch.no_grad():
        objective(batch, noise_for(batch))
        base = objective.model(batch.x, batch.mask)
        mask = batch.mask[..., None]
        coords = (
            batch.coords - (batch.coords * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)
        ) * mask
        residual = (coords @ procrustes(coords, base) - base)[batch.mask]
        assert float(objective.model.sigma_data) == pytest.approx(
            float(residual.square().mean().sqrt()), rel=1e-4
        )
        for parameter in objective.model.generate.parameters():
            parameter.mul_(0.1)
        before = float(objective.model.sigma_data)
        objective(batch, noise_for(batch))
        after = float(objective.model.sigma_data)
        assert after != before
        objective.eval()(batch, noise_for(batch))
        assert float(objective.model.sigma_data) == after


def test_out_of_fold_proposals_are_turned_into_the_generators_frame(tiny):
    config, batch = tiny(refiner_steps=5).geometry, pairs()
    objective = build(config, "refiner").eval()
    noise = noise_for(batch, level=0.5)
    turn = torch.linalg.qr(torch.randn(6, 6))[0]
    with torch.no_grad():
        base = objective.model(batch.x, batch.mask)
        own = objective(Batch(batch.x, batch.coords, batch.mask), noise)
        turned = objective(Batch(batch.x, batch.coords, batch.mask, base=base @ turn), noise)
    for name, value in own.items():
        torch.testing.assert_close(turned[name], value, atol=1e-4, rtol=1e-3, msg=name)


def test_pairs_share_their_noise_level():
    generator = torch.Generator().manual_seed(0)
    noise = draw_noise((6, 9, 4), progress=0, pairs=True, generator=generator)
    assert torch.equal(noise.level[:3], noise.level[3:])
    assert (noise.level >= 0.02).all() and (noise.level <= 1.0).all()  # the first stage of the curriculum


def test_a_tiny_model_overfits_one_miniset(tiny):
    config = tiny(input_dropout=0.0, hidden_dropout=0.0, width=32, hidden=32).geometry
    objective = build(config, "joint").train()
    batch = Batch(torch.randn(1, 16, 10), torch.randn(1, 16, 2))
    adam = torch.optim.Adam(objective.parameters(), 3e-3)
    for step in range(150):
        terms = objective(batch, noise_for(batch, seed=step))
        adam.zero_grad()
        sum(terms.values()).backward()
        adam.step()
    assert terms["gen_align"] < 0.01 and terms["gen_gram"] < 0.01
    x, seeds = batch.x, torch.tensor([0])
    objective.eval()
    refined = objective.model.sample(x, steps=4, sigma_start=1.0, seeds=seeds)
    coords = batch.coords - batch.coords.mean(1, keepdim=True)
    error = (refined - coords @ procrustes(coords, refined)).norm() / coords.norm()
    assert error < 0.1
