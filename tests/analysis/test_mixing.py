from __future__ import annotations

import anndata as ad
import numpy as np
import pytest

import spatialgears as sg
from spatialgears.errors import InputError


@pytest.fixture
def profiles():
    rng = np.random.default_rng(0)
    adata = ad.AnnData(obs={"slide": np.repeat(["a", "b", "c"], [300, 100, 200]), "cohort": ["x", "y"] * 300})
    adata.obsm["after"] = rng.normal(size=(600, 6))
    adata.obsm["before"] = adata.obsm["after"] + 8 * (adata.obs["slide"] == "a").to_numpy()[:, None]
    return adata


def test_mixed_and_separate_groups_have_known_scores(profiles):
    table = sg.tl.mixing(profiles, ["slide", "cohort"], basis=["before", "after"])
    assert list(table.index) == [
        ("before", "slide"),
        ("after", "slide"),
        ("before", "cohort"),
        ("after", "cohort"),
    ]
    mixed = table.loc[("after", "slide")]
    assert mixed["neighbour_entropy_balanced"] > 0.9 and abs(mixed["probe"] - 0.5) < 0.06
    assert table.loc[("before", "slide"), "neighbour_entropy"] < 0.5 < mixed["neighbour_entropy"]
    assert table.loc[("before", "slide"), "probe"] > 0.65  # a is told apart for certain, b and c from a only
    assert table.loc[("before", "cohort"), "neighbour_entropy"] > 0.9
    expected = sg.metrics.mixing(profiles.obsm["after"], profiles.obs["slide"], k=20)
    assert {name: mixed[name] for name in expected} == pytest.approx(expected)
    assert table["n"].tolist() == [600] * 4 and table["n_groups"].tolist() == [3, 3, 2, 2]


def test_a_part_stands_for_the_whole_and_says_so(profiles):
    whole, part = (sg.tl.mixing(profiles, "cohort", basis="after", max_cells=n).iloc[0] for n in (600, 300))
    assert (whole["n"], part["n"]) == (600, 300)
    assert part["neighbour_entropy"] == pytest.approx(whole["neighbour_entropy"], abs=0.03)


def test_unlabelled_profiles_are_left_out(profiles):
    profiles.obs.loc[profiles.obs_names[:50], "cohort"] = None
    assert sg.tl.mixing(profiles, "cohort", basis="after")["n"].item() == 550


def test_errors_name_what_there_is(profiles):
    with pytest.raises(InputError, match="'slide', 'cohort'"):
        sg.tl.mixing(profiles, "batch", basis="after")
    with pytest.raises(InputError, match="'after', 'before'"):
        sg.tl.mixing(profiles, "slide", basis="X_pca")
    with pytest.raises(InputError, match="one group, 'a'"):
        sg.tl.mixing(profiles[:100], "slide", basis="after")
