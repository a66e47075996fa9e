"""The cap of a box holds for everything in it, and is reached."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from tacita.inference.box import Box, worst_divergences
from tacita.mechanisms.diagonal import Gaussians, renyi_divergences


def one(mean, scale):
    return Gaussians(np.atleast_2d(mean), np.atleast_2d(scale))


@settings(max_examples=100, deadline=None)
@given(
    bound=st.floats(0.0, 2.0),
    low=st.floats(0.3, 1.0),
    stretch=st.floats(1.0, 1.6),
    lam=st.floats(-2.0, 1.5),
    places=st.lists(st.floats(0.0, 1.0), min_size=8, max_size=8),
)
def test_nothing_in_the_box_is_above_its_cap(bound, low, stretch, lam, places):
    box = Box(bound=bound, low=low, high=low * stretch, dimension=2)
    place = np.array(places).reshape(2, 2, 2)
    pair = [Gaussians((2 * p[:1] - 1) * bound, low * (1 + (stretch - 1) * p[1:])) for p in place]
    assert all(box.holds(g) for g in pair)
    alpha = 1.0 + 10.0**lam
    cap = worst_divergences([alpha], box)[0]
    for p, q in (pair, pair[::-1]):
        assert renyi_divergences([alpha], p, q)[0, 0] <= cap


def test_the_cap_is_reached_at_a_corner_and_ends_with_existence():
    box = Box(bound=np.array([0.5, 0.1]), low=1.0, high=1.2, dimension=2)
    corner = renyi_divergences([2.0], one([0.5, 0.1], [1.2, 1.2]), one([-0.5, -0.1], [1.0, 1.0]))[0, 0]
    assert corner <= worst_divergences([2.0], box)[0] <= corner * (1 + 1e-4)
    border = 1.44 / 0.44
    caps = worst_divergences([border * 0.99, border, 10.0], box)
    assert np.isfinite(caps[0])
    assert np.isinf(caps[1:]).all()


def test_single_precision_stays_in_the_box_and_more_does_not():
    box = Box(bound=0.7, low=0.01, high=0.3, dimension=1)
    clipped = Gaussians(np.float32([[0.7], [-0.7]]), np.float32([[0.01], [0.3]]))
    assert box.holds(clipped)
    assert not box.holds(one(0.71, 0.1))
    assert not box.holds(one(0.0, 0.009))
    assert not box.holds(one(0.0, 0.31))


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="low <= high"):
        Box(bound=1.0, low=1.0, high=0.5, dimension=1)
    with pytest.raises(ValueError, match="3 of them"):
        Box(bound=np.ones(2), low=1.0, high=2.0, dimension=3)
    with pytest.raises(ValueError, match="coordinates"):
        Box(bound=1.0, low=1.0, high=2.0, dimension=3).holds(one(0.0, 1.0))
