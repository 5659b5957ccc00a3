import copy

import pytest
import torch

from spatialgears.geometry.ensemble import Ensemble, dropout_spread
from spatialgears.geometry.features import Features
from spatialgears.geometry.model import GeometryModel
from spatialgears.geometry.nearest import NearestSpots
from spatialgears.geometry.networks import _dropped
from spatialgears.runtime.seeds import torch_rng
from spatialgears.supervision.targets import centre, procrustes


@pytest.fixture
def make(tiny):
    """An ensemble of untrained members, of which only the first has a refiner."""

    def make(members=3, refiner="residual"):
        plain, lead = (tiny(refiner=one, refiner_steps=2).geometry for one in ("none", refiner))
        torch.manual_seed(1)
        return Ensemble([GeometryModel(10, 6, plain if i else lead) for i in range(members)]).eval()

    return make


def gram(v):
    return v @ v.mT


SAMPLE = {"steps": 3, "sigma_start": 1.0, "seeds": torch.tensor([5, 6, 7])}


@torch.no_grad()
def test_order_of_points_does_not_matter(make):
    ensemble, x = make(), torch.randn(3, 20, 10)
    order = torch.randperm(20)
    torch.testing.assert_close(
        ensemble(Features(x[:, order])), ensemble(Features(x))[:, order], atol=1e-5, rtol=1e-4
    )


@torch.no_grad()
def test_padding_does_not_matter(make, mask):
    ensemble, x = make(), torch.randn(3, 20, 10)
    padded = torch.where(mask[..., None], x, 1e3)
    found = ensemble(Features(padded), mask)
    assert (found[~mask] == 0).all()
    for row, size in enumerate(mask.sum(1).tolist()):
        alone = ensemble(Features(x[row : row + 1, :size]))
        torch.testing.assert_close(gram(found[row : row + 1, :size]), gram(alone), atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_padding_does_not_matter_to_samples(make, mask):
    ensemble, x = make(), torch.randn(3, 20, 10)
    found = ensemble.sample(Features(x), mask, **SAMPLE)
    again = ensemble.sample(Features(torch.where(mask[..., None], x, 1e3)), mask, **SAMPLE)
    torch.testing.assert_close(found[mask], again[mask], atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_sets_of_a_batch_do_not_know_each_other(make):
    ensemble, x = make(), torch.randn(3, 20, 10)
    one = ensemble.sample(Features(x[1:2]), **(SAMPLE | {"seeds": SAMPLE["seeds"][1:2]}))
    torch.testing.assert_close(ensemble.sample(Features(x), **SAMPLE)[1:2], one, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_the_mean_of_equal_members_is_the_member(make):
    member = make(1).lead
    x = torch.randn(3, 20, 10)
    mean = Ensemble([member, copy.deepcopy(member), copy.deepcopy(member)]).eval()(Features(x))
    torch.testing.assert_close(gram(mean), gram(member(x)), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_members_that_differ_by_a_turn_agree(make):
    """Each member is brought to the first one's frame: a turned copy changes nothing."""
    member, x = make(1).lead, torch.randn(3, 20, 10)
    turn = torch.linalg.qr(torch.randn(6, 6)).Q

    class Turned(GeometryModel):
        def forward(self, x, mask=None):
            return super().forward(x, mask) @ turn

    turned = copy.deepcopy(member)
    turned.__class__ = Turned
    torch.testing.assert_close(
        Ensemble([member, turned]).eval()(Features(x)), member(x), atol=1e-4, rtol=1e-4
    )


@torch.no_grad()
def test_different_members_are_turned_before_they_are_averaged(make):
    ensemble, x = make(3), torch.randn(3, 20, 10)
    first, *rest = ensemble.bases(x)
    for base, member in zip(rest, list(ensemble.members)[1:], strict=True):
        torch.testing.assert_close(gram(base), gram(member(x)), atol=1e-4, rtol=1e-4)
        assert (base - first).norm() <= (member(x) - first).norm() + 1e-4
    torch.testing.assert_close(ensemble(Features(x)).mean(1), torch.zeros(3, 6), atol=1e-5, rtol=0)


@torch.no_grad()
def test_no_steps_or_no_refiner_gives_the_mean_itself(make):
    x = torch.randn(3, 20, 10)
    ensemble, plain = make(), make(refiner="none")
    torch.testing.assert_close(ensemble.sample(Features(x), **(SAMPLE | {"steps": 0})), ensemble(Features(x)))
    torch.testing.assert_close(plain.sample(Features(x), **SAMPLE), plain(Features(x)))


@torch.no_grad()
def test_samples_follow_their_seeds(make):
    ensemble, x = make(), torch.randn(3, 20, 10)
    one = ensemble.sample(Features(x), **SAMPLE)
    assert torch.equal(one, ensemble.sample(Features(x), **SAMPLE))
    other = ensemble.sample(Features(x), **(SAMPLE | {"seeds": torch.tensor([5, 6, 8])}))
    assert torch.equal(one[:2], other[:2]) and not torch.equal(one[2], other[2])


def test_spread_is_of_dropout_alone_and_the_same_each_time(tiny):
    x = torch.randn(30, 10)
    wobbly, firm = (
        GeometryModel(10, 6, tiny(input_dropout=p, hidden_dropout=p, refiner="none").geometry).eval()
        for p in (0.5, 0.0)
    )
    assert dropout_spread(firm, x, seed=1).max() < 0.1 * dropout_spread(wobbly, x, seed=1).min()
    ensemble, state = Ensemble([wobbly, firm]), torch.random.get_rng_state()
    spread = ensemble.spread(Features(x), seed=3)
    assert torch.equal(spread, ensemble.spread(Features(x), seed=3)) and not torch.equal(
        spread, ensemble.spread(Features(x), seed=4)
    )
    assert torch.equal(torch.random.get_rng_state(), state) and not wobbly.context.project.training


def test_the_spread_of_a_known_wobble(tiny):
    """The scatter of the passes about their mean, by hand."""
    x = torch.randn(25, 10)
    model = GeometryModel(10, 6, tiny(input_dropout=0.3, refiner="none").geometry).eval()
    hide = torch_rng(7, "dropout")
    with torch.no_grad():
        passes = [model.generate(model.context(x[None], hide=hide))[0] for _ in range(8)]
    turned = torch.stack([v @ procrustes(v, passes[0]) for v in passes])
    slow = (turned - turned.mean(0)).square().sum(-1).sum(0).div(7).sqrt()
    torch.testing.assert_close(dropout_spread(model, x, seed=7), slow, rtol=1e-3, atol=1e-5)


def test_hidden_values_are_as_many_as_in_training_and_the_rest_make_up_for_them(tiny):
    model = GeometryModel(400, 6, tiny(input_dropout=0.25, hidden=0, refiner="none").geometry).eval()
    model.context.project[1] = torch.nn.Identity()
    x = torch.ones(500, 400)
    seen = _dropped(model.context.project, torch_rng(0), x)
    assert float((seen == 0).float().mean()) == pytest.approx(0.25, abs=0.01)
    assert float(seen.mean()) == pytest.approx(1, abs=0.01)
    assert torch.equal(_dropped(model.context.project, torch_rng(0), x), seen)


def test_sets_too_large_for_one_pass_are_parted(tiny, monkeypatch):
    x = torch.randn(50, 10)
    model = GeometryModel(10, 6, tiny(input_dropout=0.5, refiner="none").geometry).eval()
    whole = Ensemble([model]).spread(Features(x), seed=0)
    monkeypatch.setattr("spatialgears.geometry.ensemble.SPREAD_CELLS", 20)
    parted = Ensemble([model]).spread(Features(x), seed=0)
    assert bool(parted.isfinite().all()) and 0.5 < float(parted.mean() / whole.mean()) < 2


def test_the_noise_of_members_is_what_they_differ_by(tiny):
    """Members whose places differ by known noise, in units of a known spread."""
    x = torch.randn(4000, 10)

    class Known(GeometryModel):
        def forward(self, x, mask=None):
            rng = torch.Generator().manual_seed(self.number)
            return torch.cat([x[..., :2], torch.zeros(*x.shape[:-1], 4)], -1) + 0.1 * torch.randn(
                *x.shape[:-1], 6, generator=rng
            )

    members = [GeometryModel(10, 6, tiny(refiner="none").geometry).eval() for _ in range(3)]
    for number, member in enumerate(members):
        member.__class__, member.number = Known, number
    ensemble = Ensemble(members)
    ensemble.spread = lambda x, seed: torch.full((len(x),), 0.5)
    variance = 0.01 * 6 * 2 / 3  # of six dimensions, about the mean of three
    assert ensemble.noise(Features(x), seed=0) == pytest.approx(variance / 0.25, rel=0.15)
    assert Ensemble(members[:1]).noise(Features(x[:50]), seed=0) == 0


@torch.no_grad()
def test_nearest_spots_are_guided_by_the_mean_and_members_do_not_see_the_embedding(tiny):
    z, places = torch.randn(100, 3), torch.randn(100, 2)
    spots = NearestSpots(z, places, torch.arange(100) % 2, torch.arange(100))
    model = GeometryModel(10, 6, tiny(refiner="none").geometry).eval()
    x = torch.randn(1, 50, 10)
    alone, seen = Features(x), Features(x, z[None, :50])
    plain, mixed = Ensemble([model]).eval(), Ensemble([model], spots).eval()
    torch.testing.assert_close(mixed(seen), plain(alone))  # a reach of zero
    spots.reach.fill_(0.5)
    torch.testing.assert_close(mixed(seen), centre(spots(z[None, :50], plain(alone))))
    assert (mixed(seen) - plain(alone)).abs().max() > 0.1
    assert torch.equal(mixed.spread(seen[0], seed=0), plain.spread(alone[0], seed=0))


@pytest.mark.parametrize("members", [11, 12, 20])
def test_many_members_have_a_spread(make, members):
    spread = make(members, refiner="none").spread(Features(torch.randn(30, 10)), seed=0)
    assert torch.isfinite(spread).all() and (spread > 0).all()
