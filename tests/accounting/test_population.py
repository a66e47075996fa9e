"""Records of another population, by enumeration over finite laws."""

import math

import numpy as np
import pytest

from tacita import Guarantee, PrivacyError
from tacita.accounting import gaussian_release
from tacita.accounting.population import profile_under_another_law, under_another_law
from tacita.accounting.shares import shares_under_another_law
from tacita.estimators import mean_under_another_law, share_under_another_law
from tacita.label import Shares
from tacita.profile import Profile

EPSILONS = np.array([0.0, 0.1, 0.4, 0.8, 1.5, 2.0])  # of randomised response, one for each kind of record
AT = np.linspace(0.0, 2.5, 26)


def own_delta(epsilon, at):
    """The hockey stick of randomised response over its two outcomes."""
    with_it = np.array([math.exp(epsilon), 1.0]) / (1.0 + math.exp(epsilon))
    return float(np.maximum(with_it - math.exp(at) * with_it[::-1], 0.0).sum())


DELTAS = np.array([[own_delta(epsilon, at) for at in AT] for epsilon in EPSILONS])
WORST = Profile.of_curve(lambda _: DELTAS[-1], AT)


def laws(rng):
    here, there = rng.dirichlet(np.full(len(EPSILONS), 0.5), 2)
    return here, there, 0.5 * np.abs(here - there).sum()


def test_the_curve_under_another_law_bounds_its_mean_and_is_attained(rng):
    for _ in range(200):
        here, there, tv = laws(rng)
        typical = Profile.of_curve(lambda _, law=here: law @ DELTAS, AT)
        found = profile_under_another_law(typical, WORST, tv=tv)
        assert (found.delta(AT) >= there @ DELTAS - 1e-12).all()
        assert (found.delta(AT) <= DELTAS[-1] + 1e-12).all()
    safe, moved = np.eye(len(EPSILONS))[0], 0.7 * np.eye(len(EPSILONS))[0] + 0.3 * np.eye(len(EPSILONS))[-1]
    typical = Profile.of_curve(lambda _: safe @ DELTAS, AT)  # nobody leaks anything; then 30% leak all they can
    assert profile_under_another_law(typical, WORST, tv=0.3).delta(AT) == pytest.approx(moved @ DELTAS)


def test_means_and_shares_under_another_law(rng):
    successes = 0.5 + 0.5 * DELTAS[:, 0]
    for _ in range(200):
        here, there, tv = laws(rng)
        limits = {"low": successes.min(), "high": successes.max()}
        assert there @ successes <= mean_under_another_law(here @ successes, tv=tv, **limits) + 1e-12
        for epsilon in EPSILONS:
            under = epsilon >= EPSILONS
            assert there[under].sum() >= share_under_another_law(min(1.0, here[under].sum()), tv=tv) - 1e-12
    assert mean_under_another_law(0.5, tv=0.3, low=0.5, high=0.9) == pytest.approx(0.62)
    assert share_under_another_law(0.2, tv=0.5) == 0.0


def test_a_typical_figure_of_another_population_says_what_it_rests_on():
    worst, curve = gaussian_release(noise_multiplier=2.0, delta=1e-5), Profile.gaussian(0.1)
    terms = {"kind": "bayesian", "delta": 1e-5, "method": "pld", "notion": "weak", "population": "here"}
    typical = Guarantee(epsilon=curve.epsilon(1e-5), profile=curve, **terms)
    same, near, far = (under_another_law(typical, worst, tv=tv, population="there") for tv in (0.0, 1e-3, 1.0))
    assert same.epsilon == pytest.approx(typical.epsilon, rel=1e-3)
    assert typical.epsilon < near.epsilon < far.epsilon == worst.epsilon
    assert near.attack_success == pytest.approx(typical.attack_success + 1e-3 * (worst.attack_success - 0.5), abs=1e-9)
    assert "there" in str(near)
    with pytest.raises(PrivacyError, match="different populations"):
        near + typical
    with pytest.raises(PrivacyError, match="weak notion"):
        under_another_law(Guarantee(epsilon=0.4, **{**terms, "notion": "strong"}), worst, tv=0.1, population="there")
    with pytest.raises(PrivacyError, match="same steps"):
        under_another_law(worst, worst, tv=0.1, population="there")


def test_certified_shares_of_another_population_are_smaller():
    points = ((50.0, 0.3), (90.0, 0.7))
    made = Shares(
        epsilons=points,
        successes=((50.0, 0.55), (90.0, 0.6)),
        tests=((50.0, ((0.01, 0.02),)),),
        gamma=1e-6,
        followed=100,
    )
    found = shares_under_another_law(made, tv=0.6)
    assert found.epsilons == ((pytest.approx(30.0), 0.7),)
    assert found.tests == ()
    assert shares_under_another_law(made, tv=0.0) == made
