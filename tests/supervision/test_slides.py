import numpy as np
import pytest

from spatialgears.errors import InputError
from spatialgears.supervision import canonicalise


def test_canonical_slides_are_centred_with_unit_rms_radius_and_go_back():
    slide = np.random.default_rng(0).normal([5e4, -3e3], [700, 90], size=(50, 2))
    coords, frame = canonicalise(slide)
    np.testing.assert_allclose(coords.mean(0), 0, atol=1e-10)
    np.testing.assert_allclose((coords**2).sum(1).mean(), 1)
    np.testing.assert_allclose(frame.to_slide(coords), slide)


def test_canonical_coordinates_do_not_depend_on_unit_or_origin():
    slide = np.random.default_rng(1).random((20, 2))
    np.testing.assert_allclose(canonicalise(slide)[0], canonicalise(250 * slide + 1e4)[0], atol=1e-8)


@pytest.mark.parametrize(
    ("coords", "message"),
    [
        (np.zeros((5, 3)), "shape"),
        (np.zeros((2, 2)), "shape"),
        (np.full((5, 2), 7.0), "one point"),
        (np.array([[0, 0], [1, np.nan], [2, 2], [np.inf, 1]]), "2 spots"),
    ],
)
def test_slides_that_cannot_be_used_are_refused(coords, message):
    with pytest.raises(InputError, match=message):
        canonicalise(coords)
