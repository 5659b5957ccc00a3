import numpy as np
import pytest
import torch

from spatialgears.config import Config
from spatialgears.supervision import canonicalise

TINY = {
    "seed": 0,
    "supervision": {"n_min": 12, "n_max": 20},
    "geometry": {
        "refiner": "residual",
        "input_dropout": 0.1,
        "hidden_dropout": 0.1,
        "hidden": 12,
        "width": 16,
        "inducing": 4,
        "context_blocks": 1,
        "generator_blocks": 1,
        "denoiser_blocks": 1,
        "reference": 32,
        "steps": 8,
        "batch_size": 2,
        "eval_every": 4,
        "refiner_steps": 0,
        "crossfit": 0,
        "slide_steps": 0,
    },
}


@pytest.fixture
def tiny():
    """A whole configuration small enough for tests; ``tiny(name=value, ...)`` changes its geometry part."""
    return lambda **changes: Config.from_dict(TINY).with_values({"geometry": changes})


@pytest.fixture
def mask():
    """Three sets of 20 places with 20, 15 and 9 real points."""
    return torch.arange(20) < torch.tensor([[20], [15], [9]])


class Tissue:
    """Spots whose features are noisy smooth functions of their place."""

    def __init__(self, *sizes, n_features=10):
        rng = np.random.default_rng(0)
        self.slides = [canonicalise(rng.random((n, 2)))[0] for n in sizes]
        plan = torch.from_numpy(rng.normal(size=(2, n_features))).float()
        self.features = torch.tanh(torch.from_numpy(np.concatenate(self.slides)).float() @ plan)
        self.n_features, self.drawn = n_features, []

    def draw(self, index, generator):
        self.drawn.append(index)
        return self.features[index] + 0.05 * torch.randn(*index.shape, self.n_features, generator=generator)


@pytest.fixture
def tissue():
    return Tissue(60, 50)


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
