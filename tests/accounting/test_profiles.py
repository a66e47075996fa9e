"""Curves of mechanisms, against dp-accounting and the exact Gaussian curve."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from tacita import worst_case
from tacita.accounting.profiles import worst_profile
from tacita.mechanisms import gaussian_delta, gaussian_epsilon


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.01, 1.0, 500), (0.25, 3.0, 60), (0.1, 0.6, 20)])
def test_a_worst_profile_bounds_dp_accountings_curve_and_is_close(rate, noise, steps):
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    pld = dp_accounting.pld.PLDAccountant().compose(dp_accounting.SelfComposedDpEvent(event, steps))
    ours = worst_profile(sample_rate=rate, noise_multiplier=noise, steps=steps)
    for epsilon in (0.0, 0.3, 1.0, 3.0):
        theirs = pld.get_delta(epsilon)
        assert theirs * (1 - 1e-4) - 1e-12 <= ours.delta(epsilon) <= theirs * 1.02 + 1e-11
    for delta in (1e-2, 1e-5, 1e-8):
        assert ours.epsilon(delta) == pytest.approx(pld.get_epsilon(delta), rel=5e-3)


@pytest.mark.parametrize(("noise", "steps"), [(5.0, 40), (0.05, 3), (20.0, 100_000)])
def test_without_sampling_it_is_the_exact_gaussian_curve_from_above(noise, steps):
    ours = worst_profile(sample_rate=1.0, noise_multiplier=noise, steps=steps)
    epsilons = np.array(ours.epsilons)
    exact = gaussian_delta(epsilons, distance=np.sqrt(steps) / noise)
    assert np.all(ours.delta(epsilons) >= exact * (1 - 1e-9))
    far = exact > 1e-12
    np.testing.assert_allclose(ours.delta(epsilons)[far], exact[far], rtol=1e-2)


def test_little_noise_costs_what_a_coarse_loss_distribution_says_and_not_moments(contour_delta):
    """24,697 by moments, 2,938 by participations alone, which reveal the steps; the truth is about 2,674."""
    rate, noise, steps = 1024 / 60000, 0.1, 1856
    found = worst_case(sample_rate=rate, noise_multiplier=noise, steps=steps, delta=1e-5)
    above, below = (
        pld.from_gaussian_mechanism(
            noise,
            sampling_prob=rate,
            value_discretization_interval=0.05,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
        ).self_compose(steps)
        for pessimistic in (True, False)
    )
    assert below.get_epsilon_for_delta(1e-5) < above.get_epsilon_for_delta(1e-5) <= found.epsilon < 2938
    assert found.epsilon <= 1.005 * above.get_epsilon_for_delta(1e-5)
    assert contour_delta(found.epsilon, rate, [(1 / noise, steps)]) <= 1e-5
    for epsilon in (1500.0, 2000.0, 2500.0):
        assert below.get_delta_for_epsilon(epsilon) <= found.curve.delta(epsilon)
        assert above.get_delta_for_epsilon(epsilon) <= found.curve.delta(epsilon) * (1 + 1e-3)


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.5, 0.3, 1000), (1e-4, 1.0, 3_000_000)])
def test_beyond_loss_grids_the_contour_integral_is_covered(rate, noise, steps, contour_delta):
    """Epsilons above 500, and more than two million steps."""
    found = worst_case(sample_rate=rate, noise_multiplier=noise, steps=steps, delta=1e-6)
    assert found.method == "profile"
    assert 0.4e-6 <= contour_delta(found.epsilon, rate, [(1 / noise, steps)]) <= 1e-6


@pytest.mark.parametrize(("noise", "steps"), [(0.05, 3), (0.02, 10)])
def test_a_worst_case_beyond_loss_grids_is_close_to_the_exact_gaussian_one(noise, steps):
    found = worst_case(sample_rate=1.0, noise_multiplier=noise, steps=steps, delta=1e-5)
    exact = gaussian_epsilon(1e-5, distance=np.sqrt(steps) / noise)
    assert found.method == "profile"
    assert exact <= found.epsilon <= exact * 1.001
