"""The published method from slides to the report, at toy size and with everything on."""

from __future__ import annotations

import numpy as np
import pytest

from spatialgears.config import Config
from spatialgears.geometry import training
from spatialgears.model import GEARS
from spatialgears.report import write_report

#: Sizes and lengths only: what the method is made of stays as in the preset.
TOY = {
    "threads": 1,
    "expression": {
        "max_steps": 30,
        "batch_size": 32,
        "embed_dim": 16,
        "grl_warmup_epochs": 1,
        "grl_ramp_epochs": 1,
    },
    "supervision": {"n_min": 24, "n_max": 32},
    "geometry": {
        "steps": 30,
        "width": 16,
        "inducing": 4,
        "context_blocks": 1,
        "generator_blocks": 1,
        "denoiser_blocks": 1,
        "reference": 32,
        "batch_size": 2,
    },
    "assembly": {"patch_size": 40, "steps": 3, "solve_steps": 60},
}


@pytest.fixture(scope="module")
def drawn():
    """The noise of every training step."""
    return []


@pytest.fixture(scope="module")
def fitted(small_tissue, drawn):
    def spy(*args, **options):
        noise = draw_noise(*args, **options)
        drawn.append(noise)
        return noise

    draw_noise = training.draw_noise
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "draw_noise", spy)
        config = Config.preset("paper-small").with_values(TOY)
        return GEARS(config).fit(small_tissue.slides, small_tissue.cells)


def test_stage_a_trains_with_every_loss_of_the_paper(fitted):
    losses = {key.removeprefix("encoder/") for key in fitted.history_}
    assert losses >= {
        "invariance", "variance", "covariance", "adversary", "slide adversary", "mmd", "coral", "local alignment",
    }  # fmt: skip


def test_stage_c_trains_jointly_on_pairs_with_every_loss(fitted):
    losses = {key.removeprefix("joint/") for key in fitted.history_ if key.startswith("joint/")}
    assert losses >= {
        "score", "gram", "gram_scale", "nca", "local_scale", "gen_align", "gen_gram", "gen_scale",
        "overlap_shape", "overlap_scale", "overlap_kl",
    }  # fmt: skip


def test_noise_follows_the_curriculum_and_half_of_the_steps_are_self_conditioned(drawn, fitted):
    assert len(drawn) == 30
    highest = [max(float(noise.level.max()) for noise in drawn[i : i + 10]) for i in (0, 10, 20)]
    assert highest[0] < 1 < highest[1] < 3 < highest[2] < 5
    assert 5 < sum(noise.self_condition for noise in drawn) < 25


def test_stage_d_stitches_patches_and_the_report_is_written(fitted, small_tissue, tmp_path):
    placed = fitted.reconstruct(small_tissue.cells)
    found = placed.diagnostics
    assert found["mode"] == "patches" and found["patches"] > 10 and found["support"] >= 2
    assert found["disagreement"] > 0 and 0 < found["reliability_min"] < 1
    assert (
        len(found["stress"]) > 1 and found["stress"][-1] < found["stress"][0]
    )  # from Isomap to the Huber solve
    assert np.isfinite(placed.coords).all() and np.ptp(placed.coords, axis=0).min() > 0
    path = tmp_path / "report.html"
    write_report(path, fitted, placed, cells=small_tissue.cells, slides=small_tissue.slides)
    assert "patches" in path.read_text(encoding="utf-8")
