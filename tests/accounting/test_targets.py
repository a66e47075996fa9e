"""Calibration to what an attack may achieve: closed forms, and never above the target."""

import pytest
from scipy.stats import norm

from tacita import PrivacyError
from tacita.accounting import composed
from tacita.accounting.profiles import worst_profile
from tacita.accounting.targets import Target, calibrate_composed_to, calibrate_to, goal_of

ONE_RELEASE = {
    "attack success": (Target(attack_success=0.55), 2 * norm.ppf(0.55)),
    "true positives": (Target(tpr=(0.02, 0.01)), norm.ppf(0.02) - norm.ppf(0.01)),
    "a secret": (Target(secret=(0.10, 0.15)), norm.ppf(0.15) - norm.ppf(0.10)),
    "mu": (Target(mu=(0.5, 1e-6)), 0.5),
}


@pytest.mark.parametrize("name", ONE_RELEASE)
def test_one_full_gaussian_release_is_calibrated_by_its_closed_form(name):
    target, mu = ONE_RELEASE[name]
    noise = calibrate_to(target, delta=1e-5, sample_rate=1.0, steps=1).noise_multiplier
    assert noise == pytest.approx(1 / mu, rel=3e-3)


@pytest.mark.parametrize(("success", "rate", "steps"), [(0.501, 0.01, 30), (0.6, 0.2, 400), (0.95, 1.0, 30)])
def test_a_target_is_never_exceeded_and_nearly_reached(success, rate, steps):
    target = Target(attack_success=success)
    noise = calibrate_to(target, delta=1e-5, sample_rate=rate, steps=steps).noise_multiplier
    assert target.met(worst_profile(sample_rate=rate, noise_multiplier=noise, steps=steps))
    assert not target.met(worst_profile(sample_rate=rate, noise_multiplier=noise * 0.999, steps=steps))


def test_a_target_that_no_noise_reaches_is_refused():
    with pytest.raises(PrivacyError, match="No noise multiplier"):
        calibrate_to(Target(attack_success=0.5001), delta=1e-5, sample_rate=1.0, steps=10**7)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"attack_success": 0.5},
        {"attack_success": 1.5},
        {"attack_success": 0.6, "tpr": (0.02, 0.01)},
        {"tpr": (0.01, 0.02)},
        {"secret": (0.2, 0.1)},
        {"mu": (-1.0, 1e-5)},
        {"mu": (1.0, 0.0)},
    ],
)
def test_a_target_below_guessing_or_none_at_all_is_refused(given):
    with pytest.raises(ValueError, match=r"Give one|must be|not"):
        Target(**given)


@pytest.mark.parametrize("text", ["success=0.6", "attack_success", "attack_success=a", "tpr=0.02", "mu=1,2,3"])
def test_a_text_that_names_no_target_is_refused(text):
    with pytest.raises(ValueError, match="target must be such as"):
        Target.of(text)


def test_an_epsilon_and_a_target_contradict_each_other():
    with pytest.raises(ValueError, match="either epsilon or target"):
        goal_of(1.0, 1e-5, "attack_success=0.6")


@pytest.mark.slow
@pytest.mark.parametrize("target", [Target(attack_success=0.6), Target(tpr=(0.03, 0.01))])
def test_two_mechanisms_together_keep_to_a_target_and_nearly_reach_it(target):
    parts = calibrate_composed_to(target, [(0.5, 1.0, 4), (1.0, 2.0, 1)], delta=1e-5)
    assert target.met(composed(parts, delta=1e-5).curve)
    less = [(rate, noise * 0.99, steps) for rate, noise, steps in parts]
    assert not target.met(composed(less, delta=1e-5).curve)


def test_the_curve_of_two_mechanisms_is_that_of_one_gaussian_where_nobody_is_sampled():
    found = composed([(1.0, 3.0, 4), (1.0, 2.0, 1)], delta=1e-5)
    mu = (4 / 9 + 1 / 4) ** 0.5
    assert norm.cdf(mu / 2) <= found.attack_success <= norm.cdf(mu / 2) + 1e-3
    assert norm.cdf(norm.ppf(0.01) + mu) <= found.curve.tpr(0.01) <= norm.cdf(norm.ppf(0.01) + mu) + 1e-3
