"""Divergences of Gaussians with diagonal covariance: against each other, quadrature, and where they end."""

import itertools
import math

import pytest
from scipy import integrate, stats

from tacita.mechanisms import diagonal_gaussian_renyi, exponential_family_renyi, gaussian_renyi


def by_quadrature(alpha, law1, law2):
    low, high = law1.support()

    def integrand(x):
        return math.exp(alpha * law1.logpdf(x) + (1 - alpha) * law2.logpdf(x))

    cuts = [low, *law1.ppf([0.01, 0.3, 0.6, 0.9, 0.999]), high]
    total = sum(integrate.quad(integrand, a, b, limit=200)[0] for a, b in itertools.pairwise(cuts))
    return math.log(total) / (alpha - 1)


@pytest.mark.parametrize("alpha", [1.1, 2.0, 7.0])
def test_gaussians_agree_with_each_other(alpha):
    simple = gaussian_renyi(alpha, ratio=0.7)
    normal = exponential_family_renyi(alpha, family="normal", first=[0.7, 1.0], second=[0.0, 1.0])
    diagonal = diagonal_gaussian_renyi(
        alpha, mean1=[0.42, 0.56], stddev1=[1.0, 1.0], mean2=[0.0, 0.0], stddev2=[1.0, 1.0]
    )
    assert simple == pytest.approx(normal, rel=1e-9)
    assert simple == pytest.approx(diagonal, rel=1e-9)


def test_unequal_variances_differ_by_direction_and_have_an_existence_condition():
    wide, narrow = (0.0, 1.2), (0.1, 1.0)

    def divergence(alpha, first, second):
        return diagonal_gaussian_renyi(
            alpha, mean1=[first[0]], stddev1=[first[1]], mean2=[second[0]], stddev2=[second[1]]
        )

    for first, second in ((wide, narrow), (narrow, wide)):
        exact = by_quadrature(2.0, stats.norm(*first), stats.norm(*second))
        assert divergence(2.0, first, second) == pytest.approx(exact, rel=1e-8)
    limit = 1.44 / 0.44  # s1²/s2² = α/(α-1)
    assert math.isfinite(divergence(limit * 0.999, wide, narrow))
    assert math.isinf(divergence(limit * 1.001, wide, narrow))
    assert math.isfinite(divergence(50.0, narrow, wide))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaussian_renyi(1.0, ratio=1.0), "order"),
        (lambda: gaussian_renyi(2.0, ratio=math.nan), "ratio"),
        (
            lambda: diagonal_gaussian_renyi(2.0, mean1=[0], stddev1=[1], mean2=[0, 0], stddev2=[1, 1]),
            "row by row",
        ),
        (
            lambda: diagonal_gaussian_renyi(2.0, mean1=[math.nan], stddev1=[1], mean2=[0], stddev2=[1]),
            "must be finite",
        ),
        (
            lambda: diagonal_gaussian_renyi(2.0, mean1=[0], stddev1=[0], mean2=[0], stddev2=[1]),
            "must be positive",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
