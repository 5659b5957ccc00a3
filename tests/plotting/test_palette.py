from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from spatialgears.plotting import palette

OKABE_ITO = {"#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"}
# Machado, Oliveira and Fernandes (2009), full severity, on linear RGB
DEUTERANOPIA = [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.011820, 0.042940, 0.968881],
]
PROTANOPIA = [
    [0.152286, 1.052583, -0.204868],
    [0.114503, 0.786281, 0.099216],
    [-0.003882, -0.048116, 1.051998],
]


def oklab(colors, seen_as=None):
    rgb = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in colors])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    if seen_as is not None:
        linear = np.clip(linear @ np.transpose(seen_as), 0, 1)
    lms = np.cbrt(
        linear
        @ np.transpose(
            [
                [0.4122214708, 0.5363325363, 0.0514459929],
                [0.2119034982, 0.6806995451, 0.1073969566],
                [0.0883024619, 0.2817188376, 0.6299787005],
            ]
        )
    )
    return lms @ np.transpose(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )


def closest(colors, seen_as=None):
    lab = oklab(colors, seen_as)
    distance = np.linalg.norm(lab[:, None] - lab[None], axis=2)
    return distance[np.triu_indices(len(lab), 1)].min()


def test_first_colours_are_those_of_okabe_and_ito():
    assert set(palette.CATEGORICAL[:8]) == OKABE_ITO


@pytest.mark.parametrize("seen_as", [None, DEUTERANOPIA, PROTANOPIA])
def test_colours_can_be_told_apart_under_each_vision(seen_as):
    assert closest(palette.CATEGORICAL[:8], seen_as) > 0.07
    assert closest([*palette.CATEGORICAL, palette.MISSING, "#FFFFFF"], seen_as) > 0.044


def test_two_dozen_labels_look_different_as_small_dots():
    assert closest([*palette.CATEGORICAL[:24], palette.MISSING, "#FFFFFF"]) > 0.12
    assert closest([*palette.CATEGORICAL, palette.MISSING, "#FFFFFF"]) > 0.09


def test_categories_keep_their_order_and_drop_the_unused():
    values = pd.Series(pd.Categorical(["b", "a", None, "b"], categories=["c", "b", "a"]))
    coded = palette.encode(values)
    assert coded.names == ["b", "a"]
    assert coded.codes.tolist() == [0, 1, -1, 0]
    assert coded.counts.tolist() == [2, 1]
    assert coded.colors == list(palette.CATEGORICAL[1:3])  # as where c occurs


def test_text_booleans_and_gaps():
    assert palette.encode(np.array(["z", np.nan, None, "a"], dtype=object)).codes.tolist() == [1, -1, -1, 0]
    assert palette.encode(np.array([True, False])).names == ["False", "True"]
    assert palette.is_categorical(np.array([True])) and not palette.is_categorical(np.array([1, 2]))


def test_rarest_of_too_many_labels_share_a_grey():
    sizes = np.arange(1, 51)
    labels = np.repeat([f"t{i:02d}" for i in range(50)], sizes)
    coded = palette.encode(labels)
    assert len(coded.names) == len(palette.CATEGORICAL) == len(coded.colors)
    assert coded.names[-1] == "11 others" and coded.colors[-1] == palette.OTHERS
    assert coded.counts[-1] == sizes[:11].sum() and coded.counts.sum() == len(labels)
    assert coded.names[:-1] == [f"t{i:02d}" for i in range(11, 50)]
    assert (coded.codes[labels == "t30"] == coded.names.index("t30")).all()


def test_limits_ignore_gaps_and_outliers_and_never_coincide():
    values = np.append(np.linspace(0, 1, 1000), [1e9, np.nan, np.inf])
    low, high = palette.limits(values)
    assert 0 < low < 0.02 and 0.98 < high < 1.01
    assert palette.limits(np.array([0.0, 5.0])) == (0.0, 5.0)
    assert palette.limits(np.append(np.zeros(1000), 3.0)) == (0.0, 3.0)
    assert palette.limits(np.full(3, 2.0)) == (2.0, 3.0)
    assert palette.limits(np.array([np.nan])) == (0.0, 1.0)
