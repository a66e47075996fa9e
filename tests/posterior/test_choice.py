"""`best` chooses what is nearest, and says what it chose over."""

import math

import numpy as np
import pytest

from tacita.posterior.choice import compare, expected_distance
from tacita.posterior.mechanisms import Statistic, best, geometric
from tacita.posterior.models import beta, dirichlet
from tacita.posterior.plans import plan_release
from tacita.posterior.releases import release


def cells_plan(mechanism, prior, cells, n):
    return plan_release(mechanism, Statistic(cells, n, prior=prior))


def posterior_of(prior, n):
    return Statistic(prior.cells, n, prior=prior)


def compared(mechanism, statistic):
    return compare(mechanism.options(statistic), statistic)


def sum_plan(mechanism, step):
    return plan_release(mechanism, Statistic(step=step, summed=True))


def test_best_chooses_the_nearest_and_says_over_what():
    made = release(beta(1, 1), counts=(30, 70), epsilon=0.5, delta=1e-6)
    assert made.mechanism == geometric(epsilon=0.5)
    assert [c.distance for c in made.compared] == sorted(c.distance for c in made.compared)
    assert {c.mechanism.name for c in made.compared} == {"geometric", "laplace", "exponential"}
    assert len(made.compared) == 5
    assert "chosen over" in str(made)
    assert "exponential(epsilon=0.5, delta=1e-06, sensitivity='smooth'" in str(made)


def test_expected_distance_is_that_of_simulated_releases():
    prior, n = beta(1, 1), 25
    rng = np.random.default_rng(0)
    plan = cells_plan(geometric(epsilon=0.5), prior, 2, n)
    from tacita.posterior.enumeration import distances

    gaps, total = distances(prior, n, "hellinger"), 0.0
    for _ in range(3000):
        k = rng.binomial(n, rng.beta(1, 1))
        z = k + rng.geometric(1 - math.exp(-0.5)) - rng.geometric(1 - math.exp(-0.5))
        weights = np.exp(plan.source.log_chance(z - np.arange(n + 1)))
        total += gaps[k, int((weights @ gaps).argmin())]
    assert expected_distance(geometric(epsilon=0.5), posterior_of(prior, n)) == pytest.approx(total / 3000, rel=0.05)


def test_no_mechanism_beats_geometric_noise_at_the_same_pure_epsilon():
    """Ghosh, Roughgarden & Sundararajan 2009: it is optimal for counts, whatever the prior and the loss."""
    for alphas, n, epsilon in [((1, 1), 10, 0.3), ((0.1, 3), 30, 1.0), ((5, 5), 60, 0.1)]:
        nearest = compared(best(epsilon=epsilon), posterior_of(beta(*alphas), n))[0]
        assert nearest.mechanism == geometric(epsilon=epsilon)


def test_three_categories_and_larger_tables_are_compared_or_not():
    few = compared(best(epsilon=0.5), posterior_of(dirichlet(1, 1, 1), 12))
    assert few[0].mechanism == geometric(epsilon=0.5)
    assert len(few) == 3
    assert compared(best(epsilon=0.5), posterior_of(dirichlet(1, 1, 1), 500)) == ()
    assert cells_plan(best(epsilon=0.5), dirichlet(1, 1, 1), 3, 500).used == geometric(epsilon=0.5)


def test_best_takes_the_narrower_noise_for_sums():
    assert sum_plan(best(epsilon=0.5, delta=1e-6), 50).used == geometric(epsilon=0.5)
    assert sum_plan(best(epsilon=0.2, delta=0.1), 50).used.name == "gaussian"


def test_sums_too_wide_for_gaussian_noise_get_geometric_noise():
    assert sum_plan(best(epsilon=0.5, delta=1e-6), 200_000).used == geometric(epsilon=0.5)
