"""States, neighbours and distances between posteriors: against numerical integration."""

import itertools

import mpmath
import numpy as np
import pytest

from tacita.posterior.models import beta, dirichlet
from tacita.posterior.scores import distances, neighbours, number_of_states, predictive, states


@pytest.mark.parametrize("alphas", [(1, 1), pytest.param((0.3, 4), marks=pytest.mark.slow)])
def test_distances_equal_numerical_integration(alphas):
    n = 6
    made = {
        s: distances(beta(*alphas), n, s) for s in ("hellinger", "kl", "total_variation", "jensen_shannon", "lecam")
    }
    for k, j in [(0, 1), (2, 5), (0, 6), (4, 3)]:
        first = [(alphas[0] + c, alphas[1] + n - c) for c in (k, j)]

        def density(t, parameters):
            a, b = parameters
            return t ** (a - 1) * (1 - t) ** (b - 1) / mpmath.beta(a, b)

        def integral(rule, p=first[0], q=first[1]):
            return mpmath.quad(lambda t: rule(density(t, p), density(t, q)), np.linspace(0, 1, 21).tolist())

        tv = integral(lambda p, q: abs(p - q)) / 2
        assert made["total_variation"][k, j] == pytest.approx(float(tv), abs=2e-3)
        assert made["hellinger"][k, j] ** 2 == pytest.approx(
            1 - float(integral(lambda p, q: mpmath.sqrt(p * q))), abs=1e-6
        )
        assert made["kl"][k, j] == pytest.approx(float(integral(lambda p, q: p * mpmath.log(p / q))), rel=1e-4)
        js = integral(lambda p, q: (p * mpmath.log(2 * p / (p + q)) + q * mpmath.log(2 * q / (p + q))) / 2)
        assert made["jensen_shannon"][k, j] ** 2 == pytest.approx(float(js), abs=1e-6)
        lecam = integral(lambda p, q: (p - q) ** 2 / (p + q) / 2)
        assert made["lecam"][k, j] ** 2 == pytest.approx(float(lecam), abs=1e-6)


def test_states_and_neighbours_are_all_there():
    assert len(states(3, 5)) == number_of_states(3, 5) == 21
    assert {tuple(s) for s in states(3, 5).tolist()} == {
        c for c in itertools.product(range(6), repeat=3) if sum(c) == 5
    }
    listed = states(3, 4)
    pairs = {frozenset(p) for p in neighbours(3, 4).tolist()}
    expected = {
        frozenset((i, j))
        for i, j in itertools.combinations(range(len(listed)), 2)
        if np.abs(listed[i] - listed[j]).sum() == 2
    }
    assert pairs == expected
    assert predictive(dirichlet(1, 1, 1), 4) == pytest.approx(1 / len(listed))
