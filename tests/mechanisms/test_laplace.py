"""Laplace's divergence against quadrature, and where it ends."""

import math

import pytest
from scipy import integrate, stats

from tacita.mechanisms import laplace_renyi


@pytest.mark.parametrize(("scale1", "scale2"), [(1.0, 1.0), (1.0, 0.8), (0.7, 1.1)])
def test_laplace_equals_quadrature(scale1, scale2):
    value = laplace_renyi(2.5, distance=0.9, scale1=scale1, scale2=scale2)
    first, second = stats.laplace(0, scale1), stats.laplace(0.9, scale2)

    def integrand(x):
        return math.exp(2.5 * first.logpdf(x) - 1.5 * second.logpdf(x))

    total = sum(integrate.quad(integrand, a, b)[0] for a, b in ((-80, 0), (0, 0.9), (0.9, 80)))
    assert value == pytest.approx(math.log(total) / 1.5, rel=1e-8)


def test_laplace_diverges_where_it_should():
    assert math.isinf(laplace_renyi(3.0, distance=1.0, scale1=1.6, scale2=1.0))
    assert math.isinf(laplace_renyi(3.0, distance=math.inf, scale1=1.0))
    assert laplace_renyi(3.0, distance=0.0, scale1=1.0) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: laplace_renyi(2.0, distance=-1.0, scale1=1.0), "distance"),
        (lambda: laplace_renyi(2.0, distance=1.0, scale1=0.0), "scale1"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
