"""Two-sample statistics for many splits at once, against scipy and by repetition."""

import numpy as np
import pytest
from scipy import stats

from tacita.audit import exchange


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_statistics_of_numbers_are_scipys(rng):
    values = np.round(rng.lognormal(-1.5, 0.5, size=143).clip(max=1.0), 2)  # some are equal
    values.sort()
    labels = rng.permuted(np.tile(np.arange(143) < 83, (4, 1)), axis=1)
    a, b = exchange._split(values, labels)
    gaps = exchange._largest_gap(values, labels)
    for row, (t, w) in enumerate(zip(exchange._welch(a, b), exchange._levene(a, b), strict=True)):
        x, y = values[labels[row]], values[~labels[row]]
        assert t == pytest.approx(abs(stats.ttest_ind(x, y, equal_var=False).statistic), rel=1e-9)
        assert w == pytest.approx(stats.levene(x, y).statistic, rel=1e-9)
        assert gaps[row] == pytest.approx(stats.ks_2samp(x, y, method="asymp").statistic, rel=1e-9)


@pytest.mark.stat
def test_interval_of_the_guess_covers(rng):
    """At least 95% by proof; below 95% with 400 draws of 40 records would show from 366 down (chance 0.2%)."""
    covered = 0
    truth = stats.norm.cdf(0.5 / np.sqrt(2))
    for _ in range(400):
        _, low, high = exchange._success(rng.normal(0, 1, 40), rng.normal(0.5, 1, 40))
        covered += low <= truth <= high
    assert covered > 366
    assert exchange._success(np.zeros(50), np.ones(50)) == (1.0, pytest.approx((0.05 / 2) ** (1 / 50)), 1.0)
    assert exchange._success(np.ones(50), np.zeros(50)) == (0.0, 0.0, pytest.approx(1 - (0.05 / 2) ** (1 / 50)))
    assert exchange._success(np.ones(50), np.ones(50))[0] == 0.5
