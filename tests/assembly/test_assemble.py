from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from spatialgears.assembly import assemble as stage_d
from spatialgears.assembly import measure
from spatialgears.config import AssemblyConfig, Config
from spatialgears.errors import InputError
from spatialgears.geometry.features import Features

PATCHES = AssemblyConfig(mode="patches", patch_size=64, solve_steps=300)


def assemble(features, *args, **options):
    """Features that are the places themselves."""
    return stage_d.assemble(Features(torch.as_tensor(features)), *args, **options)


def change(config: AssemblyConfig, **options: object) -> AssemblyConfig:
    return config.model_copy(update=options)


def distances(coords: np.ndarray) -> np.ndarray:
    i, j = np.triu_indices(len(coords), 1)
    return np.linalg.norm(coords[i] - coords[j], axis=1)


@pytest.mark.parametrize("config", [PATCHES, change(PATCHES, mode="one-shot")], ids=["patches", "one-shot"])
def test_noise_free_geometry_recovers_the_configuration(config, tissue, true_places, off):
    places = tissue(700)
    found = assemble(places, true_places(), config, seed=0)
    assert found.coords.dtype == np.float32 and found.coords.shape == (700, 2)
    wrong = off(
        found.coords, places
    )  # through patches, some cells stay on the wrong side of their neighbours
    assert np.quantile(wrong, 0.9) < 0.02 if config.mode == "patches" else wrong.max() < 1e-3
    assert found.diagnostics["rms_radius"] == pytest.approx(1, abs=5e-3)  # the scale is kept


def test_wrong_patches_change_little_because_of_reliability(tissue, true_places, off):
    places = tissue(700)
    error = {}
    for weighted in (True, False):
        config = change(PATCHES, patch_size=128, reliability=weighted)
        found = assemble(places, true_places(wrong=0.1, noise=0.01), config, seed=1)
        error[weighted] = np.sqrt((off(found.coords, places) ** 2).mean())
    assert error[True] < 0.1 and error[False] > 1.5 * error[True], error


def test_one_pass_and_patches_agree(tissue, true_places):
    places = tissue(600)
    geometry = true_places(noise=0.02)
    one, many = (
        assemble(places, geometry, change(PATCHES, mode=mode), seed=0) for mode in ("one-shot", "patches")
    )
    assert (one.mode, many.mode) == ("one-shot", "patches")
    assert spearmanr(distances(one.coords), distances(many.coords)).statistic > 0.98


def test_auto_takes_one_pass_while_it_fits(tissue, true_places):
    places, geometry = tissue(300), true_places()
    needed = 300 * stage_d.pass_bytes(2) / 1e9
    assert (
        assemble(places, geometry, change(PATCHES, mode="auto", memory_gb=2 * needed), seed=0).mode
        == "one-shot"
    )
    parts = assemble(
        places, geometry, change(PATCHES, mode="auto", memory_gb=needed / 2, core_cells=100), seed=0
    )
    less = assemble(places, geometry, change(PATCHES, mode="auto", memory_gb=needed / 2), seed=0)
    assert less.mode == "parts" and "aligned to a core of 150" in less.status  # what fits in half the memory
    assert parts.mode == "parts" and "200 further cells" in parts.status
    assert spearmanr(distances(parts.coords), distances(places)).statistic > 0.999
    scant = assemble(places, geometry, change(PATCHES, mode="auto", memory_gb=needed / 300), seed=0)
    assert "aligned to a core of 64" in scant.status  # fewer than a patch would not show a tissue


@pytest.mark.parametrize(
    "config",
    [PATCHES, change(PATCHES, mode="auto", core_cells=150, memory_gb=3e-3)],
    ids=["patches", "parts"],
)
def test_batches_change_no_bit_and_seeds_do(config, tissue, true_places, monkeypatch):
    places = tissue(300)
    runs = []
    for batch in (1, 7, 1000):
        monkeypatch.setattr(measure, "BATCH", batch)
        runs.append(assemble(places, true_places(noise=0.1), config, seed=5))
    assert all(np.array_equal(runs[0].coords, run.coords) for run in runs)
    assert not np.array_equal(assemble(places, true_places(noise=0.1), config, seed=6).coords, runs[0].coords)
    same = assemble(torch.from_numpy(places), true_places(noise=0.1), config, seed=5)
    assert np.array_equal(same.coords, runs[0].coords)


SCRIPT = """
import hashlib, numpy as np, torch
from spatialgears.assembly.assemble import assemble
from spatialgears.config import AssemblyConfig
from spatialgears.geometry.features import Features
config = AssemblyConfig(mode="patches", patch_size=64, solve_steps=300)
x = np.random.default_rng(0).normal(size=(300, 5)).astype(np.float32)
found = assemble(Features(torch.from_numpy(x)), lambda f, mask, seeds: f.seen.tanh(), config, seed=3)
print(hashlib.sha256(found.coords.tobytes()).hexdigest())
"""


def test_a_new_process_gives_the_same_answer(capsys):
    other = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True).stdout
    x = np.random.default_rng(0).normal(size=(300, 5)).astype(np.float32)
    here = assemble(x, lambda f, mask, seeds: f.seen.tanh(), PATCHES, seed=3)
    assert other.strip() == hashlib.sha256(here.coords.tobytes()).hexdigest()


def check(found, n: int) -> None:
    assert found.coords.shape == (n, 2) and np.isfinite(found.coords).all()
    assert found.status.endswith(".") and f"{n:,} cells" in found.status


@pytest.mark.parametrize("mode", ["auto", "one-shot", "patches"])
@pytest.mark.parametrize("n", [1, 2, 3, 20, 63, 64])
def test_fewer_cells_than_a_patch(n, mode, tissue, true_places, off):
    places = tissue(max(n, 2))[:n]
    found = assemble(places, true_places(), change(PATCHES, mode=mode), seed=0)
    check(found, n)
    stitched = mode == "patches" and n >= 5
    assert found.mode == ("patches" if stitched else "one-shot")
    assert off(found.coords, places).max() < (0.1 if stitched else 1e-4)


def test_cells_that_fit_in_one_patch_are_stitched_all_the_same(tissue, true_places):
    """Steps 5 to 7: ten geometries of all cells are aggregated, and the noise averages out."""
    places, noisy = tissue(60), true_places(noise=0.1)
    found = assemble(places, noisy, change(PATCHES, coverage=10), seed=0)
    assert found.diagnostics["patches"] == 10 and found.diagnostics["support"] > 5
    one = assemble(places, noisy, change(PATCHES, mode="one-shot"), seed=0)
    scores = [spearmanr(distances(places), distances(each.coords)).statistic for each in (found, one)]
    assert scores[0] > scores[1]


@pytest.mark.parametrize("n", [20, 65, 70])
def test_small_patches_of_few_cells(n, tissue, true_places):
    size = 8 if n == 20 else 64
    check(assemble(tissue(n), true_places(), change(PATCHES, patch_size=size), seed=0), n)


def test_awkward_cells_are_placed(tissue, true_places, off):
    rng = np.random.default_rng(0)
    places = tissue(400)
    islands = np.where(np.arange(400)[:, None] < 150, 0.0, 1e3) + rng.normal(size=(400, 4))
    check(assemble(places, true_places(), PATCHES, locality=islands, seed=0), 400)
    lonely = rng.normal(size=(400, 60)) * 10.0 ** rng.integers(0, 4, size=(400, 1))
    found = assemble(places, true_places(), PATCHES, locality=lonely, seed=0)
    check(found, 400)
    assert found.diagnostics["isolated"] > 0 and "no robust neighbour" in found.status
    assert np.quantile(off(found.coords, places), 0.9) < 0.05
    duplicates = np.repeat(tissue(100), 4, axis=0)
    found = assemble(duplicates, true_places(), PATCHES, seed=0)
    check(found, 400)
    spread = np.ptp(found.coords.reshape(100, 4, 2), axis=1).max(1)
    assert np.quantile(spread, 0.9) < 0.02


@pytest.mark.parametrize("config", [PATCHES, change(PATCHES, mode="one-shot")], ids=["patches", "one-shot"])
def test_cells_that_all_look_alike_are_placed_in_one_place_and_it_is_said(config, true_places):
    found = assemble(np.ones((200, 3), np.float32), true_places(collapse=True), config, seed=0)
    check(found, 200)
    assert "at one point" in found.status and np.abs(found.coords).max() < 1e-3


def test_many_cells_are_laid_on_a_core(tissue, true_places, off):
    places = tissue(1500)
    config = change(PATCHES, mode="auto", memory_gb=0.01, core_cells=300)
    found = assemble(places, true_places(), config, seed=0)
    assert off(found.coords, places).max() < 1e-3
    assert "1,200 further cells" in found.status and "extend" in found.profile


def test_no_cells_are_refused():
    with pytest.raises(InputError, match="no cells"):
        assemble(np.zeros((0, 3), np.float32), lambda *args: args[0], PATCHES, seed=0)


def test_profile_and_progress_tell_each_step(tissue, true_places):
    seen: list[tuple[str, int, int]] = []
    found = assemble(
        tissue(300), true_places(), PATCHES, seed=0, progress=lambda *args: seen.append(args[:3])
    )
    assert set(found.profile) == {"network", "graph", "patches", "measure", "stitch", "start", "solve"}
    assert all(seconds >= 0 for seconds in found.profile.values())
    assert {stage for stage, _, _ in seen} == {"patches", "solve"} and seen[-1][1] == seen[-1][2]
    assert found.diagnostics["stress"][-1] < 0.05 and found.diagnostics["edges"] > 300


def test_the_paper_preset_stitches_patches(tissue, true_places, off):
    paper = Config.preset("paper").assembly
    places = tissue(500)
    found = assemble(places, true_places(), change(paper, patch_size=128, solve_steps=300), seed=0)
    assert found.mode == "patches" and np.quantile(off(found.coords, places), 0.9) < 1e-2
