"""The average-case measure's summaries: what is a bound, and what is not."""

import math

import numpy as np
import pytest

from tacita.papers import chebyshev_mu, sample_chebyshev_mu


@pytest.mark.parametrize("gamma", [0.1, 0.25, 0.4])
def test_of_any_values_few_exceed_what_the_others_allow(gamma, rng):
    # Exchangeable values: each of m + 1 fixed numbers is the further one with the same chance. Counted exactly.
    families = [rng.standard_cauchy(12), rng.exponential(size=12) ** 4, np.eye(12)[0], np.repeat([0.0, 1.0], [9, 3])]
    for values in families:
        above = sum(values[i] > sample_chebyshev_mu(np.delete(values, i), gamma=gamma) + 1e-9 for i in range(12))
        assert above <= gamma * 12


def test_the_formula_by_hand():
    # m = 20, J = 1: of 21 values at most one has (x - M)² > V / 2, so that (x - mean)² > (21/20)² V / 2.
    others = np.array([-1.0, 1.0] * 10)
    spread = 20.0  # Σ (x - mean)² of the others; V is that and 20/21 (x - mean)²
    apart = math.sqrt((21 / 20) ** 2 * spread / 2 / (1 - (21 / 20) / 2))
    assert sample_chebyshev_mu(others, gamma=1 / 21 + 1e-9) == pytest.approx(apart)


def test_a_sample_without_a_rare_value_does_not_promise_that_there_is_none():
    assert chebyshev_mu(np.zeros(40), gamma=0.02) == 0.0
    assert sample_chebyshev_mu(np.zeros(40), gamma=0.02) == math.inf


def test_too_few_values_are_refused():
    with pytest.raises(ValueError, match="at least 2"):
        sample_chebyshev_mu(np.ones(1), gamma=0.1)
