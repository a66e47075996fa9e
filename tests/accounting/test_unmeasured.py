"""Steps in which followed records were not measured: what they may hide, by enumeration and by repetition."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binomtest

from tacita import BayesianAccountant, PrivacyError
from tacita.accounting.levels import NORM_LEVELS, TOP, level_of
from tacita.accounting.shares import certified_shares
from tacita.accounting.unmeasured import Sampled, measuring_rate
from tacita.estimators import share_bounds

FALSE_ALARM = 1e-6
STEPS = 400


def at_most(seen, total, rate):
    """P(Binomial(total, rate) <= seen), exactly."""
    return sum(math.comb(total, k) * rate**k * (1 - rate) ** (total - k) for k in range(min(seen, total) + 1))


@pytest.mark.parametrize("rate", [Fraction(1, 10), Fraction(1, 3), Fraction(4, 5)])
@pytest.mark.parametrize("failure", [5e-2, 1e-9])
def test_too_few_are_seen_as_seldom_as_exact_binomials_say(rate, failure):
    """A bound below n fails if at most k of n are measured: the chances of all n that are told apart add up to it."""
    steps = 150
    most = Sampled(steps, float(rate), failure).most(np.arange(steps + 1))
    assert (np.diff(most) >= 0).all()
    assert most[-1] == steps
    chance = Fraction(0)
    for bound in sorted(set(most.tolist()) - {steps}):
        seen = int(np.flatnonzero(most == bound)[-1])  # the most that still give this bound
        chance += at_most(seen, bound + 1, rate)
    assert chance <= failure
    assert chance > 0.1 * failure or failure < 1e-3  # with 150 steps little is told apart at such odds


def test_nothing_seen_is_little_said_and_everything_seen_is_exact():
    seen = np.zeros((2, len(NORM_LEVELS)), dtype=np.int64)
    filled = Sampled(300, 0.2, 1e-8).fill(seen)
    assert (filled[:, TOP] > 80).all()  # so many steps may have been missed
    assert (filled.sum(1) == 300).all()
    seen[0, 3], seen[1, 0] = 40, 40
    assert np.array_equal(Sampled(40, 1.0, 1e-8).fill(seen), seen)
    few = Sampled(42, 0.9, 1e-8).fill(seen)
    assert few.sum(1).tolist() == [42, 42]
    assert few[:, TOP].tolist() == [2, 2]


def histories(rng, records):
    """Levels of records, step by step: mostly low, now and then at the clip bound, some in one stretch."""
    levels = rng.integers(20, 60, (records, STEPS))
    levels[rng.random((records, STEPS)) < 0.02] = TOP
    levels[::2, : STEPS // 20] = 200
    return levels


def counts_of(levels, coins):
    counts = np.zeros((len(levels), len(NORM_LEVELS)), dtype=np.int64)
    for record, (row, seen) in enumerate(zip(levels, coins, strict=True)):
        np.add.at(counts[record], row[seen], 1)
    return counts


def missed(rng, *, rate, told, failure, times):
    """How many of some records spend more steps at or above some level than the bound says."""
    found = 0
    for _ in range(times):
        levels = histories(rng, 10)
        filled = Sampled(STEPS, told, failure).fill(counts_of(levels, rng.random(levels.shape) < rate))
        above, true = (c[:, ::-1].cumsum(1) for c in (filled, counts_of(levels, np.full(levels.shape, True))))
        assert (filled >= 0).all()
        assert (filled.sum(1) == STEPS).all()
        found += int((above < true).any(1).sum())
    return found


@pytest.mark.stat
def test_the_bound_fails_as_seldom_as_it_says():
    rng, times = np.random.default_rng(3), 100
    failures = missed(rng, rate=0.25, told=0.25, failure=0.2, times=times)
    assert binomtest(failures, 10 * times, 0.2, alternative="greater").pvalue > FALSE_ALARM
    assert failures > 0.01 * 10 * times  # and is not far from it
    wrong = missed(rng, rate=0.25, told=0.4, failure=0.2, times=times)  # fewer measurements than claimed
    assert binomtest(wrong, 10 * times, 0.2, alternative="greater").pvalue < FALSE_ALARM


@pytest.mark.stat
def test_shares_hold_where_some_values_are_too_low():
    """Values of 1 in half of the people are 0 now and then; the rank that allows for it is met, the plain one not."""
    rng, times, low = np.random.default_rng(5), 4000, 0.2

    def failures(allowed):
        found = 0
        for _ in range(times):
            values = (rng.random(60) < 0.5) & (rng.random(60) >= low)
            found += share_bounds(values, percents=(50.1,), gamma=0.1, worst=2.0, low=allowed)[50.1] < 1.0
        return found

    assert binomtest(failures(low), times, 0.1, alternative="greater").pvalue > FALSE_ALARM
    assert binomtest(failures(0.0), times, 0.1, alternative="greater").pvalue < FALSE_ALARM


def measured(rng, rate, records=200):
    """Counts of measured steps, and the accountant of all steps."""
    true = BayesianAccountant(sample_rate=0.02, noise_multiplier=1.5, steps=STEPS)
    norms = np.minimum(rng.lognormal(-1.6, 0.5, (STEPS, records)), 1.0)
    for row in norms:
        true.step(row)
    levels = level_of(norms).T
    return counts_of(levels, rng.random(levels.shape) < rate), true


def test_figures_of_some_steps_lie_between_those_of_all_steps_and_the_worst_case():
    seen, true = measured(np.random.default_rng(1), 0.5)
    empty = BayesianAccountant(sample_rate=0.02, noise_multiplier=1.5, steps=STEPS)
    account = empty.completed(seen, Sampled(STEPS, 0.5, 1e-8))
    assert account.taken == true.taken == STEPS
    own, exact = account.epsilons(delta=1e-5), true.epsilons(delta=1e-5)
    worst = true.worst_case(delta=1e-5)
    assert (own > exact).all()
    assert (own < worst.epsilon).all()
    assert np.median(own) < 0.5 * worst.epsilon
    assert empty.taken == 0
    for estimator in ("band", "student"):
        found, of_all = (a.guarantee(delta=1e-5, estimator=estimator) for a in (account, true))
        assert found.epsilon >= of_all.epsilon
        assert math.fsum(part for _, part in found.delta_split) == pytest.approx(1e-5, rel=1e-12)
        assert dict(found.delta_split)["unmeasured"] == 1e-8
        assert any(a.code == "measured-at-random" for a in found.assumptions)
    assert account.delta(epsilon=0.5) > true.delta(epsilon=0.5)
    assert account.running(delta=1e-5) >= true.running(delta=1e-5)
    for_shares = empty.completed(seen, Sampled(STEPS, 0.5, 0.05))
    shares, of_all = certified_shares(for_shares, worst), certified_shares(true, worst)
    assert all(mine[1] >= theirs[1] for mine, theirs in zip(shares.epsilons, of_all.epsilons, strict=True))
    assert shares.epsilons[2][1] < worst.epsilon  # 200 records certify 90%


def test_figures_that_are_too_low_too_often_are_refused_for_the_population():
    seen, _ = measured(np.random.default_rng(1), 0.5, records=20)
    empty = BayesianAccountant(sample_rate=0.02, noise_multiplier=1.5)
    account = empty.completed(seen, Sampled(STEPS, 0.5, 8e-6))
    with pytest.raises(PrivacyError, match="too low"):
        account.guarantee(delta=1e-5)
    assert account.subset([0, 1]).too_low == 8e-6


def test_what_needs_every_step_cannot_be_completed():
    seen = np.zeros((2, len(NORM_LEVELS)), dtype=np.int64)
    static = BayesianAccountant(sample_rate=0.1, noise_multiplier=1.0, levels="static")
    fresh = BayesianAccountant(sample_rate=0.1, noise_multiplier=1.0, composition="hoelder", steps=10)
    for accountant in (static, fresh):
        with pytest.raises(PrivacyError, match="panel of observed norms"):
            accountant.completed(seen, Sampled(5, 0.5, 1e-8))


def test_a_state_keeps_how_records_were_measured():
    seen, _ = measured(np.random.default_rng(1), 0.5, records=20)
    empty = BayesianAccountant(sample_rate=0.02, noise_multiplier=1.5)
    for failure in (1e-8, 0.05):
        account = empty.completed(seen, Sampled(STEPS, 0.5, failure))
        again = BayesianAccountant.from_state(json.loads(json.dumps(account.state_dict())))
        assert again.sampled == account.sampled
        assert again.assumptions == account.assumptions
    with pytest.raises(PrivacyError, match="too low"):
        again.guarantee(delta=1e-5)
    state = account.state_dict()
    for wrong in ({"steps": STEPS, "rate": 0.5}, {**state["sampled"], "failure": 0.0}, [STEPS, 0.5, 1e-8]):
        with pytest.raises(PrivacyError, match="damaged"):
            BayesianAccountant.from_state({**state, "sampled": wrong})
    with pytest.raises(PrivacyError, match="damaged"):
        BayesianAccountant.from_state({**state, "levels": "static"})


def test_a_single_records_figure_says_how_often_it_is_too_low():
    seen, true = measured(np.random.default_rng(1), 0.5, records=2)
    empty = BayesianAccountant(sample_rate=0.02, noise_multiplier=1.5)
    account = empty.completed(seen, Sampled(STEPS, 0.5, 1e-8))
    assert "measured-at-random" in {a.code for a in account.individual(0, delta=1e-5).assumptions}
    assert "measured-at-random" not in {a.code for a in true.individual(0, delta=1e-5).assumptions}


def test_counts_that_are_not_of_the_steps_are_refused():
    seen = np.zeros((2, len(NORM_LEVELS)), dtype=np.int64)
    seen[0, TOP] = 90
    empty = BayesianAccountant(sample_rate=0.02, noise_multiplier=1.5, steps=100)
    for rate in (0.5, 1.0):
        with pytest.raises(PrivacyError, match="more steps than were taken"):
            empty.completed(seen, Sampled(50, rate, 1e-8))
    with pytest.raises(PrivacyError, match="The plan covers 100 steps"):
        empty.completed(seen, Sampled(101, 0.5, 1e-8))
    empty.step(np.ones(2), steps=5)
    with pytest.raises(PrivacyError, match="no step"):
        empty.completed(seen, Sampled(100, 0.5, 1e-8))


def test_at_odds_that_no_float_resolves_nothing_is_told_apart():
    assert (Sampled(20_000, 0.15, 1e-290).most(np.arange(100)) == 20_000).all()
    assert Sampled(20_000, 0.15, 1e-100).most(np.arange(1))[0] < 2_000


def test_the_rate_keeps_to_an_eighth_of_the_gradients_and_measures_often_enough():
    assert measuring_rate(10_000, 500, 200) == pytest.approx(0.3)
    assert measuring_rate(10_000, 256, 400) == pytest.approx(0.0768)
    assert measuring_rate(300, 16, 400) == 0.5
    assert measuring_rate(100, 16, 400) == measuring_rate(10_000, 4000, 200) == measuring_rate(10, 1, 0) == 1.0
