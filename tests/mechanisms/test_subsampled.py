"""Theorems 3 and 4, corrected, against numerical integration."""

import dp_accounting
import hypothesis.strategies as st
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given

from tacita.mechanisms import (
    diagonal_gaussian_renyi,
    gaussian_renyi,
    laplace_renyi,
    sampled_gaussian_cost,
    subsampled_cost,
)
from tacita.papers import sampled_gaussian_reverse, subsampled_forward_as_printed

RATES = st.sampled_from([1e-4, 0.01, 0.3, 1.0])
ORDERS = st.integers(1, 256)
RATIOS = st.floats(0.0, 4.0)


def normal(w, mean=0, sd=1):
    return mp.exp(-((w - mean) ** 2) / (2 * mp.mpf(sd) ** 2)) / (sd * mp.sqrt(2 * mp.pi))


def laplace(w, mean=0, b=1):
    return mp.exp(-abs(w - mean) / b) / (2 * b)


def log_moment(p, q, order, breaks):
    """log ∫ p (p/q)^order by quadrature: order · D_{order+1}(p‖q)."""
    return mp.log(mp.quad(lambda w: p(w) * (p(w) / q(w)) ** order, breaks))


@pytest.mark.parametrize("rate", [0.01, 0.2, 1.0])
@pytest.mark.parametrize("ratio", [0.05, 0.5, 1.5])
@pytest.mark.parametrize("order", [1, 2, 5, 12])
def test_theorem_3_equals_integration_in_both_directions(rate, ratio, order):
    mp.mp.dps = 30
    breaks = [-20, -5, 0, 5, order * ratio, (order + 1) * ratio + 5, (order + 1) * ratio + 20]

    def mixed(w):
        return (1 - rate) * normal(w) + rate * normal(w, ratio)

    forward = float(log_moment(mixed, normal, order, sorted(breaks)))
    reverse = float(log_moment(normal, mixed, order, sorted([-b for b in breaks] + breaks)))
    cost = float(sampled_gaussian_cost(order, sample_rate=rate, ratio=ratio))
    assert cost == pytest.approx(forward, rel=1e-8)
    assert reverse <= cost * (1 + 1e-8)  # the other direction never decides
    assert float(sampled_gaussian_reverse(order, sample_rate=rate, ratio=ratio)) >= reverse * (1 - 1e-8)


@pytest.mark.parametrize("order", [1, 8, 64, 256])
@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 50.0])
def test_cost_at_the_clip_bound_equals_dp_accounting(order, rate, sigma):
    accountant = dp_accounting.rdp.RdpAccountant(orders=[order + 1])
    accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma)))
    cost = float(sampled_gaussian_cost(order, sample_rate=rate, ratio=1 / sigma))
    # dp-accounting cancels at tiny costs (1e-16 absolute); mpmath decides there, in the next test.
    assert cost == pytest.approx(order * float(accountant.rdp[0]), rel=1e-9, abs=1e-13)


@pytest.mark.parametrize("order", [1, 7, 100])
@pytest.mark.parametrize("rate", [1e-5, 0.02, 0.9])
@pytest.mark.parametrize("ratio", [1e-6, 1e-3, 0.3, 3.0])
def test_cost_keeps_its_relative_accuracy_at_small_ratios(order, rate, ratio):
    mp.mp.dps = 50
    q, r, n = mp.mpf(rate), mp.mpf(ratio), order + 1
    exact = mp.log(
        mp.fsum(mp.binomial(n, k) * q**k * (1 - q) ** (n - k) * mp.exp((k * k - k) * r * r / 2) for k in range(n + 1))
    )
    assert float(sampled_gaussian_cost(order, sample_rate=rate, ratio=ratio)) == pytest.approx(float(exact), rel=1e-9)


def gaussian_pair(ratio):
    return {"forward": lambda k: gaussian_renyi(k, ratio=ratio), "reverse": lambda k: gaussian_renyi(k, ratio=ratio)}


@pytest.mark.parametrize("rate", [0.01, 0.3])
@pytest.mark.parametrize("order", [1, 4, 9])
def test_corrected_theorem_4_gives_back_theorem_3_and_the_printed_form_does_not(rate, order):
    exact = float(sampled_gaussian_cost(order, sample_rate=rate, ratio=0.8))
    pair = gaussian_pair(0.8)
    corrected = subsampled_cost(order, sample_rate=rate, **pair)
    right = float(sampled_gaussian_reverse(order, sample_rate=rate, ratio=0.8))
    bounded = -order * np.log1p(-rate)
    assert corrected == pytest.approx(max(exact, min(right, bounded)), rel=1e-9)
    printed = subsampled_forward_as_printed(order, sample_rate=rate, forward=pair["forward"])
    assert printed > exact * 1.05


def test_theorem_4_for_laplace_bounds_both_directions():
    mp.mp.dps = 25
    rate, order, shift = 0.2, 3, 1.0
    points = [-60, -20, -5, 0, 1, 5, 20, 60]

    def mixed(w):
        return (1 - rate) * laplace(w) + rate * laplace(w, shift)

    forward = float(log_moment(mixed, laplace, order, points))
    reverse = float(log_moment(laplace, mixed, order, points))
    divergence = {
        "forward": lambda k: laplace_renyi(k, distance=shift, scale1=1.0),
        "reverse": lambda k: laplace_renyi(k, distance=shift, scale1=1.0),
    }
    cost = subsampled_cost(order, sample_rate=rate, **divergence)
    assert cost >= max(forward, reverse) * (1 - 1e-9)
    whole = subsampled_cost(order, sample_rate=1.0, **divergence)
    exact = float(log_moment(lambda w: laplace(w, shift), laplace, order, points))
    assert whole == pytest.approx(exact, rel=1e-8)


def test_theorem_4_with_unequal_variances_takes_the_larger_direction():
    mp.mp.dps = 25
    rate, order = 0.3, 2
    wide, narrow = (0.0, 1.05), (0.2, 1.0)
    points = [-30, -10, -3, 0, 3, 10, 30]

    def with_record(w):
        return (1 - rate) * normal(w, *narrow) + rate * normal(w, *wide)

    def without(w):
        return normal(w, *narrow)

    exact = [
        float(log_moment(with_record, without, order, points)),
        float(log_moment(without, with_record, order, points)),
    ]

    def divergence(first, second):
        return lambda k: diagonal_gaussian_renyi(
            k, mean1=[first[0]], stddev1=[first[1]], mean2=[second[0]], stddev2=[second[1]]
        )

    cost = subsampled_cost(order, sample_rate=rate, forward=divergence(wide, narrow), reverse=divergence(narrow, wide))
    assert cost >= max(exact) * (1 - 1e-9)


def test_infinite_divergences_stay_infinite_forward_and_bounded_in_reverse():
    def infinite(k):
        return float("inf")

    def finite(k):
        return 0.01 * k

    assert subsampled_cost(3, sample_rate=0.1, forward=infinite, reverse=finite) == float("inf")
    bounded = subsampled_cost(3, sample_rate=0.1, forward=finite, reverse=infinite)
    assert bounded == pytest.approx(-3 * np.log1p(-0.1))
    assert subsampled_cost(3, sample_rate=1.0, forward=finite, reverse=infinite) == float("inf")


@given(ORDERS, RATES, RATIOS, RATIOS)
def test_cost_grows_with_the_ratio_and_is_zero_at_zero(order, rate, one, other):
    low, high = sorted((one, other))
    costs = sampled_gaussian_cost(order, sample_rate=rate, ratio=np.array([0.0, low, high]))
    assert costs[0] == 0.0
    assert np.isfinite(costs).all()
    assert costs[1] <= costs[2] * (1 + 1e-12)


@given(ORDERS, RATES, RATIOS, RATIOS)
def test_cost_is_convex_in_the_squared_ratio(order, rate, one, other):
    squares = np.array([one**2, other**2, (one**2 + other**2) / 2])
    left, right, middle = sampled_gaussian_cost(order, sample_rate=rate, ratio=np.sqrt(squares))
    assert middle <= (left + right) / 2 * (1 + 1e-9) + 1e-14


@given(ORDERS, RATIOS)
def test_sampling_never_costs_more(order, ratio):
    costs = [float(sampled_gaussian_cost(order, sample_rate=q, ratio=ratio)) for q in (0.01, 0.1, 1.0)]
    assert costs == sorted(costs)


def test_replace_one_distances_in_the_add_remove_formula_understate():
    """Two records at 1 and 0.5: replacing one by the other, q=.01, σ=1, λ=8 (docs: differences)."""
    mp.mp.dps = 30
    rate, order = mp.mpf("0.01"), 8

    def law(shift):
        return lambda w: (1 - rate) * normal(w) + rate * normal(w, shift)

    truth = float(log_moment(law(1), law(mp.mpf("0.5")), order, [-10, -3, 0, 3, 8, 12, 20]))
    formula = float(sampled_gaussian_cost(8, sample_rate=0.01, ratio=0.5))
    assert truth / formula == pytest.approx(3.4, abs=0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": 0}, "order"),
        ({"order": 1.5}, "order must be a whole number"),
        ({"sample_rate": 0.0}, "not a probability"),
        ({"sample_rate": float("nan")}, "not a probability"),
        ({"ratio": -1.0}, "ratio"),
        ({"ratio": float("inf")}, "ratio"),
    ],
)
def test_bad_arguments_are_named(change, message):
    arguments = {"order": 2, "sample_rate": 0.1, "ratio": 1.0, **change}
    with pytest.raises(ValueError, match=message):
        sampled_gaussian_cost(arguments.pop("order"), **arguments)


def test_a_negative_divergence_is_refused():
    with pytest.raises(ValueError, match="divergence of order 2"):
        subsampled_cost(2, sample_rate=0.1, forward=lambda k: -1.0, reverse=lambda k: 1.0)
