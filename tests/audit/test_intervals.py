"""Confidence limits, against scipy and the binomial tail."""

import pytest
from scipy.stats import binom, binomtest

from tacita.audit.intervals import interval, lower_limit, upper_limit


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (1, 200), (7, 10), (10, 10), (5_100, 10_000)])
def test_limits_are_clopper_and_pearsons(successes, trials):
    exact = binomtest(successes, trials).proportion_ci(0.95, method="exact")
    assert interval(successes, trials) == pytest.approx((exact.low, exact.high), abs=1e-9)
    low, high = lower_limit(successes, trials, 1 - 1e-6), upper_limit(successes, trials, 1 - 1e-6)
    assert binom.sf(successes - 1, trials, low) == pytest.approx(1e-6 if successes else 1.0, rel=1e-6)
    assert binom.cdf(successes, trials, high) == pytest.approx(1e-6 if successes < trials else 1.0, rel=1e-6)
