"""Noise for the runs of a tuning that keeps to a target as a whole; dp-accounting says what it costs."""

import math

import dp_accounting
import pytest

from tacita._check import PrivacyError
from tacita.accounting.targets import Target
from tacita.accounting.tuned_noise import tuned_noise_multiplier, tuned_noise_multipliers
from tacita.accounting.tuning import RENYI_ORDERS, NegativeBinomial, Poisson, trial_curve, tuned_worst_case

LAW = NegativeBinomial.expecting(5.0)


def theirs(noise, *, rate, steps, mean, shape, delta):
    inner = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    event = dp_accounting.dp_event.RepeatAndSelectDpEvent(dp_accounting.SelfComposedDpEvent(inner, steps), mean, shape)
    accountant = dp_accounting.rdp.RdpAccountant([1.0 + 1e-7, *RENYI_ORDERS])
    accountant.compose(event)
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize(("shape", "epsilon"), [(0.0, 1.0), (1.0, 3.0)])
def test_the_noise_is_the_least_by_dp_accounting(shape, epsilon):
    law = NegativeBinomial.expecting(5.0, eta=shape)
    noise = tuned_noise_multiplier(law, target=(epsilon, 1e-5), sample_rate=0.02, steps=500)
    how = {"rate": 0.02, "steps": 500, "mean": 5.0, "shape": shape, "delta": 1e-5}
    assert theirs(noise, **how) <= epsilon * (1 + 1e-6)
    assert theirs(noise * 0.9985, **how) > epsilon


def test_settings_of_different_length_cost_alike_and_keep_to_the_target_together():
    sampled = [(1.0, 50), (0.1, 100), (1.0, 50)]
    noises = tuned_noise_multipliers(LAW, sampled, target=(0.5, 1e-5))
    assert noises[0] == noises[2]
    mechanisms = [(rate, noise, steps) for (rate, steps), noise in zip(sampled, noises, strict=True)]
    together = tuned_worst_case(LAW.selected(trial_curve(mechanisms)), delta=1e-5).epsilon
    alone = [tuned_worst_case(LAW.selected(trial_curve([one])), delta=1e-5).epsilon for one in mechanisms]
    assert max(alone) <= together <= 0.5
    assert min(alone) > 0.48


def test_a_private_score_is_paid_by_noise_and_less_where_it_is_apart():
    how = {"target": (0.5, 1e-5), "sample_rate": 1.0, "steps": 5}
    public = tuned_noise_multiplier(LAW, **how)
    apart = tuned_noise_multiplier(LAW, **how, score_noise=20.0, score_apart=True)
    assert public <= apart < tuned_noise_multiplier(LAW, **how, score_noise=20.0)


def test_a_target_of_attacks_and_the_poisson_law_have_noise_too():
    target, how = Target(attack_success=0.6), {"sample_rate": 1.0, "steps": 2}
    for law in (LAW, Poisson(2.0)):
        noise = tuned_noise_multiplier(law, target=target, **how)
        curve = tuned_worst_case(law.selected(trial_curve([(1.0, noise, 2)])), delta=1e-5).curve
        assert curve.attack_success() <= 0.6


def test_what_no_noise_reaches_is_refused():
    for target in ((0.01, 1e-5), Target(attack_success=0.5001)):
        with pytest.raises(PrivacyError, match="No noise multiplier"):
            tuned_noise_multiplier(LAW, target=target, sample_rate=0.5, steps=500, score_noise=1.0)
    for target in ((math.nan, 1e-5), (1.0, 0.0)):
        with pytest.raises(ValueError, match=r"epsilon|delta"):
            tuned_noise_multiplier(LAW, target=target, sample_rate=0.5, steps=5)
