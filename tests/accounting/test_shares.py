"""Certified shares: what they certify against closed forms, and how often they fail."""

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from tacita.accounting import NORM_LEVELS, BayesianAccountant, record_curves, shares
from tacita.accounting.shares import GAMMA, PERCENTS, RATES, TESTED, certified_shares
from tacita.profile import Profile

RATE, NOISE, STEPS = 0.05, 1.0, 60


def followed(levels):
    accountant = BayesianAccountant(sample_rate=RATE, noise_multiplier=NOISE)
    accountant.step(NORM_LEVELS[levels], steps=STEPS)
    return accountant


def counts_of(levels, steps):
    counts = np.zeros((len(levels), len(NORM_LEVELS)), dtype=np.int64)
    counts[np.arange(len(levels)), levels] = steps
    return counts


def test_true_positive_rates_meet_the_gaussian_closed_form_from_above():
    levels, rates = np.array([0, 40, 128, 256, 128]), np.array([0.0, 1e-3, 0.01, 0.1, 0.5, 1.0])
    found = record_curves(counts_of(levels, 9), sample_rate=1.0, noise_multiplier=4.0).tpr(rates)
    exact = ndtr(ndtri(rates)[:, None] + NORM_LEVELS[levels] * 3.0 / 4.0)
    assert (found >= exact - 1e-12).all()
    assert (found <= exact + 1e-3).all()
    assert (found[:, 2] == found[:, 4]).all()


def test_true_positive_rates_of_one_sampled_step_are_those_of_the_best_test():
    """With the record the outcome is N(r, 1) with chance q, else N(0, 1); the best test has a threshold."""
    levels, rates = np.array([64, 256]), np.array([1e-3, 0.01, 0.1, 0.4])
    found = record_curves(counts_of(levels, 1), sample_rate=0.3, noise_multiplier=0.5).tpr(rates)
    exact = 0.7 * rates[:, None] + 0.3 * ndtr(ndtri(rates)[:, None] + NORM_LEVELS[levels] / 0.5)
    assert (found >= exact).all()
    assert (found <= exact + 0.12).all()  # the larger of both directions, in both places


def test_every_records_profile_has_its_figures():
    counts = counts_of(np.array([0, 5, 100, 256, 100]), 40)
    curves = record_curves(counts, sample_rate=0.1, noise_multiplier=1.5)
    rates = np.array([0.01, 0.3])
    for record in range(len(counts)):
        own = curves.profile(record)
        assert own.epsilon(1e-5) == pytest.approx(curves.epsilon(1e-5)[record])
        assert own.delta(0.1) == pytest.approx(curves.delta(np.array([0.1]))[0, record])
        assert [own.tpr(rate) for rate in rates] == pytest.approx(curves.tpr(rates)[:, record])
    assert curves.profile(0) == Profile((0.0,), (0.0,))


def test_shares_are_ranks_of_the_records_own_figures(rng):
    """Gamma is a third each for epsilons, successes and tests, in equal parts for what each of them says."""
    accountant = followed(rng.integers(5, 200, 800))
    worst = accountant.worst_case(delta=1e-5)
    found = certified_shares(accountant, worst)
    third, m = GAMMA / 3, 800
    ranks = {p: next(r for r in range(m) if binom.sf(r - 1, m, p / 100) <= third / len(PERCENTS)) for p in (50, 90)}
    for points, own in ((found.epsilons, accountant.epsilons(delta=1e-5)), (found.successes, accountant.successes())):
        assert [percent for percent, _ in points] == list(PERCENTS)
        assert [dict(points)[p] for p in (50, 90)] == [np.sort(own)[ranks[p] - 1] for p in (50, 90)]
    each = third / (len(RATES) * len(TESTED))
    for percent, points in found.tests:
        rank = next(r for r in range(m) if binom.sf(r - 1, m, percent / 100) <= each)
        assert [rate for rate, _ in points] == list(RATES)
        assert [tpr for _, tpr in points] == [np.sort(own)[rank - 1] for own in accountant.tprs(RATES)]
    assert [percent for percent, _ in found.tests] == list(TESTED)
    assert found.followed == 800


def test_too_few_records_certify_nothing():
    accountant = followed(np.arange(10, 20))
    assert certified_shares(accountant, accountant.worst_case(delta=1e-5)) is None


@pytest.mark.stat
def test_shares_fail_as_rarely_as_they_say(rng, monkeypatch):
    """40 panels of 200; a false alarm has a chance of 1e-6. With gamma so large, some panels do fail."""
    gamma, repeats = 0.6, 40
    monkeypatch.setattr(shares, "GAMMA", gamma)
    kinds = np.arange(120, 165)  # of one spread, so that their curves are quick
    law = rng.dirichlet(np.full(len(kinds), 0.7))
    all_kinds = followed(kinds)
    worst = all_kinds.worst_case(delta=1e-5)
    truth = [all_kinds.epsilons(delta=1e-5), all_kinds.successes(), *all_kinds.tprs(RATES)]

    def holds(own, percent, bound):
        return law[own <= bound * (1 + 1e-9)].sum() >= percent / 100 - 1e-9

    def panel():
        made = certified_shares(followed(rng.choice(kinds, 200, p=law)), worst)
        said = [(truth[0], p, bound) for p, bound in made.epsilons] + [(truth[1], p, b) for p, b in made.successes]
        for percent, points in made.tests:
            said += [(own, percent, tpr) for own, (_, tpr) in zip(truth[2:], points, strict=True)]
        return all(holds(*one) for one in said)

    failures = sum(not panel() for _ in range(repeats))
    assert failures <= binom.isf(1e-6, repeats, gamma)
    assert failures > 0  # a bound that never fails would not show this


def test_an_individual_statement_carries_its_records_profile():
    """Without sampling a record at a quarter of the clip norm is one Gaussian release of a quarter of the distance."""
    accountant = BayesianAccountant(sample_rate=1.0, noise_multiplier=8.0)
    accountant.step([0.0, 0.25, 1.0], steps=16)
    worst = accountant.worst_case(delta=1e-5)
    nobody, quarter, full = (accountant.individual(record, delta=1e-5) for record in range(3))
    exact = ndtr(0.0625)
    assert exact <= quarter.attack_success <= exact + 1e-3
    assert quarter.epsilon == pytest.approx(Profile.gaussian(0.125).epsilon(1e-5), rel=0.01)
    assert (nobody.epsilon, nobody.attack_success) == (1e-6, 0.5)
    assert full.epsilon == pytest.approx(worst.epsilon, rel=0.01)
    assert full.epsilon <= worst.epsilon
    assert (quarter.kind, quarter.scope, quarter.publishable) == ("individual", "reading", False)
    assert "This record alone" in quarter.claim
    with pytest.raises(ValueError, match="record"):
        accountant.individual(3, delta=1e-5)
