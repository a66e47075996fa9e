"""Mixtures are distributions."""

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from tacita.posterior.mixtures import BetaMixture, NormalMixture
from tacita.posterior.models import dirichlet
from tacita.posterior.releases import release


def test_mixtures_agree_with_scipy():
    one = BetaMixture(np.array([1.0]), np.array([2.5]), np.array([4.0]))
    same = stats.beta(2.5, 4.0)
    x = np.array([-0.5, 0.0, 0.1, 0.6, 1.0, 2.0])
    assert one.pdf(x) == pytest.approx(same.pdf(x))
    assert one.cdf(x) == pytest.approx(same.cdf(x))
    assert (one.mean, one.sd) == pytest.approx((same.mean(), same.std()))
    assert one.interval(0.8) == pytest.approx(same.interval(0.8))
    two = NormalMixture(np.array([0.25, 0.75]), np.array([-1.0, 2.0]), np.array([0.5, 1.0]))
    assert quad(lambda t: float(two.pdf(t)), -10, 10)[0] == pytest.approx(1.0)
    assert two.cdf(0.3) == pytest.approx(0.25 * stats.norm.cdf(2.6) + 0.75 * stats.norm.cdf(-1.7))
    assert two.quantile(0.5) == pytest.approx(quad(lambda t: 1.0, 0, two.quantile(0.5))[0])


def test_posteriors_are_short_at_the_prompt():
    made = release(dirichlet(1, 1, 1), counts=(10, 20, 30), epsilon=5)
    assert max(len(repr(made)), len(repr(made.posterior)), len(repr(made.posterior.marginals[0]))) < 200


def test_a_seed_is_not_a_generator():
    with pytest.raises(TypeError, match=r"rng must be a generator, got 3; pass rng=numpy.random.default_rng"):
        BetaMixture(np.array([1.0]), np.array([1.0]), np.array([1.0])).sample(2, rng=3)
