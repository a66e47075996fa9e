"""Student, Bernstein and binary: their formulas, their accuracy in the log domain, and where `student` fails."""

import math

import numpy as np
import pytest
from scipy.stats import t

from tacita.estimators import bernstein, binary, binary_share, student

ONES = np.ones(1000, dtype=np.int64)


def test_student_equals_its_formula():
    costs = np.array([0.1, 0.2, 0.4, 0.8])
    values = np.exp(costs)
    margin = t.isf(1e-3, 3) / math.sqrt(3)
    expected = math.log(values.mean() + margin * values.std())
    weights = np.ones(4, dtype=np.int64)
    assert float(student(costs, weights=weights, gamma=1e-3, worst=np.array(9.0))) == pytest.approx(expected, rel=1e-12)
    assert float(student(costs, weights=weights, gamma=1e-3, worst=np.array(0.9))) == 0.9  # capped


def test_bernstein_equals_its_formula():
    costs = np.linspace(0.0, 1.0, 200)
    y = np.exp(costs - 1.5)
    log_term = math.log(2 / 1e-4)
    expected = 1.5 + math.log(y.mean() + math.sqrt(2 * y.var(ddof=1) * log_term / 200) + 7 * log_term / (3 * 199))
    found = bernstein(costs, weights=np.ones(200, dtype=np.int64), gamma=1e-4, worst=np.array(1.5))
    assert float(found) == pytest.approx(expected, rel=1e-12)
    assert float(bernstein(costs[:2], weights=ONES[:2], gamma=1e-4, worst=np.array(1.5))) == 1.5


@pytest.mark.parametrize("estimate", [student, bernstein])
def test_repeated_costs_may_be_given_as_weights(estimate):
    spread = np.repeat([0.1, 0.5, 2.0], [5, 3, 2])
    whole = estimate(spread, weights=np.ones(10, dtype=np.int64), gamma=0.01, worst=np.array(3.0))
    short = estimate(np.array([0.1, 0.5, 2.0]), weights=np.array([5, 3, 2]), gamma=0.01, worst=np.array(3.0))
    assert float(whole) == pytest.approx(float(short), rel=1e-12)


@pytest.mark.parametrize("estimate", [student, bernstein])
def test_costs_in_the_thousands_do_not_overflow(estimate):
    costs = np.linspace(3000.0, 5000.0, 1000)
    value = float(estimate(costs, weights=ONES, gamma=1e-9, worst=np.array(6000.0)))
    assert 5000 - math.log(1000) < value <= 6000


@pytest.mark.stat
def test_b2_student_fails_where_band_does_not(rng):
    """One record in 1000 at the clip bound, m = 1000, nominal gamma 1e-15: too low in about 37% of draws.

    A sample that happens to hold no such record (0.999^1000 = 37%) cannot know of it.
    """
    low, high = 0.01, 12.0
    truth = math.log(0.999 * math.exp(low) + 0.001 * math.exp(high))
    draws = np.where(rng.random((300, 1000)) < 0.001, high, low + 1e-3 * rng.random((300, 1000)))
    estimates = student(draws, weights=ONES, gamma=1e-15, worst=np.full(300, high))
    too_low = np.mean(estimates < truth)
    assert 0.25 < too_low < 0.50
    safe = bernstein(draws, weights=ONES, gamma=1e-15, worst=np.full(300, high))
    assert (safe >= truth).all()


def test_estimators_refuse_samples_and_gammas_that_mean_nothing():
    single = {"weights": np.array([1]), "worst": np.array(1.0)}
    for estimate in (student, bernstein):
        with pytest.raises(ValueError, match="at least 2 records"):
            estimate(np.array([0.5]), gamma=0.01, **single)
    with pytest.raises(ValueError, match=r"below 0\.5"):
        student(np.array([0.5, 0.6]), weights=np.array([1, 1]), gamma=0.6, worst=np.array(1.0))


def test_binary_anchor_of_the_thesis():
    assert binary_share(0, 100, gamma=0.99**101) == pytest.approx(0.01, rel=1e-12)


def test_binary_mixes_two_costs_and_falls_back_to_the_worst_case():
    worst = np.array(5.0)
    share = binary_share(3, 7, gamma=0.01)
    two = binary(np.array([0.0, 2.0]), weights=np.array([7, 3]), gamma=0.01, worst=worst)
    assert float(two) == pytest.approx(math.log(share * math.exp(2.0) + 1 - share))
    unseen = binary_share(0, 10, gamma=0.01)
    one = binary(np.array([0.5]), weights=np.array([10]), gamma=0.01, worst=worst)
    assert float(one) == pytest.approx(math.log(unseen * math.exp(5.0) + (1 - unseen) * math.exp(0.5)))
    at_worst = binary(np.array([5.0]), weights=np.array([10]), gamma=0.01, worst=worst)
    assert float(at_worst) == pytest.approx(5.0)
    with pytest.raises(ValueError, match="at most two"):
        binary(np.array([0.0, 1.0, 2.0]), weights=np.array([1, 1, 1]), gamma=0.01, worst=worst)
