"""Two samples on one slide: what moved is found, and what did not is not."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import stats

import spatialgears as sg
from spatialgears.analysis.comparison import _different
from spatialgears.errors import InputError


@pytest.fixture
def slide():
    x, y = (part.ravel().astype(float) for part in np.meshgrid(np.arange(20), np.arange(20)))
    made = ad.AnnData(
        obs=pd.DataFrame(index=[f"s{i}" for i in range(400)]), obsm={"spatial": np.column_stack([x, y])}
    )
    made.obs["half"] = np.where(x < 10, "left", "right")
    return made


def sample(seed, *, shift=0.0, n=400, radius=0.5):
    """Cells of three types; those of type c lie on the left, further right by a shift."""
    rng = np.random.default_rng(seed)
    types = np.repeat(["a", "b", "c"], [n // 2, n // 4, n - n // 2 - n // 4])
    coords = rng.uniform(0, 19, (n, 2))
    coords[types == "c", 0] = rng.uniform(0, 6, (types == "c").sum()) + shift
    obs = pd.DataFrame({"cell_type": types, "gears_radius50": radius / 5}, index=[f"c{i}" for i in range(n)])
    made = ad.AnnData(obs=obs, obsm={"X_gears_slide": coords})
    made.uns["X_gears_slide"] = {"scale": 5.0}
    return made


def test_what_moved_is_found_and_by_how_much(slide):
    table = sg.tl.compare(sample(2), sample(3, shift=4.0), slide, n_draws=100)
    assert table.index.tolist() == ["a", "b", "c", "all cells"]
    moved = table.loc["c"]
    assert (
        moved["pvalue_adj"] < 0.05
        and moved["low"] < 4 < moved["high"]
        and moved["x"] == pytest.approx(4, abs=0.5)
    )
    assert (table.loc[["a", "b"], "pvalue_adj"] > 0.05).all() and (table.loc[["a", "b"], "low"] < 0).all()


def test_uncertain_places_are_weaker_evidence(slide):
    sure, unsure = (
        sg.tl.compare(sample(0, radius=r), sample(1, shift=1.0, radius=r), slide, n_draws=100).loc["c"]
        for r in (0.1, 20.0)
    )
    assert unsure["distance"] < sure["distance"] and unsure["low"] < 0 < sure["low"]
    assert unsure["high"] - unsure["low"] > 2 * (sure["high"] - sure["low"])


@pytest.mark.parametrize("spread", [0.0, 0.5, 5.0])
def test_p_is_uniform_for_one_sample_split_in_two(spread):
    """As it is not if the uncertainty of places is averaged away in what is found, but not in what chance gives."""
    p = []
    for seed in range(120):
        rng = np.random.default_rng(seed)
        coords = rng.uniform(0, 19, (120, 2)) * [1, rng.uniform(0.1, 1)]
        p.append(_different(coords, np.full(120, spread), int(rng.integers(20, 100)), rng)[1])
    assert stats.kstest(p, "uniform").pvalue > 0.01 and np.mean(np.array(p) <= 0.05) <= 0.1


def test_regions_gain_and_lose_types(slide):
    table = sg.tl.compare(sample(0), sample(1, shift=8.0), slide, regions="half", n_draws=50)
    gained = table.loc[("c", "right")]
    assert gained["first"] < 0.1 < 0.4 < gained["second"] and gained["low"] > 0.3
    same = table.loc[("a", "left")]
    assert abs(same["difference"]) < 0.15 and same["low"] < 0.05


def test_what_is_missing_is_named(slide):
    bare = sample(0)
    del bare.uns["X_gears_slide"]
    with pytest.raises(InputError, match="radius=None"):
        sg.tl.compare(bare, sample(1), slide)
    assert len(sg.tl.compare(bare, sample(1), slide, radius=None, n_draws=20)) == 4
    with pytest.raises(InputError, match="no obs column 'kind'"):
        sg.tl.compare(sample(0), sample(1), slide, key="kind")
