"""Curves that are composed, against closed forms, enumeration of outcomes, and dp-accounting."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.special import ndtr
from scipy.stats import binom

from tacita.composition import compose
from tacita.profile import Profile


def gaussian_delta(eps, mu):
    return float(ndtr(mu / 2 - eps / mu) - math.exp(eps) * ndtr(-mu / 2 - eps / mu))


def hockey_stick(p, q, eps):
    return max(np.maximum(p - math.exp(eps) * q, 0).sum(), np.maximum(q - math.exp(eps) * p, 0).sum())


def product(rows, count):
    """All outcomes of `count` independent draws, by brute force."""
    return np.array([math.prod(chosen) for chosen in itertools.product(rows, repeat=count)])


@pytest.mark.parametrize(("mu", "count"), [(0.0363, 50), (0.5, 2), (1.0, 9), (0.01, 1000)])
def test_gaussians_are_one_gaussian(mu, count):
    made, whole = compose([(Profile.gaussian(mu), count)]), mu * math.sqrt(count)
    for eps in whole * np.array([0.0, 0.3, 1.0, 2.0, 3.5]):
        true = gaussian_delta(eps, whole)
        assert true <= made.delta(eps) <= 1.02 * true + 1e-4 * whole


def test_gaussians_of_different_sizes_add_up_by_their_squares():
    made = compose([(Profile.gaussian(0.3), 3), (Profile.gaussian(0.7), 1)])
    whole = math.sqrt(3 * 0.09 + 0.49)
    for eps in (0.0, 0.5, 1.5, 3.0):
        assert gaussian_delta(eps, whole) <= made.delta(eps) <= 1.02 * gaussian_delta(eps, whole) + 1e-4


@pytest.mark.parametrize(("epsilon", "count"), [(1.0, 2), (0.1, 10), (0.5, 30), (3.0, 4), (0.2, 1)])
def test_coins_are_a_binomial(epsilon, count):
    made, heads = compose([(Profile.of_pair(epsilon, 0.0), count)]), np.arange(count + 1)
    up = binom.pmf(heads, count, 1 / (1 + math.exp(-epsilon)))
    for eps in np.linspace(0.0, count * epsilon * 0.99, 23):
        true = hockey_stick(up, up[::-1], eps)
        assert true - 1e-15 <= made.delta(eps) <= 1.02 * true + 2e-4
    assert made.epsilon(1e-14) <= count * epsilon * (1 + 1e-12)


def test_a_leak_leaks_each_time():
    """Randomised response that shows everything with probability 0.01."""
    made, coin = compose([(Profile.of_pair(0.5, 0.01), 3)]), 0.99 / (1 + math.exp(-0.5))
    p, q = np.array([0.01, 0.0, coin, 0.99 - coin]), np.array([0.0, 0.01, 0.99 - coin, coin])
    for eps in (0.0, 0.4, 0.9, 1.4):
        true = hockey_stick(product(p, 3), product(q, 3), eps)
        assert true <= made.delta(eps) <= 1.01 * true + 1e-4
    assert made.delta(1.6) == pytest.approx(1 - 0.99**3, rel=0.02)
    assert made.delta(1.6) >= 1 - 0.99**3


def test_a_curve_of_one_direction_covers_both_and_every_product(rng):
    """Random mechanisms, whose two directions differ; every choice of direction is below the composed curve."""
    at = np.linspace(0.0, 3.0, 60)
    for _ in range(10):
        pairs = [rng.dirichlet(np.ones(4), size=2) for _ in range(3)]
        curves = [Profile.of_curve(lambda g, r=rows: np.array([hockey_stick(*r, e) for e in g]), at) for rows in pairs]
        made = compose([(curve, 1) for curve in curves])
        for signs in itertools.product((1, -1), repeat=3):
            turned = [rows[::sign] for rows, sign in zip(pairs, signs, strict=True)]
            p, q = (np.einsum("i,j,k", *(rows[i] for rows in turned)).ravel() for i in (0, 1))
            for eps in (0.0, 0.3, 1.0, 2.5):
                assert hockey_stick(p, q, eps) <= made.delta(eps) + 1e-12


def test_a_curve_that_no_mechanism_has_is_replaced_by_the_largest_that_one_has():
    """Its first point is above what the second allows, and it is not convex."""
    odd = Profile((0.0, 0.5, 0.6, 1.0), (0.9, 0.4, 0.39, 0.0))
    smooth = compose([(odd, 2)])
    assert smooth.delta(0.0) <= compose([(Profile.of_pair(1.0, 0.0), 2)]).delta(0.0) + 1e-9
    assert smooth.delta(0.0) >= compose([(Profile((0.0, 0.5, 1.0), (0.2, 0.1, 0.0)), 2)]).delta(0.0)


def test_laplace_noise_agrees_with_dp_accounting():
    oracle = privacy_loss_distribution.from_laplace_mechanism(2.0, value_discretization_interval=1e-4)
    at = np.linspace(0.0, 0.5, 300)
    one = Profile.of_curve(lambda g: np.maximum(-np.expm1((g - 0.5) / 2), 0.0), at)
    made, whole = compose([(one, 20)]), oracle.self_compose(20)
    for delta in (1e-2, 1e-4, 1e-6):
        assert whole.get_epsilon_for_delta(delta) * 0.999 <= made.epsilon(delta)
        assert made.epsilon(delta) <= whole.get_epsilon_for_delta(delta) * 1.01


def test_without_privacy_there_is_none_together_and_nothing_costs_nothing():
    assert compose([(Profile.of_pair(math.inf, 0.0), 2)]).attack_success() == 1.0
    assert compose([(Profile.of_pair(400.0, 0.0), 2)]).attack_success() == 1.0
    nothing = compose([(Profile((0.0,), (0.0,)), 100), (Profile.of_pair(1.0, 0.0), 1)])
    assert nothing.attack_success() == pytest.approx(Profile.of_pair(1.0, 0.0).attack_success(), abs=1e-4)
    assert compose([(Profile.gaussian(1.0), 1)]) == Profile.gaussian(1.0)
    with pytest.raises(ValueError, match="at least one curve"):
        compose([])
