"""Curves that are composed, against closed forms, enumeration of outcomes, and dp-accounting."""

import functools
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


def random_law(rng):
    """A finite mechanism: nearly nothing, huge losses, a leak, or two laws that have little in common."""
    kind, size = rng.integers(4), rng.integers(2, 5)
    if kind == 3:
        return rng.dirichlet(np.full(size, 0.2), size=2)
    if kind == 2:
        leak, up = rng.choice([0.0, 1e-12, 1e-6, 0.3]), 1 / (1 + math.exp(-(10 ** rng.uniform(-6, 2.4))))
        one = np.array([leak, 0.0, (1 - leak) * up, (1 - leak) * (1 - up)])
        return np.stack([one, one[[1, 0, 3, 2]]])
    losses = np.clip(rng.normal(size=size) * 10 ** rng.uniform(*((-7, 0), (-2, 2.3))[kind]), -290, 290)
    base = rng.dirichlet(np.ones(size))
    tilted = base * np.exp(losses - losses.max())
    return np.stack([base, tilted / tilted.sum()])[:: rng.choice([1, -1])]


@pytest.mark.parametrize("repeats", [25, pytest.param(400, marks=pytest.mark.slow)])
def test_no_product_of_random_mechanisms_is_above_the_composed_curve(rng, repeats):
    """Every outcome, every choice of directions, curves known at few points or many, losses from 1e-7 to 600."""
    for _ in range(repeats):
        laws = [random_law(rng) for _ in range(rng.integers(1, 4))]
        counts, parts = [int(rng.integers(1, 4)) for _ in laws], []
        for law, count in zip(laws, counts, strict=True):
            with np.errstate(divide="ignore", invalid="ignore"):
                losses = np.abs(np.log(law[0] / law[1]))
            top = max([1e-9, *losses[np.isfinite(losses)]])
            known = np.unique([0.0, *(1.1 * top * rng.random(rng.choice([1, 2, 5, 40])))])
            parts.append((Profile.of_curve(lambda g, r=law: np.array([hockey_stick(*r, e) for e in g]), known), count))
        made = compose(parts)
        at = [0.0, *rng.choice(made.epsilons, 6), *(min(made.epsilons[-1], 700.0) * rng.random(4))]
        for signs in itertools.product((1, -1), repeat=len(laws)):
            p, q = np.ones(1), np.ones(1)
            for law, count, sign in zip(laws, counts, signs, strict=True):
                for _ in range(count):
                    p, q = np.outer(p, law[::sign][0]).ravel(), np.outer(q, law[::sign][1]).ravel()
            for eps in at:
                assert hockey_stick(p, q, min(eps, 700.0)) <= made.delta(min(eps, 700.0)) * (1 + 1e-10) + 1e-14


def test_a_mix_agrees_with_dp_accounting_from_above():
    """A Laplace release five times, a Gaussian one three times, a sampled one twenty times, randomised response."""
    grid = {"value_discretization_interval": 1e-4}
    oracles = [
        (privacy_loss_distribution.from_laplace_mechanism(4.0, **grid), 5),
        (privacy_loss_distribution.from_gaussian_mechanism(3.0, **grid), 3),
        (privacy_loss_distribution.from_gaussian_mechanism(1.0, sampling_prob=0.05, **grid), 20),
        (privacy_loss_distribution.from_randomized_response(0.8, 2, **grid), 1),
    ]
    at = np.linspace(0.0, 6.0, 400)
    curves = [
        Profile.of_curve(lambda g, p=p: np.array([p.get_delta_for_epsilon(e) for e in g]), at) for p, _ in oracles
    ]
    made = compose([(curve, count) for curve, (_, count) in zip(curves, oracles, strict=True)])
    whole = functools.reduce(lambda a, b: a.compose(b), (p.self_compose(count) for p, count in oracles))
    for delta in (0.1, 1e-3, 1e-6, 1e-9):
        assert whole.get_epsilon_for_delta(delta) * (1 - 1e-4) <= made.epsilon(delta)
        assert made.epsilon(delta) <= whole.get_epsilon_for_delta(delta) * 1.06  # of curves known at 400 points


@pytest.mark.parametrize(("epsilon", "count"), [(1e-6, 1000), (1e-4, 3), (40.0, 8), (299.0, 2), (301.0, 2)])
def test_tiny_and_huge_coins(epsilon, count):
    made, heads = compose([(Profile.of_pair(epsilon, 0.0), count)]), np.arange(count + 1)
    up = binom.pmf(heads, count, 1 / (1 + math.exp(-epsilon)))
    down = binom.pmf(heads, count, 1 / (1 + math.exp(epsilon)))
    for eps in np.linspace(0.0, min(count * epsilon, 700.0) * 0.99, 9):
        true = np.maximum(up - math.exp(eps) * down, 0.0).sum()
        assert true <= made.delta(eps) * (1 + 1e-9) + 1e-14
    even = np.maximum(up - down, 0.0).sum()
    assert made.delta(0.0) <= 1.02 * even + 1e-9
    assert made.epsilon(1e-12) <= count * epsilon * (1 + 1e-9)


def test_without_privacy_there_is_none_together_and_nothing_costs_nothing():
    assert compose([(Profile.of_pair(math.inf, 0.0), 2)]).attack_success() == 1.0
    assert compose([(Profile.of_pair(400.0, 0.0), 2)]).attack_success() == 1.0
    nothing = compose([(Profile((0.0,), (0.0,)), 100), (Profile.of_pair(1.0, 0.0), 1)])
    assert nothing.attack_success() == pytest.approx(Profile.of_pair(1.0, 0.0).attack_success(), abs=1e-4)
    assert compose([(Profile.gaussian(1.0), 1)]) == Profile.gaussian(1.0)
    with pytest.raises(ValueError, match="at least one curve"):
        compose([])
