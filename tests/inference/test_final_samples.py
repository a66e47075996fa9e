"""What the final samples cost: never below a truth that is known, infinite where nothing bounds it."""

import math

import hypothesis.strategies as st
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from scipy.optimize import brentq
from scipy.stats import norm

from tacita import PrivacyError
from tacita.guarantee import Guarantee
from tacita.inference.final_samples import (
    ORDERS,
    Box,
    box_guarantee,
    final_samples_cost,
    pair_costs,
    pair_deltas,
    worst_divergences,
)
from tacita.mechanisms import subsampled_gaussian_costs as subsampled_costs
from tacita.mechanisms.diagonal import Gaussians, renyi_divergences
from tacita.papers import ONE_STEP_ORDERS, one_step_figure

DELTA = 1e-5


def pairs(shift, *, count=50, scale1=1.0, scale2=1.0, dimension=1):
    """`count` equal pairs, or one for each entry of `shift`."""
    means = np.broadcast_to(np.reshape(shift, (-1, 1)), (max(count, np.size(shift)), dimension))
    return (
        Gaussians(means, np.full(means.shape, scale1)),
        Gaussians(np.zeros(means.shape), np.full(means.shape, scale2)),
    )


def exact_delta(epsilon, distance):
    """δ(ε) of a Gaussian moved by `distance` of its standard deviations, in 40 digits (Balle & Wang 2018)."""
    with mpmath.workdps(40):
        e, mu = mpmath.mpf(epsilon), mpmath.mpf(distance)
        return float(mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu))


def exact_epsilon(distance, delta=DELTA):
    return brentq(lambda e: exact_delta(e, distance) - delta, 0.0, 100.0, xtol=1e-13)


# The toy: the mean of n numbers in [-1, 1], by gradient descent on a Gaussian posterior with a fixed scale.
# theta <- theta - rate (w - mean of x), w ~ N(theta, scale²). The record x = 1 is 1/n of the mean.

STEPS, N, RATE, SCALE = 100, 100, 0.1, 0.32
ONE_STEP = RATE / N / SCALE  # how far the record moves theta in one step, in standard deviations: 0.003125


def transcripts(runs, rng):
    """Release w at every step, and return the log ratio of the transcripts' densities with and without the record."""
    with_record = without = np.zeros(runs)
    loss = np.zeros(runs)
    for _ in range(STEPS):
        shared = 0.3  # what the other records add to the mean
        drift = shared if not loss.any() else shared - w  # noqa: F821
        with_record, without = with_record + RATE * (drift + 1.0 / N), without + RATE * drift
        w = rng.normal(with_record, SCALE)
        loss += norm.logpdf(w, with_record, SCALE) - norm.logpdf(w, without, SCALE)
    return loss


@pytest.fixture(scope="module")
def one_step():
    step = subsampled_costs(ONE_STEP_ORDERS, *pairs(ONE_STEP, count=20), sample_rate=1.0)
    return one_step_figure([step] * STEPS, delta=DELTA)


TRUTH = ONE_STEP * math.sqrt(sum(t * t for t in range(1, STEPS + 1)))  # given what was released, the shifts add up


def test_the_toys_truth_is_what_its_transcripts_show(rng):
    """The loss of a real run is N(mu²/2, mu²); mu = 1.818 is epsilon 8.89, and 10 one-step shifts are 0.096."""
    loss = transcripts(20_000, rng)
    assert loss.mean() == pytest.approx(TRUTH**2 / 2, abs=5 * TRUTH / math.sqrt(20_000))
    assert loss.std() == pytest.approx(TRUTH, rel=0.03)
    assert exact_epsilon(TRUTH) == pytest.approx(8.9, abs=0.02)
    assert exact_epsilon(ONE_STEP * math.sqrt(STEPS)) == pytest.approx(0.1, abs=0.01)


def test_the_one_step_figure_is_far_below_the_truth_and_says_that_it_is_no_bound(one_step):
    assert exact_epsilon(ONE_STEP * math.sqrt(STEPS)) < one_step.epsilon < 0.2 < exact_epsilon(TRUTH) / 40
    assert not one_step.is_bound
    assert not one_step.publishable
    assert "NOT AN UPPER BOUND" in str(one_step)
    assert "UNSOUND" in str(one_step)
    assert Guarantee.from_dict(one_step.to_dict()) == one_step


@pytest.mark.parametrize("samples", [1, 10])
def test_the_toys_final_samples_cost_more_than_the_truth_and_not_much(samples):
    """Released alone, w_T is moved by (1 - (1 - rate)^T) / n; all pairs are equal, so their own figure is tight."""
    shift = (1.0 - (1.0 - RATE) ** STEPS) / N
    truth = exact_epsilon(shift / SCALE * math.sqrt(samples))
    box = Box(bound=0.02, low=SCALE, high=SCALE, dimension=1)
    cost = final_samples_cost(*pairs(shift, scale1=SCALE, scale2=SCALE), samples=samples, delta=DELTA, box=box)
    worst_truth = exact_epsilon(2 * 0.02 / SCALE * math.sqrt(samples))
    assert truth < cost.observed < 1.3 * truth
    assert truth < cost.observed < cost.bayesian.epsilon < cost.worst_case.epsilon
    assert worst_truth < cost.worst_case.epsilon < 1.3 * worst_truth


def test_every_step_released_is_above_the_truth_when_replayed_from_the_start():
    """The transcript as one Gaussian in 100 dimensions, shifted by t steps at step t."""
    means = ONE_STEP * np.arange(1.0, STEPS + 1)[None]
    whole = Gaussians(means, np.ones((1, STEPS))), Gaussians(np.zeros((1, STEPS)), np.ones((1, STEPS)))
    cost = final_samples_cost(*whole, samples=1, delta=DELTA)
    assert exact_epsilon(TRUTH) < cost.observed < 1.1 * exact_epsilon(TRUTH)
    assert math.isinf(cost.bayesian.epsilon)


# One pair.


@pytest.mark.parametrize("distance", [1e-3, 0.03, 0.5, 3.0])
def test_a_pairs_delta_is_above_the_exact_one_and_close(distance):
    costs = pair_costs(*pairs(distance, count=1), samples=1)
    for delta in (1e-4, 1e-8):
        epsilon = exact_epsilon(distance, delta)
        found = pair_deltas(costs, epsilon=epsilon)[0]
        assert delta < found < 12 * delta


def hockey_stick(log_p, log_q, epsilon, step):
    """∫ (p - e^ε q)₊ by a sum over a fine grid."""
    return float(np.maximum(np.exp(log_p) - math.exp(epsilon) * np.exp(log_q), 0.0).sum() * step)


AXIS = np.linspace(-30.0, 30.0, 60_001)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 3.0])
def test_unequal_scales_against_quadrature_in_the_worse_direction(epsilon):
    for scale1, scale2 in ((1.3, 1.0), (1.0, 1.3), (2.0, 1.0)):
        first, second = norm.logpdf(AXIS, 0.2, scale1), norm.logpdf(AXIS, 0.0, scale2)
        truth = max(hockey_stick(a, b, epsilon, 1e-3) for a, b in ((first, second), (second, first)))
        costs = pair_costs(*pairs(0.2, count=1, scale1=scale1, scale2=scale2), samples=1)
        assert pair_deltas(costs, epsilon=epsilon)[0] >= truth


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0])
def test_the_mean_over_pairs_bounds_the_mixture_for_any_coupling(epsilon):
    """Two equally likely outcomes of training, paired either way: the mixture's own divergence is below both means."""
    with_record = [(0.0, 1.0), (2.0, 1.2)]
    without = [(0.1, 1.05), (1.7, 1.1)]

    def log_densities(laws):
        return [norm.logpdf(AXIS, *law) for law in laws]

    p, q = (np.logaddexp(*log_densities(laws)) - math.log(2.0) for laws in (with_record, without))
    truth = max(hockey_stick(p, q, epsilon, 1e-3), hockey_stick(q, p, epsilon, 1e-3))
    for order in ((0, 1), (1, 0)):
        other = [without[i] for i in order]
        exact = [
            max(hockey_stick(a, b, epsilon, 1e-3), hockey_stick(b, a, epsilon, 1e-3))
            for a, b in zip(log_densities(with_record), log_densities(other), strict=True)
        ]
        first, second = (Gaussians(*np.array(laws).T[..., None]) for laws in (with_record, other))
        bounds = pair_deltas(pair_costs(first, second, samples=1), epsilon=epsilon)
        assert truth <= np.mean(exact) <= bounds.mean()
        assert (np.array(exact) <= bounds).all()


@settings(max_examples=25)
@given(
    shift=st.floats(0.0, 3.0),
    further=st.floats(0.0, 1.0),
    samples=st.integers(1, 50),
    more=st.integers(0, 50),
    ratio=st.floats(0.8, 1.25),
    epsilon=st.floats(0.0, 20.0),
)
def test_more_samples_and_larger_shifts_never_cost_less(shift, further, samples, more, ratio, epsilon):
    def delta(distance, count):
        return pair_deltas(pair_costs(*pairs(distance, count=1, scale1=ratio), samples=count), epsilon=epsilon).item()

    here = delta(shift, samples)
    assert here <= delta(shift + further, samples)
    assert here <= delta(shift, samples + more)
    assert here >= delta(shift, samples) * (1 - 1e-12)


def test_the_whole_figure_rises_with_samples_and_shift():
    box = Box(bound=0.5, low=0.99, high=1.01, dimension=1)

    def epsilons(shift, samples):
        cost = final_samples_cost(*pairs(shift, count=400), samples=samples, delta=DELTA, box=box)
        return np.array([cost.observed, cost.bayesian.epsilon])

    for more in (epsilons(0.1, 1), epsilons(0.05, 4)):
        assert epsilons(0.05, 1)[0] < more[0]
        assert epsilons(0.05, 1)[1] <= more[1]  # what is unseen may outweigh the pairs


# A record far out of range.


def test_a_record_that_breaks_every_order_costs_everything():
    """Thirty-three times the scale has no moment at any order here: delta is 1 at every epsilon."""
    assert ORDERS[0] > 1.0 / (33.0**2 - 1.0)
    costs = pair_costs(*pairs(0.0, count=1, scale1=33.0), samples=1)
    assert [pair_deltas(costs, epsilon=e)[0] for e in (0.0, 10.0, 1e6)] == [1.0, 1.0, 1.0]
    first, second = pairs(0.01, count=1000)
    outlier = np.array(first.scales)
    outlier[17] = 33.0
    cost = final_samples_cost(Gaussians(first.means, outlier), second, samples=1, delta=DELTA)
    assert math.isinf(cost.bayesian.epsilon)
    assert math.isinf(cost.worst_case.epsilon)
    assert math.isinf(cost.observed)


def test_a_record_thirty_times_out_of_range_is_refused_or_clipped_never_small():
    """Posterior of a mean with known noise: n unit records; one at 30 moves it thirtyfold and shrinks its scale."""
    n, box = 100, Box(bound=0.02, low=0.099, high=0.101, dimension=1)
    usual = final_samples_cost(
        *pairs(1.0 / n, count=400, scale1=0.1, scale2=0.1), samples=1, delta=DELTA, box=box
    ).bayesian.epsilon
    moved = np.full(400, 1.0 / n)
    moved[3] = 30.0 / n
    far = pairs(moved, scale1=0.1, scale2=0.1)
    assert math.isinf(final_samples_cost(*far, samples=1, delta=DELTA).bayesian.epsilon)
    assert final_samples_cost(*far, samples=1, delta=DELTA).observed > 3 * usual
    with pytest.raises(PrivacyError, match="outside the declared box"):
        final_samples_cost(*far, samples=1, delta=DELTA, box=box)
    clipped = pairs(np.minimum(moved, 0.02), scale1=0.1, scale2=0.1)
    assert final_samples_cost(*clipped, samples=1, delta=DELTA, box=box).bayesian.epsilon >= usual


# From the pairs drawn to all pairs.


@pytest.mark.slow
@pytest.mark.stat
def test_the_band_is_too_low_at_most_gamma_of_the_time_and_the_mean_alone_is_not_enough(rng):
    """One record in fifty moves the posterior to the edge of the box: with 60 pairs it is often not drawn."""
    delta, gamma, rare, m, repeats = 0.25, 0.2, 0.02, 60, 150
    small, large = 0.05, 6.0
    box = Box(bound=3.0, low=1.0, high=1.0, dimension=1)
    both = pair_costs(*pairs([small, large], count=2), samples=1)

    def true_mean(epsilon):
        values = pair_deltas(both, epsilon=epsilon)
        return (1 - rare) * values[0] + rare * values[1]

    missed = below = 0
    for _ in range(repeats):
        drawn = np.where(rng.random(m) < rare, large, small) - 3.0  # within the box: from -3
        first, second = Gaussians(drawn[:, None], np.ones((m, 1))), Gaussians(np.full((m, 1), -3.0), np.ones((m, 1)))
        found = final_samples_cost(first, second, samples=1, delta=delta, box=box, gamma=gamma)
        missed += true_mean(found.bayesian.epsilon) > (delta - gamma) * (1 + 1e-9)
        reading = final_samples_cost(first, second, samples=1, delta=0.01, box=box).observed
        below += true_mean(reading) > 0.01 * (1 + 1e-9)
    assert missed / repeats <= gamma + 3 * math.sqrt(gamma * (1 - gamma) / repeats)
    assert below / repeats > gamma + 3 * math.sqrt(gamma * (1 - gamma) / repeats)


def test_more_pairs_bring_the_figure_down_and_the_worst_case_is_its_ceiling():
    box = Box(bound=0.5, low=1.0, high=1.0, dimension=1)
    worst = box_guarantee(box, samples=1, delta=DELTA)
    found = [
        final_samples_cost(*pairs(0.01, count=m), samples=1, delta=DELTA, box=box).bayesian.epsilon
        for m in (1, 100, 10_000)
    ]
    assert found[0] == worst.epsilon
    assert found[0] > found[1] > found[2]
    at_edge = (
        Gaussians(np.full((100, 1), 0.5), np.ones((100, 1))),
        Gaussians(np.full((100, 1), -0.5), np.ones((100, 1))),
    )
    capped = final_samples_cost(*at_edge, samples=1, delta=DELTA, box=box).bayesian
    assert capped.epsilon == worst.epsilon
    assert capped.method == "worst-case cap"


def test_without_a_box_it_is_finite_only_where_delta_covers_what_is_unseen():
    first, second = pairs(0.1, count=1000)
    assert math.isinf(final_samples_cost(first, second, samples=1, delta=1e-3).bayesian.epsilon)
    loose = final_samples_cost(first, second, samples=1, delta=0.05, gamma=0.01)
    assert 0.0 < loose.bayesian.epsilon < 1.0
    assert math.isinf(loose.worst_case.epsilon)


def test_a_box_too_wide_for_any_order_is_infinite():
    assert math.isinf(box_guarantee(Box(bound=1.0, low=0.01, high=1.0, dimension=2), samples=1, delta=DELTA).epsilon)


def test_the_statements_say_what_they_rest_on():
    box = Box(bound=0.5, low=0.9, high=1.1, dimension=1)
    cost = final_samples_cost(*pairs(0.01, count=200), samples=3, delta=DELTA, box=box, gamma=1e-6)
    worst, typical = cost.worst_case, cost.bayesian
    assert worst.publishable
    assert not typical.publishable
    assert worst.is_bound
    assert typical.is_bound
    assert (typical.kind, typical.scope, typical.notion, typical.estimator) == ("bayesian", "reading", "weak", "band")
    assert typical.model == "distribution-free"
    assert dict(typical.delta_split) == {"band": 1e-6, "expected": DELTA - 1e-6}
    assert dict(typical.mechanism)["pairs"] == 200
    assert dict(worst.mechanism)["samples"] == 3
    text = " ".join(a.text for a in typical.assumptions)
    for words in ("this dataset", "with replacement", "same randomness", "ELBO", "unseen", "box"):
        assert words in text
    for guarantee in (worst, typical):
        assert Guarantee.from_dict(guarantee.to_dict()) == guarantee


def test_what_makes_no_sense_is_refused(one_step):
    first, second = pairs(0.1)
    with pytest.raises(PrivacyError, match="reaches delta"):
        final_samples_cost(first, second, samples=1, delta=DELTA, gamma=DELTA)
    with pytest.raises(ValueError, match="samples"):
        final_samples_cost(first, second, samples=0, delta=DELTA)
    with pytest.raises(ValueError, match="delta"):
        final_samples_cost(first, second, samples=1, delta=1.0)
    with pytest.raises(ValueError, match="row by row"):
        final_samples_cost(first, pairs(0.1, count=51)[1], samples=1, delta=DELTA)
    with pytest.raises(ValueError, match="costs must have shape"):
        one_step_figure([np.zeros((3, 5))], delta=DELTA)


def test_a_step_without_a_moment_makes_the_one_step_figure_infinite():
    bad = subsampled_costs(ONE_STEP_ORDERS, *pairs(0.0, count=3, scale1=2.0), sample_rate=0.5)
    assert math.isinf(one_step_figure([bad], delta=DELTA, sample_rate=0.5).epsilon)


# The cap of a box holds for everything in it, and is reached.


def one(mean, scale):
    return Gaussians(np.atleast_2d(mean), np.atleast_2d(scale))


@settings(max_examples=100, deadline=None)
@given(
    bound=st.floats(0.0, 2.0),
    low=st.floats(0.3, 1.0),
    stretch=st.floats(1.0, 1.6),
    lam=st.floats(-2.0, 1.5),
    places=st.lists(st.floats(0.0, 1.0), min_size=8, max_size=8),
)
def test_nothing_in_the_box_is_above_its_cap(bound, low, stretch, lam, places):
    box = Box(bound=bound, low=low, high=low * stretch, dimension=2)
    place = np.array(places).reshape(2, 2, 2)
    pair = [Gaussians((2 * p[:1] - 1) * bound, low * (1 + (stretch - 1) * p[1:])) for p in place]
    assert all(box.holds(g) for g in pair)
    alpha = 1.0 + 10.0**lam
    cap = worst_divergences([alpha], box)[0]
    for p, q in (pair, pair[::-1]):
        assert renyi_divergences([alpha], p, q)[0, 0] <= cap


def test_the_cap_is_reached_at_a_corner_and_ends_with_existence():
    box = Box(bound=np.array([0.5, 0.1]), low=1.0, high=1.2, dimension=2)
    corner = renyi_divergences([2.0], one([0.5, 0.1], [1.2, 1.2]), one([-0.5, -0.1], [1.0, 1.0]))[0, 0]
    assert corner <= worst_divergences([2.0], box)[0] <= corner * (1 + 1e-4)
    border = 1.44 / 0.44
    caps = worst_divergences([border * 0.99, border, 10.0], box)
    assert np.isfinite(caps[0])
    assert np.isinf(caps[1:]).all()


def test_single_precision_stays_in_the_box_and_more_does_not():
    box = Box(bound=0.7, low=0.01, high=0.3, dimension=1)
    clipped = Gaussians(np.float32([[0.7], [-0.7]]), np.float32([[0.01], [0.3]]))
    assert box.holds(clipped)
    assert not box.holds(one(0.71, 0.1))
    assert not box.holds(one(0.0, 0.009))
    assert not box.holds(one(0.0, 0.31))


def test_a_box_that_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="low <= high"):
        Box(bound=1.0, low=1.0, high=0.5, dimension=1)
    with pytest.raises(ValueError, match="3 of them"):
        Box(bound=np.ones(2), low=1.0, high=2.0, dimension=3)
    with pytest.raises(ValueError, match="coordinates"):
        Box(bound=1.0, low=1.0, high=2.0, dimension=3).holds(one(0.0, 1.0))
