"""`band` never underestimates more often than gamma, whatever the law (HARDENING B2, B3)."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from scipy import stats

from tacita.estimators import band_mean, band_steps, unseen_mass

# Six laws on [0, 1], with their means: continuous, atoms, rare extremes, ties.
LAWS = {
    "uniform": (lambda rng, size: rng.random(size), 0.5),
    "skewed": (lambda rng, size: rng.beta(0.1, 5.0, size), 0.1 / 5.1),
    "rare worst case": (lambda rng, size: (rng.random(size) < 0.01).astype(float), 0.01),
    "half at the worst case": (lambda rng, size: (rng.random(size) < 0.5).astype(float), 0.5),
    "constant": (lambda rng, size: np.full(size, 0.3), 0.3),
    "ties and a tail": (
        lambda rng, size: np.where(rng.random(size) < 0.9, 0.1, np.where(rng.random(size) < 0.3, 1.0, 0.2)),
        0.9 * 0.1 + 0.1 * (0.3 * 1.0 + 0.7 * 0.2),
    ),
}


def miss_rate(law, m, gamma, repeats, rng):
    draw, mean = LAWS[law]
    bounds = band_mean(draw(rng, (repeats, m)), worst=np.ones(repeats), gamma=gamma)
    return np.mean(bounds < mean * (1 - 1e-12))


@pytest.mark.stat
@pytest.mark.parametrize("m", [32, 512])
@pytest.mark.parametrize("law", sorted(LAWS))
def test_b2_band_underestimates_at_most_gamma(law, m, rng):
    gamma, repeats = 0.05, 4000
    assert miss_rate(law, m, gamma, repeats, rng) <= gamma + 3 * math.sqrt(gamma * (1 - gamma) / repeats)


@pytest.mark.stat
def test_b2_the_coverage_test_can_fail(rng):
    """A band that forgets the unseen mass misses far more often than gamma."""
    draw, mean = LAWS["rare worst case"]
    values = draw(rng, (4000, 32))
    assert np.mean(values.mean(axis=1) < mean) > 0.5
    forgetful = band_mean(values, worst=values.max(axis=1), gamma=0.05)
    assert np.mean(forgetful < mean) > 0.5


@pytest.mark.slow
@pytest.mark.stat
@pytest.mark.parametrize("m", [1, 2, 32, 512, 3000])
@pytest.mark.parametrize("law", sorted(LAWS))
@pytest.mark.parametrize("gamma", [0.2, 0.01, 0.001])
def test_b2_band_coverage_in_the_long_run(law, m, gamma, rng):
    repeats = 20_000 if m <= 512 else 3000
    assert miss_rate(law, m, gamma, repeats, rng) <= gamma + 4 * math.sqrt(gamma / repeats)


def test_b3_unseen_mass_is_near_the_logarithm_of_gamma_over_m():
    alone = 1 - 1e-6 ** (1 / 512)
    assert alone == pytest.approx(0.0266, abs=5e-5)  # one rank, all of gamma
    assert alone < unseen_mass(512, gamma=1e-6) < 1.06 * alone
    assert unseen_mass(1, gamma=1e-6) > 0.999


@given(st.integers(1, 5000), st.floats(1e-15, 0.5))
def test_steps_are_exact_beta_quantiles(m, gamma):
    ranks, masses = band_steps(m, gamma=gamma)
    assert ranks[0] == 0
    assert (np.diff(ranks) > 0).all()
    assert (np.diff(masses) >= 0).all()
    # Pr[Beta(r+1, m-r) > mass] summed over the ranks is at most gamma.
    tails = stats.beta.sf(masses, ranks + 1, m - ranks)
    assert tails.sum() <= gamma * (1 + 1e-6)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=60), st.floats(1e-9, 0.4))
def test_bound_lies_between_the_sample_mean_and_the_worst_case(values, gamma):
    sample = np.array([values])
    bound = band_mean(sample, worst=np.array([1.0]), gamma=gamma)[0]
    assert sample.max() <= 1.0
    assert 0.0 <= bound <= 1.0 + 1e-12
    larger = band_mean(np.minimum(sample + 0.1, 1.0), worst=np.array([1.0]), gamma=gamma)[0]
    assert larger >= bound - 1e-12


@pytest.mark.parametrize("gamma", [0.0, 1.0, float("nan"), -0.1])
def test_gamma_must_be_a_probability(gamma):
    with pytest.raises(ValueError, match="gamma must be in"):
        unseen_mass(10, gamma=gamma)
