"""Limits on a share against scipy's own exact interval, and how often they hold; the certificate's chance of a miss."""

import math

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from tacita.estimators import conformal_miss, share_at_least, share_at_most, share_bounds, share_interval


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (3, 10), (10, 10), (1, 1), (250, 1000)])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
def test_limits_are_those_of_clopper_and_pearson(successes, trials, confidence):
    exact = binomtest(successes, trials).proportion_ci(confidence, method="exact")
    assert share_interval(successes, trials, confidence=confidence) == pytest.approx(tuple(exact), abs=1e-9)
    low = binomtest(successes, trials, alternative="greater").proportion_ci(confidence, method="exact").low
    high = binomtest(successes, trials, alternative="less").proportion_ci(confidence, method="exact").high
    assert share_at_least(successes, trials, confidence=confidence) == pytest.approx(low, abs=1e-9)
    assert share_at_most(successes, trials, confidence=confidence) == pytest.approx(high, abs=1e-9)


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (1, 200), (7, 10), (10, 10), (5_100, 10_000)])
def test_limits_are_where_the_binomial_tail_is_what_is_left(successes, trials):
    low, high = (f(successes, trials, confidence=1 - 1e-6) for f in (share_at_least, share_at_most))
    assert binom.sf(successes - 1, trials, low) == pytest.approx(1e-6 if successes else 1.0, rel=1e-6)
    assert binom.cdf(successes, trials, high) == pytest.approx(1e-6 if successes < trials else 1.0, rel=1e-6)


def test_no_trials_say_nothing():
    assert share_interval(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.97])
def test_limits_hold_as_often_as_they_say(share):
    """Exactly, by adding up the chances of all outcomes."""
    outcomes = np.arange(41)
    chances = binom.pmf(outcomes, 40, share)
    low = np.array([share_at_least(k, 40, confidence=0.95) for k in outcomes])
    high = np.array([share_at_most(k, 40, confidence=0.95) for k in outcomes])
    assert chances[low <= share].sum() >= 0.95
    assert chances[high >= share].sum() >= 0.95


@pytest.mark.parametrize(
    ("arguments", "message"), [((11, 10), "successes"), ((-1, 10), "successes"), ((0, -1), "trials")]
)
def test_counts_that_mean_nothing_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        share_interval(*arguments)


LAWS = {
    "uniform": lambda rng, size: rng.random(size),
    "lognormal": lambda rng, size: rng.lognormal(-2.0, 1.0, size),
    "two points": lambda rng, size: (rng.random(size) < 0.1).astype(float),  # mass 1 - p exactly at the step
    "just over": lambda rng, size: (rng.random(size) < 0.1001).astype(float),
    "just under": lambda rng, size: (rng.random(size) < 0.0999).astype(float),
    "ties": lambda rng, size: np.floor(4 * rng.random(size)),
    "whole numbers": lambda rng, size: rng.integers(100, size=size).astype(float),
    "constant": lambda rng, size: np.ones(size),
}


@pytest.mark.stat
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("gamma", [0.05, 0.2])
def test_b18_bounds_on_shares_fail_as_rarely_as_they_say(rng, law, gamma):
    """2,000 panels of 300; a false alarm has a chance of 1e-6."""
    truth = np.sort(LAWS[law](rng, 400_000))
    failures = 0
    for _ in range(2000):
        bounds = share_bounds(LAWS[law](rng, 300), percents=(50, 90), gamma=gamma, worst=np.inf)
        shares = {p: np.searchsorted(truth, bound, side="right") / len(truth) for p, bound in bounds.items()}
        failures += any(share < p / 100 - 0.002 for p, share in shares.items())
    assert failures <= binom.isf(1e-6, 2000, gamma)
    if law in ("uniform", "lognormal"):
        assert failures > 0.2 * gamma * 2000  # and not by being far too careful


@pytest.mark.stat
@pytest.mark.parametrize("law", ["uniform", "lognormal", "whole numbers"])
def test_b18_a_rank_lower_would_fail_too_often(rng, law):
    """6,000 panels of 20: the bound fails visibly, as often as its rank says, and the next lower value too often."""
    gamma, repeats, m = 0.2, 6000, 20
    quantile = np.quantile(LAWS[law](rng, 400_000), 0.5)  # of whole numbers, a step at 49 or 50 holds a share of 0.01
    failures = lower = 0
    for _ in range(repeats):
        sample = np.sort(LAWS[law](rng, m))
        bound = share_bounds(sample, percents=(50,), gamma=gamma, worst=np.inf)[50]
        failures += bound < quantile
        lower += sample[max(0, np.searchsorted(sample, bound) - 1)] < quantile
    limit = binom.isf(1e-6, repeats, gamma)
    assert 0.08 * repeats < failures <= limit  # exactly 0.132 for a continuous law
    assert lower > limit


@pytest.mark.parametrize("m", [1, 7, 300, 1000])
def test_the_rank_of_a_share_is_the_smallest_that_holds(m):
    for percent in (10, 50, 90, 99):
        bound = share_bounds(np.arange(m), percents=(percent,), gamma=1e-3, worst=np.inf)[percent]
        chances = [binom.sf(rank - 1, m, percent / 100) for rank in range(1, m + 1)]
        fits = [rank for rank, chance in enumerate(chances, 1) if chance <= 1e-3]
        assert bound == (fits[0] - 1 if fits else np.inf)


@pytest.mark.stat
@pytest.mark.parametrize(("m", "tolerated"), [(9, 0), (50, 2)])
def test_conformal_miss_bounds_issued_and_passed(m, tolerated, rng):
    """Any exchangeable spending: the certificate is issued and the new record passed at most this often."""
    repeats, bound = 40_000, conformal_miss(m, tolerated=tolerated)
    spending = rng.random((repeats, m + 1)) + rng.random((repeats, 1))  # dependent but exchangeable
    passed = spending > 1.6
    issued = passed[:, :m].sum(axis=1) <= tolerated
    assert np.mean(issued & passed[:, m]) <= bound + 4 * math.sqrt(bound / repeats)


def test_conformal_tolerance_must_be_smaller_than_the_panel():
    with pytest.raises(ValueError, match="tolerated"):
        conformal_miss(5, tolerated=5)
