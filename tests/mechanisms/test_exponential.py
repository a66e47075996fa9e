"""Divergences of exponential families against quadrature or summation, with their existence conditions."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, stats

from tacita.mechanisms import exponential_family_renyi, families, gaussian_renyi
from tacita.mechanisms.exponential import ExponentialFamily

# family: (scipy law of its parameters, a pair with a finite divergence at α=2.5, a pair without one)
CASES = {
    "beta": (lambda a, b: stats.beta(a, b), ([2.0, 3.0], [2.5, 2.0]), ([1.0, 1.0], [3.0, 1.0])),
    "exponential": (lambda r: stats.expon(scale=1 / r), ([1.0], [1.4]), ([1.0], [2.0])),
    "gamma": (lambda k, r: stats.gamma(k, scale=1 / r), ([2.0, 1.0], [2.5, 1.3]), ([2.0, 1.0], [2.0, 2.0])),
    "inverse_gamma": (lambda k, s: stats.invgamma(k, scale=s), ([3.0, 1.0], [3.5, 1.2]), ([2.0, 1.0], [2.0, 2.0])),
    "chi_square": (lambda k: stats.chi2(k), ([4.0], [5.0]), ([1.0], [3.0])),
    "half_normal": (lambda s: stats.halfnorm(scale=s), ([1.0], [0.9]), ([1.0], [0.7])),
    "inverse_gaussian": (
        lambda m, k: stats.invgauss(m / k, scale=k),
        ([1.0, 2.0], [1.3, 2.2]),
        ([1.0, 1.0], [1.0, 2.0]),
    ),
    "log_normal": (
        lambda m, s: stats.lognorm(s, scale=math.exp(m)),
        ([0.0, 0.5], [0.2, 0.6]),
        ([0.0, 1.0], [0.0, 0.7]),
    ),
    "normal": (lambda m, s: stats.norm(m, s), ([0.0, 1.0], [0.5, 0.9]), ([0.0, 1.0], [0.0, 0.7])),
    "pareto": (lambda a: stats.pareto(a), ([2.0], [2.5]), ([1.0], [2.0])),
    "rayleigh": (lambda s: stats.rayleigh(scale=s), ([1.0], [0.9]), ([1.0], [0.7])),
}


def by_quadrature(alpha, law1, law2):
    low, high = law1.support()

    def integrand(x):
        return math.exp(alpha * law1.logpdf(x) + (1 - alpha) * law2.logpdf(x))

    cuts = [low, *law1.ppf([0.01, 0.3, 0.6, 0.9, 0.999]), high]
    total = sum(integrate.quad(integrand, a, b, limit=200)[0] for a, b in itertools.pairwise(cuts))
    return math.log(total) / (alpha - 1)


@pytest.mark.parametrize("name", sorted(CASES))
def test_closed_form_equals_quadrature_and_diverges_where_it_should(name):
    law, finite, infinite = CASES[name]
    for first, second in (finite, finite[::-1]):
        value = exponential_family_renyi(1.5, family=name, first=first, second=second)
        assert value == pytest.approx(by_quadrature(1.5, law(*first), law(*second)), rel=1e-6)
    first, second = finite
    value = exponential_family_renyi(2.5, family=name, first=first, second=second)
    assert value == pytest.approx(by_quadrature(2.5, law(*first), law(*second)), rel=1e-6)
    assert math.isinf(exponential_family_renyi(2.5, family=name, first=infinite[0], second=infinite[1]))


def test_every_family_is_tested():
    assert set(families) == set(CASES) | {"dirichlet", "bernoulli", "poisson"}


@pytest.mark.parametrize(
    ("name", "law", "first", "second"),
    [("bernoulli", stats.bernoulli, [0.3], [0.6]), ("poisson", stats.poisson, [3.0], [4.0])],
)
def test_discrete_families_equal_their_sum(name, law, first, second):
    k = np.arange(0, 2 if name == "bernoulli" else 200)
    total = np.sum(np.exp(2.5 * law.logpmf(k, *first) - 1.5 * law.logpmf(k, *second)))
    value = exponential_family_renyi(2.5, family=name, first=first, second=second)
    assert value == pytest.approx(math.log(total) / 1.5, rel=1e-9)


def test_dirichlet_with_two_cells_is_beta():
    pair = {"first": [2.0, 3.0], "second": [2.5, 2.0]}
    dirichlet = exponential_family_renyi(1.7, family="dirichlet", **pair)
    assert dirichlet == pytest.approx(exponential_family_renyi(1.7, family="beta", **pair), rel=1e-12)
    three = exponential_family_renyi(1.5, family="dirichlet", first=[1.0, 2.0, 3.0], second=[1.5, 2.0, 2.5])

    def integrand(y, x):
        point = [x, y, 1 - x - y]
        if min(point) <= 0:
            return 0.0
        return math.exp(
            1.5 * stats.dirichlet([1, 2, 3]).logpdf(point) - 0.5 * stats.dirichlet([1.5, 2, 2.5]).logpdf(point)
        )

    total = integrate.dblquad(integrand, 0, 1, 0, lambda x: 1 - x, epsabs=1e-5, epsrel=1e-5)[0]
    assert three == pytest.approx(math.log(total) / 0.5, rel=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exponential_family_renyi(2.0, family="cauchy", first=[1], second=[1]), "family must be one of"),
        (lambda: exponential_family_renyi(2.0, family="beta", first=[1, -1], second=[1, 1]), "beta takes valid values"),
        (lambda: exponential_family_renyi(2.0, family="beta", first=[1], second=[1, 1]), "beta takes valid values"),
        (lambda: exponential_family_renyi(2.0, family="bernoulli", first=[1.0], second=[0.5]), "bernoulli takes valid"),
        (lambda: exponential_family_renyi(2.0, family="normal", first=[0, -1.0], second=[0, 1]), "normal takes valid"),
        (lambda: exponential_family_renyi(2.0, family="dirichlet", first=[1, 1], second=[1, 1, 1]), "one length"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_new_family_is_one_entry(monkeypatch):
    """A toy: normal laws of stddev 1, whose divergence is α d² / 2."""
    toy = ExponentialFamily(("mean",), lambda m: [m], lambda theta: theta**2 / 2.0, real=1)
    monkeypatch.setitem(families, "unit_normal", toy)
    found = exponential_family_renyi(3.0, family="unit_normal", first=[0.7], second=[0.0])
    assert found == pytest.approx(gaussian_renyi(3.0, ratio=0.7), rel=1e-12)
