import numpy as np
import pytest
import torch

from spatialgears.config import Config
from spatialgears.errors import RunError, TrainingError
from spatialgears.expression import training
from spatialgears.expression.encoder import Encoder
from spatialgears.expression.normalise import log_normalise
from spatialgears.expression.panel import build_panel
from spatialgears.expression.reference import knn_places, reference_encoder
from spatialgears.expression.training import train_encoder


class Interrupted(Exception):
    pass


def config_of(**values):
    small = {"epochs": 6, "batch_size": 40, "embed_dim": 8}
    if not values.get("residual", True):  # the paper's own terms
        small |= {
            "anchor": 0.0,
            "lambda_inv": 25.0,
            "lambda_var": 25.0,
            "lambda_cov": 1.0,
            "mmd": 20.0,
            "coral": 1.0,
        }
        small |= {"adversary": 1.0, "slide_adversary": 50.0, "local_alignment": 4.0}
    small |= {"grl_warmup_epochs": 1, "grl_ramp_epochs": 2}
    return Config().with_values({"expression": small | values})


def train(tiny, config, **options):
    panel, columns = build_panel(
        tiny.slides, tiny.coords, tiny.cells, genes=tiny.genes, config=config.expression
    )
    slides, cells = [x[:, columns] for x in tiny.slides], tiny.cells[:, columns]
    return train_encoder(
        slides, [cells[:80], cells[80:]], panel, coords=tiny.coords, config=config, seed=1, **options
    )


@pytest.mark.parametrize("residual", [True, False])
def test_an_interrupted_training_goes_on_bit_for_bit(tiny, tmp_path, residual):
    config = config_of(residual=residual, embedding="encoder")
    whole = train(tiny, config)
    seen = []

    def interrupt(stage, done, total, values):
        seen.append(done)
        if done == total // 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(tiny, config, checkpoint=tmp_path, progress=interrupt)
    seen.clear()
    again = train(tiny, config, checkpoint=tmp_path, progress=lambda stage, done, *_: seen.append(done))
    assert 1 < seen[0] <= seen[-1] // 2 + 1
    assert all(torch.equal(v, again.encoder.state_dict()[k]) for k, v in whole.encoder.state_dict().items())
    assert again.history == whole.history
    with pytest.raises(RunError, match="another configuration"):
        train(tiny, config_of(residual=residual, lr=2e-4), checkpoint=tmp_path)
    with pytest.raises(RunError, match="another configuration, seed or data"):
        train(tiny, config, checkpoint=tmp_path, data="other")


def test_every_term_is_trained_and_every_parameter_reached(tiny):
    fit = train(tiny, config_of(residual=False))
    terms = {
        "invariance",
        "variance",
        "covariance",
        "adversary",
        "slide adversary",
        "mmd",
        "coral",
        "local alignment",
    }
    assert terms < set(fit.history), terms - set(fit.history)
    assert len(fit.history["probe"]) >= 1
    assert set(fit.summary()) == {"guard", "probe", "mixing"}
    assert not any(p.requires_grad for p in fit.encoder.parameters())


def test_the_guard_keeps_the_reference_when_the_embedding_is_empty(tiny, monkeypatch):
    monkeypatch.setattr(training, "HIDDEN", (2,))
    useless = train(tiny, config_of(residual=False, epochs=1, embed_dim=2))
    assert useless.guard.choice == "reference" and not useless.guard.forced
    assert useless.guard.reference["slides"] > useless.guard.encoder["slides"]
    assert train(tiny, config_of(residual=False, epochs=1, embed_dim=2, embedding="encoder")).guard.forced


def test_a_linear_start_is_no_worse_than_the_reference(tiny):
    fit = train(tiny, config_of(epochs=1))
    assert fit.guard.encoder["slides"] > fit.guard.reference["slides"] - 0.05


def test_training_stops_at_a_loss_that_is_not_finite(tiny, monkeypatch):
    monkeypatch.setattr(
        training.Objective, "forward", lambda *_: {"mmd": torch.tensor(torch.nan, requires_grad=True)}
    )
    with pytest.raises(TrainingError, match=r"mmd .* step 0"):
        train(tiny, config_of())


def test_an_encoder_is_its_state_in_any_order(tiny):
    encoder = Encoder(
        6, 3, hidden=[5, 4], basis=torch.randn(9, 6), start=torch.randn(6, 3), scale=torch.rand(3)
    )
    torch.nn.init.normal_(encoder.mlp[-1].weight)
    state = dict(sorted(encoder.state_dict().items(), reverse=True))
    x = torch.randn(7, 9)
    assert torch.equal(Encoder.from_state(state).embed(x), encoder.embed(x))


def test_the_reference_places_cells(tiny):
    panel, columns = build_panel(
        tiny.slides, tiny.coords, tiny.cells, genes=tiny.genes, config=config_of().expression
    )
    from spatialgears.expression.views import SpotViews, cell_features

    depths = np.asarray(tiny.cells.sum(1)).ravel()
    expression = config_of().expression
    views = SpotViews([x[:, columns] for x in tiny.slides], depths, panel, config=expression, seed=0)
    encoder = reference_encoder(views.clean())
    z = encoder.embed(views.clean())
    query = encoder.embed(cell_features(tiny.cells[:, columns], panel, expression)[0])
    places = knn_places([z[:90]], tiny.coords[:1], query)
    assert np.corrcoef(places[:, 0], tiny.places[:, 0])[0, 1] > 0.8


def test_a_mixture_stops_training_with_an_adversary_and_stays_stopped(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "MIXED", 1.0)
    config = config_of(residual=False)
    fit = train(tiny, config, checkpoint=tmp_path)
    ramped = 3 * 9  # epochs of warm-up and ramp; 170 spots, 20 in a batch
    assert ramped - 2 <= fit.history["probe_step"][-1] <= ramped
    seen = []
    again = train(tiny, config, checkpoint=tmp_path, progress=lambda stage, done, *_: seen.append(done))
    assert max(seen, default=ramped) <= ramped and again.history == fit.history
    without = train(tiny, config_of())
    assert without.history["probe_step"][-1] > ramped


def test_the_probe_that_ends_training_looks_often_however_long_that_is(tiny, monkeypatch):
    monkeypatch.setattr(training, "N_PROBES", 1)
    monkeypatch.setattr(training, "PROBE_EPOCHS", 1)
    monkeypatch.setattr(training, "MIXED", 1.0)
    fit = train(tiny, config_of(residual=False))
    assert fit.history["probe_step"] == [9, 18, 27]  # each epoch, until the adversary is at full strength


def test_values_that_are_not_counts_are_embedded_too(tiny):
    config = config_of()
    slides = [log_normalise(x) for x in tiny.slides]
    panel, columns = build_panel(
        slides, tiny.coords, log_normalise(tiny.cells), genes=tiny.genes, config=config.expression, raw=False
    )
    slides, cells = [x[:, columns] for x in slides], log_normalise(tiny.cells)[:, columns]
    fit = train_encoder(slides, [cells], panel, coords=tiny.coords, config=config, seed=1, raw=False)
    assert fit.guard.encoder["slides"] > 0.8
