"""The papers' theorems as printed, beside the exact costs."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from scipy.stats import norm

from tacita.accounting.levels import cost_table
from tacita.mechanisms import sampled_gaussian_cost
from tacita.papers import (
    classical_noise_multiplier,
    printed_cost_table,
    sampled_gaussian_cost_as_printed,
    sampled_gaussian_reverse,
    subsampled_forward_as_printed,
)

RATES = st.sampled_from([1e-4, 0.01, 0.3, 1.0])
ORDERS = st.integers(1, 256)
RATIOS = st.floats(0.0, 4.0)


@given(ORDERS, RATES, RATIOS)
def test_the_printed_maximum_is_always_its_right_side(order, rate, ratio):
    left = sampled_gaussian_cost(order, sample_rate=rate, ratio=ratio)
    printed = sampled_gaussian_cost_as_printed(order, sample_rate=rate, ratio=ratio)
    assert printed >= left
    assert printed == pytest.approx(float(sampled_gaussian_reverse(order, sample_rate=rate, ratio=ratio)), rel=1e-9)


def test_the_printed_table_is_never_below_the_exact_one():
    orders = (1, 8, 40)
    printed, exact = printed_cost_table(0.01, 1.0, orders), cost_table(0.01, 1.0, orders)
    assert printed.shape == exact.shape
    assert (printed >= exact).all()
    assert printed[0, -1] > 10 * exact[0, -1]


def test_a_divergence_that_is_none_is_refused():
    with pytest.raises(ValueError, match="a divergence"):
        subsampled_forward_as_printed(2, sample_rate=0.1, forward=lambda k: -1.0)
    assert subsampled_forward_as_printed(2, sample_rate=0.1, forward=lambda k: np.inf) == np.inf


@given(st.floats(0.01, 0.99), st.sampled_from([1e-3, 1e-5, 1e-10]))
def test_the_classical_noise_is_more_than_is_needed(epsilon, delta):
    sigma = classical_noise_multiplier(epsilon, delta=delta)
    exact = norm.cdf(0.5 / sigma - epsilon * sigma) - np.exp(epsilon) * norm.cdf(-0.5 / sigma - epsilon * sigma)
    assert exact < delta  # Balle & Wang 2018, eq. 6


def test_the_classical_noise_is_refused_where_it_is_not_proved():
    with pytest.raises(ValueError, match="calibrate_gaussian"):
        classical_noise_multiplier(1.0, delta=1e-5)
