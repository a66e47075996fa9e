"""Steps in which followed records were not measured: what they may hide, by enumeration and by repetition."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binomtest

from tacita import BayesianAccountant, PrivacyError
from tacita.accounting.levels import NORM_LEVELS, TOP
from tacita.accounting.shares import certified_shares
from tacita.accounting.unmeasured import Unmeasured, largest_total, measuring_rate

FALSE_ALARM = 1e-6
STEPS = 400


def at_most(seen, total, rate):
    """P(Binomial(total, rate) <= seen), exactly."""
    return sum(math.comb(total, k) * rate**k * (1 - rate) ** (total - k) for k in range(min(seen, total) + 1))


@pytest.mark.parametrize("rate", [Fraction(1, 10), Fraction(1, 3), Fraction(4, 5)])
@pytest.mark.parametrize("failure", [1e-2, 1e-9])
def test_the_largest_total_is_that_of_exact_binomials(rate, failure):
    most = 150
    seen = np.array([0, 1, 2, 7, 20])
    exact = [max(n for n in range(k, most + 1) if at_most(k, n, rate) >= failure) for k in seen.tolist()]
    assert largest_total(seen, float(rate), failure, most=most).tolist() == exact


def test_no_coin_leaves_everything_at_the_bound_and_all_coins_nothing():
    counts = np.zeros((2, len(NORM_LEVELS)), dtype=np.int64)
    filled = Unmeasured(300, 0.2, 1e-8).fill(counts)
    assert filled[:, TOP].min() > 90  # nothing was seen in as many steps as none can rule out
    counts[0, 3], counts[1, 0] = 40, 40
    assert np.array_equal(Unmeasured(0, 1.0, 1e-8).fill(counts), counts)
    few = Unmeasured(2, 0.9, 1e-8).fill(counts)
    assert few.sum(1).tolist() == [42, 42]
    assert few[:, TOP].tolist() == [2, 2]


def histories(rng, records):
    """Levels of records, step by step: mostly low, now and then at the clip bound, some in one stretch."""
    levels = rng.integers(20, 60, (records, STEPS))
    levels[rng.random((records, STEPS)) < 0.02] = TOP
    levels[::2, : STEPS // 20] = 200
    return levels


def counts_of(levels):
    counts = np.zeros((len(levels), len(NORM_LEVELS)), dtype=np.int64)
    for record, row in enumerate(levels):
        np.add.at(counts[record], row, 1)
    return counts


def missed(rng, *, rate, told, failure, times):
    """How often some record of one run spends more steps above some level than the bound says."""
    found = 0
    for _ in range(times):
        levels, coins = histories(rng, 4), rng.random(STEPS) < rate
        filled = Unmeasured(int((~coins).sum()), told, failure).fill(counts_of(levels[:, coins]))
        above, true = (c[:, ::-1].cumsum(1) for c in (filled, counts_of(levels)))
        assert (filled >= 0).all()
        assert (filled.sum(1) == STEPS).all()
        found += bool((above < true).any())
    return found


@pytest.mark.stat
def test_the_bound_fails_as_seldom_as_it_says():
    rng, times = np.random.default_rng(3), 300
    failures = missed(rng, rate=0.25, told=0.25, failure=0.2, times=times)
    assert binomtest(failures, times, 0.2, alternative="greater").pvalue > FALSE_ALARM
    wrong = missed(rng, rate=0.25, told=0.5, failure=0.2, times=times)  # half as many measurements as claimed
    assert binomtest(wrong, times, 0.2, alternative="greater").pvalue < FALSE_ALARM


def measured(rng, rate, records=200):
    """An accountant of measured steps, the true one, and the steps in between."""
    seen, all_steps = (BayesianAccountant(sample_rate=0.02, noise_multiplier=1.5, steps=STEPS) for _ in range(2))
    left = 0
    for _ in range(STEPS):
        norms = np.minimum(rng.lognormal(-1.6, 0.5, records), 1.0)
        all_steps.step(norms)
        if rng.random() < rate:
            seen.step(norms)
        else:
            left += 1
    return seen, all_steps, left


def test_figures_of_some_steps_lie_between_those_of_all_steps_and_the_worst_case():
    seen, true, left = measured(np.random.default_rng(1), 0.5)
    account = seen.completed(Unmeasured(left, 0.5, 1e-8))
    assert account.taken == true.taken == STEPS
    own, exact = account.epsilons(delta=1e-5), true.epsilons(delta=1e-5)
    worst = true.worst_case(delta=1e-5)
    assert (own > exact).all()
    assert (own < worst.epsilon).all()
    assert np.median(own) < 0.5 * worst.epsilon
    assert seen.taken + left == STEPS  # nothing was charged to the accountant of measured steps
    for estimator in ("band", "student"):
        found, of_all = (a.guarantee(delta=1e-5, estimator=estimator) for a in (account, true))
        assert found.epsilon >= of_all.epsilon
        assert math.fsum(part for _, part in found.delta_split) == pytest.approx(1e-5, rel=1e-12)
        assert dict(found.delta_split)["unmeasured"] == 1e-8
        assert any(a.code == "measured-at-random" for a in found.assumptions)
    assert account.delta(epsilon=0.5) > true.delta(epsilon=0.5)
    assert account.running(delta=1e-5) >= true.running(delta=1e-5)
    shares, of_all = certified_shares(account, worst), certified_shares(true, worst)
    assert all(mine[1] >= theirs[1] for mine, theirs in zip(shares.epsilons, of_all.epsilons, strict=True))
    assert shares.epsilons[2][1] < worst.epsilon  # 200 records certify 90%


def test_the_failure_is_taken_off_every_total_or_refused():
    seen, _, left = measured(np.random.default_rng(1), 0.5, records=20)
    account = seen.completed(Unmeasured(left, 0.5, 8e-6))
    with pytest.raises(PrivacyError, match="too much"):
        account.guarantee(delta=1e-5)
    with pytest.raises(PrivacyError, match="too much"):
        account.shares(delta=1e-5, gamma=1e-6)
    assert certified_shares(account, account.worst_case(delta=1e-5)) is None


def test_what_needs_every_step_cannot_be_completed():
    unmeasured = Unmeasured(5, 0.5, 1e-8)
    static = BayesianAccountant(sample_rate=0.1, noise_multiplier=1.0, levels="static")
    fresh = BayesianAccountant(sample_rate=0.1, noise_multiplier=1.0, composition="hoelder", steps=10)
    for accountant in (static, fresh):
        with pytest.raises(PrivacyError, match="panel of observed norms"):
            accountant.completed(unmeasured)


def test_the_rate_keeps_to_a_fifth_of_the_gradients_and_measures_often_enough():
    assert measuring_rate(10_000, 500, 200) == 0.5
    assert measuring_rate(10_000, 256, 400) == pytest.approx(0.128)
    assert measuring_rate(300, 16, 400) == 0.5
    assert measuring_rate(100, 16, 400) == measuring_rate(10_000, 4000, 200) == measuring_rate(10, 1, 0) == 1.0
