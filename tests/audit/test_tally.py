"""Evidence on canaries and the curves behind it, against closed forms and by repetition."""

import math

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import binom, norm

from tacita.accounting import NORM_LEVELS
from tacita.audit.tally import Family, Tally, roc, step_evidence


def gaussian(sigma, rate=1.0, seed=0, factor=1.0):
    """A Poisson-sampled Gaussian step function in numpy, with its noise times a factor."""
    rng = np.random.default_rng(seed)

    def step(present):
        there = present & (rng.random(len(present)) < rate)
        return there + factor * sigma * rng.standard_normal(len(present))

    return step


def test_evidence_is_the_log_likelihood_ratio(rng):
    z, q, sigma = rng.normal(size=200) * 3, 0.3, 0.7
    for level in (1.0, 0.4):
        parts = [math.log(q) + norm.logpdf(z, level, sigma), math.log(1 - q) + norm.logpdf(z, 0, sigma)]
        expected = logsumexp(parts, axis=0) - norm.logpdf(z, 0, sigma)
        np.testing.assert_allclose(step_evidence(z, level, sample_rate=q, noise_multiplier=sigma), expected, atol=1e-12)
    far = step_evidence(np.array([1e6]), 1.0, sample_rate=q, noise_multiplier=0.1)
    assert far[0] == pytest.approx((2e6 - 1) / 0.02 + math.log(q))
    none = step_evidence(z, 0.0, sample_rate=q, noise_multiplier=sigma)
    np.testing.assert_allclose(none, 0.0, atol=1e-15)


@pytest.mark.parametrize(("rate", "sigma"), [(1.0, 2.0), (0.25, 0.8)])
def test_allowed_share_is_that_of_the_best_guess(rate, sigma):
    """One step: the distance of the mixture is q (2 Φ(1/2σ) - 1) in closed form."""
    counts = np.zeros((1, len(NORM_LEVELS)), dtype=np.int64)
    counts[0, -1] = 1
    distance = Family(counts, [1.0], rate).distance(sigma)
    exact = rate * (2 * norm.cdf(1 / (2 * sigma)) - 1)
    assert exact <= distance <= exact + 1e-3


@pytest.mark.stat
def test_measured_noise_keeps_the_level():
    """With the noise measured on the first tenth, false alarms at 95% stay at 5%: 400 audits, p < 1e-4."""
    alarms, distance = 0, None
    for seed in range(400):
        coins = np.random.default_rng([12, seed])
        tally = Tally(coins.random(300) < 0.5, sample_rate=0.5, noise_multiplier=1.0, parts=np.arange(300) % 3)
        step = gaussian(1.0, 0.5, seed=[13, seed])
        for _ in range(4):
            tally.add(step(tally.present))
        distance = distance or Family(tally.counts, [1.0], 0.5).distance(1.0)
        alarms += tally._share(0.95)[0] > (1 + distance) / 2
    assert alarms <= binom.isf(1e-4, 400, 0.05)


def test_the_drawn_curve_counts_scores_above_each_threshold(rng):
    inside, outside = rng.normal(1.0, 1.0, 300).round(1), rng.normal(0.0, 1.0, 200).round(1)
    points = roc(inside, outside)
    assert points[-1] == (1.0, 1.0)
    assert points[0][0] >= 20 / 200  # fewer false alarms tell too little
    rates = {(np.mean(outside >= t), np.mean(inside >= t)) for t in outside}
    assert {tuple(np.round(p, 12)) for p in points} <= {tuple(np.round(p, 12)) for p in rates}
    assert roc(inside, outside[:10]) == ()
