"""Gaussian releases by their exact curve, noise too small for a grid, and mechanisms one after the other."""

import dp_accounting
import mpmath
import numpy as np
import pytest

from tacita import worst_case
from tacita.accounting import calibrate_composed, calibrate_gaussian, composed, gaussian_release, participation_bound
from tacita.mechanisms import gaussian_delta, gaussian_epsilon


def exact_delta(epsilon, distance):
    """The integral of (p - e^eps q)+, by mpmath."""
    with mpmath.workdps(60):
        mu, eps = mpmath.mpf(distance), mpmath.mpf(epsilon)
        cdf = lambda x: mpmath.erfc(-x / mpmath.sqrt(2)) / 2  # noqa: E731
        return cdf(mu / 2 - eps / mu) - mpmath.exp(eps) * cdf(-mu / 2 - eps / mu)


@pytest.mark.parametrize("distance", [0.01, 0.3, 1.0, 5.0, 40.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 20.0, 900.0])
def test_the_curve_is_the_integral_rounded_up(epsilon, distance):
    true, ours = exact_delta(epsilon, distance), float(gaussian_delta(epsilon, distance=distance)[0])
    largest = float(mpmath.erfc(-(distance / 2 - epsilon / distance) / mpmath.sqrt(2)) / 2)
    assert true <= ours
    assert ours <= true + 1e-9 * largest + 1e-300


def test_the_integral_itself_by_quadrature():
    mu, eps = 1.3, 0.7
    with mpmath.workdps(30):
        gap = lambda x: mpmath.npdf(x, mu, 1) - mpmath.exp(eps) * mpmath.npdf(x, 0, 1)  # noqa: E731
        start = eps / mu + mu / 2
        assert float(mpmath.quad(gap, [start, start + 5, start + 30])) == pytest.approx(
            float(exact_delta(eps, mu)), rel=1e-12
        )


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
@pytest.mark.parametrize("noise", [0.05, 0.4, 1.0, 3.73, 500.0])
def test_a_release_is_what_dp_accounting_says_and_never_below_the_truth(noise, delta):
    ours = gaussian_release(noise_multiplier=noise, delta=delta).epsilon
    theirs = dp_accounting.gaussian_mechanism.get_epsilon_gaussian(noise, delta)
    assert ours == pytest.approx(max(theirs, 1e-6), rel=1e-5, abs=1e-6)
    assert exact_delta(ours, 1.0 / noise) <= delta


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 10.0, 300.0])
def test_calibration_stays_within_its_target(epsilon):
    found = calibrate_gaussian(epsilon=epsilon, delta=1e-5)
    assert 0.999 * epsilon < found.epsilon <= epsilon
    assert exact_delta(epsilon, 1.0 / found.noise_multiplier) <= 1e-5


def test_no_noise_left_and_no_distance():
    assert gaussian_delta(0.0, distance=0.0)[0] == 0.0
    assert gaussian_epsilon(0.5, distance=0.1) == 0.0


@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.3, 0.8, 3), (1.0, 2.0, 4), (0.05, 1.5, 40)])
def test_participations_cover_the_tight_answer(rate, noise, steps):
    tight = worst_case(sample_rate=rate, noise_multiplier=noise, steps=steps, delta=1e-5).epsilon
    loose = participation_bound(sample_rate=rate, noise_multiplier=noise, steps=steps, delta=1e-5).epsilon
    assert loose >= tight * (1 - 1e-4)
    if rate == 1.0:
        assert loose == pytest.approx(tight, rel=1e-3)


def test_participations_with_next_to_no_noise_are_the_squares_of_those_taken_part_in():
    found = participation_bound(sample_rate=64 / 60000, noise_multiplier=0.005, steps=375_000, delta=1e-5).epsilon
    taken_part = 400 + 4.3 * np.sqrt(400)  # the 1 - 1e-5 quantile of how often a record is drawn
    assert found == pytest.approx(taken_part / (2 * 0.005**2), rel=0.05)


def test_the_same_mechanism_cut_in_two_costs_the_same():
    whole = worst_case(sample_rate=0.02, noise_multiplier=1.1, steps=300, delta=1e-5).epsilon
    halves = composed([(0.02, 1.1, 120), (0.02, 1.1, 180)], delta=1e-5)
    assert halves.epsilon == pytest.approx(whole, rel=2e-3)
    assert halves.method == "pld"


def test_two_full_releases_are_one_of_the_distance_between():
    both = composed([(1.0, 2.0, 1), (1.0, 3.0, 2)], delta=1e-5).epsilon
    assert both == pytest.approx(gaussian_epsilon(1e-5, distance=np.sqrt(1 / 4 + 2 / 9)), rel=2e-3)
    assert both >= gaussian_epsilon(1e-5, distance=np.sqrt(1 / 4 + 2 / 9)) * (1 - 1e-9)


def test_calibrating_several_keeps_the_total_and_their_ratio():
    parts = calibrate_composed([(1.0, 2.0, 1), (0.1, 1.0, 10)], epsilon=3.0, delta=1e-5)
    assert 2.97 < composed(parts, delta=1e-5).epsilon <= 3.0
    assert parts[0][1] / parts[1][1] == pytest.approx(2.0, rel=1e-4)


@pytest.mark.parametrize("parts", [[], [(0.0, 1.0, 1)], [(0.1, -1.0, 1)]])
def test_bad_parts_are_refused(parts):
    with pytest.raises(ValueError):  # noqa: PT011
        composed(parts, delta=1e-5)


def test_calibrating_several_at_the_ends_of_what_noise_can_do():
    with pytest.raises(ValueError, match=r"epsilon 0\.0001 cannot be kept to"):
        calibrate_composed([(1.0, 1.0, 10**6)], epsilon=1e-4, delta=1e-5)
    parts = calibrate_composed([(1e-9, 1.0, 1)], epsilon=400.0, delta=1e-5)
    assert composed(parts, delta=1e-5).epsilon <= 400.0
