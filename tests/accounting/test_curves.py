"""Records' own curves against closed forms, dp-accounting from both sides, and mpmath."""

import math

import hypothesis.strategies as st
import mpmath as mp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given
from scipy.special import ndtr

from tacita.accounting import NORM_LEVELS, level_of, record_curves, worst_curve
from tacita.accounting.curves import _distinct_rows
from tacita.accounting.levels import TOP
from tacita.accounting.losses import LOST_PER_STEP, step_losses
from tacita.accounting.spectra import log_mgf_roundoff, log_mgfs


def counts_of(*rows):
    """Each row is {level index: steps}."""
    counts = np.zeros((len(rows), len(NORM_LEVELS)), dtype=np.int64)
    for i, row in enumerate(rows):
        for level, steps in row.items():
            counts[i, level] = steps
    return counts


def composed(rate, sigma, row, *, pessimistic, interval):
    """The same composition by dp-accounting, from above or from below."""
    whole = None
    for level, steps in row.items():
        one = pld.from_gaussian_mechanism(
            sigma,
            sensitivity=float(NORM_LEVELS[level]),
            value_discretization_interval=interval,
            sampling_prob=rate,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
        ).self_compose(steps)
        whole = one if whole is None else whole.compose(one)
    return whole


def gaussian_delta(epsilon, ratio):
    return ndtr(ratio / 2 - epsilon / ratio) - math.exp(epsilon) * ndtr(-ratio / 2 - epsilon / ratio)


@pytest.mark.parametrize(("sigma", "steps"), [(1.0, 1), (5.0, 50), (50.0, 10_000), (0.5, 1)])
@pytest.mark.parametrize("level", [TOP, 128])
def test_without_sampling_the_gaussian_closed_form_is_met_from_above(sigma, steps, level):
    ratio = float(NORM_LEVELS[level]) / sigma * math.sqrt(steps)
    curves = record_curves(counts_of({level: steps}), sample_rate=1.0, noise_multiplier=sigma)
    grid = np.linspace(0.0, 4 * ratio + ratio**2 / 2, 25)
    exact = np.array([gaussian_delta(e, ratio) for e in grid])
    found = curves.delta(grid)[:, 0]
    assert (found >= exact * (1 - 1e-9)).all()
    relevant = exact > 1e-9
    assert (found[relevant] <= exact[relevant] * 1.05).all()


MIXED = [
    (0.01, 1.0, {TOP: 2000}),
    (0.01, 1.0, {TOP: 100, 128: 500, 60: 1400}),
    (0.05, 0.7, {TOP: 3, 200: 40}),
    (0.2, 2.0, {TOP: 30, 150: 30}),
    (0.004, 1.0, {TOP: 400, 128: 800, 181: 800}),
    (0.5, 3.0, {TOP: 1, 90: 300}),
]


@pytest.mark.parametrize(("rate", "sigma", "row"), MIXED)
def test_curves_lie_between_dp_accounting_from_below_and_above(rate, sigma, row):
    curves = record_curves(counts_of(row), sample_rate=rate, noise_multiplier=sigma)
    steps = sum(row.values())
    lower = composed(rate, sigma, row, pessimistic=False, interval=1e-3 / math.sqrt(steps))
    upper = composed(rate, sigma, row, pessimistic=True, interval=1e-4)
    for delta in (1e-3, 1e-5, 1e-8):
        found = float(curves.epsilon(delta)[0])
        assert lower.get_epsilon_for_delta(delta) <= found * (1 + 1e-9)
        assert found <= upper.get_epsilon_for_delta(delta) * 1.004 + 1e-4


@pytest.mark.parametrize("rate", [0.01, 0.3])
@pytest.mark.parametrize("ratio", [0.3, 1.0, 3.0])
def test_one_step_equals_mpmath_in_the_worse_direction(rate, ratio):
    mp.mp.dps = 40
    q, r = mp.mpf(rate), mp.mpf(ratio)

    def cdf(x, mean=0):
        return mp.ncdf(x - mean)

    def removed(eps):  # P = mixture, Q = N(0,1): outcomes above w where the loss is eps
        w = (mp.log((mp.exp(eps) - 1 + q) / q) + r * r / 2) / r
        own = (1 - q) * (1 - cdf(w)) + q * (1 - cdf(w, r))
        return own - mp.exp(eps) * (1 - cdf(w))

    def added(eps):  # P = N(0,1), Q = mixture: the loss is at most -log(1-q)
        if mp.exp(-eps) <= 1 - q:
            return mp.mpf(0)
        w = (mp.log((mp.exp(-eps) - 1 + q) / q) + r * r / 2) / r
        return cdf(w) - mp.exp(eps) * ((1 - q) * cdf(w) + q * cdf(w, r))

    grid = np.array([1e-4, 0.001, 0.005, 0.02, 0.1, 0.5, 1.0])
    found = record_curves(counts_of({TOP: 1}), sample_rate=rate, noise_multiplier=1 / ratio).delta(grid)[:, 0]
    exact = np.array([float(max(removed(mp.mpf(e)), added(mp.mpf(e)))) for e in grid])
    assert (found >= exact * (1 - 1e-9)).all()
    assert (found <= exact * 1.01 + 1e-12).all()


@pytest.mark.parametrize("rate", [1e-4, 0.01, 1.0])
@pytest.mark.parametrize("ratio", [1e-4, 0.1, 1.0, 20.0])
def test_one_steps_grid_keeps_all_probability(rate, ratio):
    for loss in step_losses(rate, ratio, 1e-3 * max(ratio, 0.1)):
        assert (loss.probabilities >= 0).all()
        assert loss.probabilities.sum() == pytest.approx(1.0, abs=1e-12)
        assert loss.probabilities.sum() >= 1.0 - LOST_PER_STEP - 1e-12


@pytest.mark.parametrize("rate", [0.01, 1.0])
def test_one_steps_grid_equals_dp_accounting(rate):
    """The same connect-the-dots pair, reached by another way."""
    reference = pld.from_gaussian_mechanism(1.0, value_discretization_interval=1e-3, sampling_prob=rate)
    for ours, theirs in zip(step_losses(rate, 1.0, 1e-3), (reference._pmf_remove, reference._pmf_add), strict=True):
        dense = theirs.to_dense_pmf()
        grid = 1e-3 * (ours.first + np.arange(len(ours.probabilities)))
        for epsilon in (0.0, 0.003, 0.0105, 0.3, 2.0):
            mine = np.sum(ours.probabilities * np.maximum(0.0, -np.expm1(epsilon - grid)))
            assert mine == pytest.approx(dense.get_delta_for_epsilon(epsilon), rel=1e-7, abs=1e-12)


@pytest.mark.parametrize(("rate", "ratio", "interval"), [(0.05, 1.3, 0.02), (1e-3, 2.0, 0.02), (0.2, 6.0, 0.1)])
def test_log_moments_of_a_gridded_loss_equal_those_in_forty_digits(rate, ratio, interval):
    theta = np.array([-4000.0, -60.0, -0.1, 0.01, 3.0, 60.0, 4000.0])
    for loss in step_losses(rate, ratio, interval):
        with mp.workdps(40):
            cells = [(mp.mpf(interval) * (loss.first + i), mp.mpf(float(p))) for i, p in enumerate(loss.probabilities)]
            exact = [mp.log(mp.fsum(p * mp.exp(float(t) * x) for x, p in cells)) for t in theta]
            found = np.concatenate([log_mgfs((loss,), interval, part)[0] for part in (theta[:3], theta[3:])])
            errors = np.array([abs(float(mp.mpf(float(f)) - e)) for f, e in zip(found, exact, strict=True)])
        assert (errors < log_mgf_roundoff(loss, interval, theta)).all()
        assert (errors < 1e-10 * (1.0 + np.abs(theta))).all()


def test_heavy_tails_and_few_steps_stay_finite_and_tight():
    """Losses that are not smooth: rare participation, little noise."""
    for rate, sigma, steps in ((0.001, 0.5, 100), (1e-4, 0.45, 10), (0.1, 0.6, 20)):
        found = float(worst_curve(steps, sample_rate=rate, noise_multiplier=sigma).epsilon(1e-5)[0])
        reference = composed(rate, sigma, {TOP: steps}, pessimistic=True, interval=1e-4).get_epsilon_for_delta(1e-5)
        assert 0.995 * reference <= found <= 1.01 * reference


def test_records_that_spend_nothing_have_nothing_to_lose():
    curves = record_curves(counts_of({0: 500}, {TOP: 5}), sample_rate=0.1, noise_multiplier=1.0)
    assert curves.delta(np.array([0.0, 1.0]))[:, 0].tolist() == [0.0, 0.0]
    assert curves.epsilon(1e-6)[0] == 0.0
    assert curves.epsilon(1e-6)[1] > 0.0


def test_rows_keep_their_places(rng):
    """Grouping, deduplication and permutation change nothing."""
    rows = [
        {int(level): int(steps)}
        for level, steps in zip(rng.integers(0, 257, 40), rng.integers(1, 900, 40), strict=True)
    ]
    counts = counts_of(*rows, *rows[:5])
    order = rng.permutation(len(counts))
    straight = record_curves(counts, sample_rate=0.02, noise_multiplier=1.2).epsilon(1e-6)
    shuffled = record_curves(counts[order], sample_rate=0.02, noise_multiplier=1.2).epsilon(1e-6)
    assert shuffled == pytest.approx(straight[order], rel=1e-12)
    assert straight[40:] == pytest.approx(straight[:5], rel=1e-12)
    alone = [
        record_curves(counts[i : i + 1], sample_rate=0.02, noise_multiplier=1.2).epsilon(1e-6)[0] for i in range(8)
    ]
    assert straight[:8] == pytest.approx(alone, rel=3e-3, abs=1e-9)


@given(st.lists(st.tuples(st.integers(1, TOP), st.integers(1, 300)), min_size=1, max_size=4), st.floats(0.005, 1.0))
def test_more_steps_or_larger_norms_never_cost_less(spent, rate):
    row = dict(spent)
    more = {**row, TOP: row.get(TOP, 0) + 20}
    curves = record_curves(counts_of(row, more), sample_rate=rate, noise_multiplier=1.5)
    less, most = curves.epsilon(1e-5)
    assert less <= most * 1.003 + 1e-9


@given(st.floats(0.0, 1.0))
def test_norms_are_rounded_up_to_the_next_level(norm):
    index = int(level_of(np.array([norm]))[0])
    assert NORM_LEVELS[index] >= norm
    assert index == 0 or NORM_LEVELS[index - 1] < norm


@pytest.mark.parametrize(
    "counts", [np.zeros((2, 3), dtype=np.int64), np.zeros(257, dtype=np.int64), -counts_of({3: 1})]
)
def test_bad_counts_are_refused(counts):
    with pytest.raises(ValueError, match="counts must be"):
        record_curves(counts, sample_rate=0.1, noise_multiplier=1.0)


def test_levels_map_to_themselves():
    assert (level_of(NORM_LEVELS) == np.arange(len(NORM_LEVELS))).all()


def test_deltas_fall_with_epsilon_and_invert(rng):
    counts = counts_of({TOP: 300, 100: 200}, {128: 500}, {30: 500})
    curves = record_curves(counts, sample_rate=0.03, noise_multiplier=0.9)
    grid = np.linspace(0, 8, 200)
    deltas = curves.delta(grid)
    assert (np.diff(deltas, axis=0) <= 1e-15).all()
    for delta in (1e-2, 1e-5, 1e-9):
        own = curves.epsilon(delta)
        at = np.diag(curves.delta(own))
        assert at[own > 0] == pytest.approx(delta, rel=1e-6)
        assert (at <= delta * (1 + 1e-6)).all()
    assert math.isinf(curves.epsilon(1e-17)[0])  # below what is resolved: said as infinite


@pytest.mark.parametrize(
    ("rate", "sigma", "row", "epsilon"),
    [
        (0.01, 1.0, {TOP: 2000}, 2.5),
        (0.01, 1.0, {TOP: 2000}, 3.6),
        (0.01, 1.0, {TOP: 100, 128: 500, 60: 1400}, 0.5),
        (0.001, 3.0, {TOP: 100_000}, 0.4),
        (0.001, 3.0, {TOP: 1_000_000}, 1.5),
        (0.05, 2.0, {TOP: 300, 200: 300}, 2.0),
    ],
)
def test_curves_are_above_the_contour_integral_and_close(rate, sigma, row, epsilon, contour_delta):
    exact = contour_delta(epsilon, rate, [(float(NORM_LEVELS[level]) / sigma, n) for level, n in row.items()])
    found = record_curves(counts_of(row), sample_rate=rate, noise_multiplier=sigma).delta(np.array([epsilon]))[0, 0]
    steps = sum(row.values())
    assert exact <= found <= exact * 1.06 + 4e-15 * steps


@pytest.mark.parametrize(("rate", "sigma"), [(1e-3, 0.02), (0.3, 0.02), (1e-4, 0.03), (1.0, 0.02)])
@pytest.mark.parametrize("delta", [1e-5, 1e-9])
def test_losses_in_the_hundreds_and_thousands_are_kept(rate, sigma, delta):
    """Once, everything beyond a loss of 700 was counted as nothing."""
    mp.mp.dps = 60
    q, r = mp.mpf(rate), 1 / mp.mpf(sigma)

    def exact(epsilon):  # one step, the record removed
        w = (mp.log((mp.exp(epsilon) - 1 + q) / q) + r * r / 2) / r
        return (1 - q) * mp.ncdf(-w) + q * mp.ncdf(r - w) - mp.exp(epsilon) * mp.ncdf(-w)

    found = mp.mpf(float(worst_curve(1, sample_rate=rate, noise_multiplier=sigma).epsilon(delta)[0]))
    assert exact(found) <= delta
    assert exact(found / mp.mpf("1.01")) > delta


@pytest.mark.parametrize(
    ("level", "steps", "sigma"),
    [(1, 1, 1.0), (1, 100, 0.3), (16, 3, 10.0), (64, 1, 1000.0), (1, 1, 1000.0), (1, 100, 1000.0)],
)
@pytest.mark.parametrize("delta", [1e-6, 1e-9, 1e-12])
def test_tiny_losses_are_not_lost_to_cancellation(level, steps, sigma, delta):
    """Once, 1 - e^-interval was formed by subtraction, and small curves came out too low."""
    ratio = float(NORM_LEVELS[level]) / sigma * math.sqrt(steps)
    curves = record_curves(counts_of({level: steps}), sample_rate=1.0, noise_multiplier=sigma)
    found = float(curves.epsilon(delta)[0])
    assert gaussian_delta_exact(found, ratio) <= delta * (1 + 1e-9)
    assert curves.delta(np.array([0.0]))[0, 0] >= gaussian_delta_exact(0.0, ratio)


def gaussian_delta_exact(epsilon, ratio):
    mp.mp.dps = 40
    eps, r = mp.mpf(epsilon), mp.mpf(ratio)
    return float(mp.ncdf(r / 2 - eps / r) - mp.exp(eps) * mp.ncdf(-r / 2 - eps / r))


def test_one_small_step_is_not_lost_to_cancellation():
    found = float(worst_curve(1, sample_rate=0.01, noise_multiplier=10.0).epsilon(1e-12)[0])
    assert found >= 0.007734
    assert found <= 0.00790


@pytest.mark.parametrize(("rate", "sigma", "level"), [(0.5, 100.0, 1), (0.9, 10.0, 1), (0.1, 10.0, 2), (0.5, 1e4, 1)])
def test_tiny_norms_at_large_rates_need_no_huge_grid(rate, sigma, level):
    curves = record_curves(counts_of({level: 10}), sample_rate=rate, noise_multiplier=sigma)
    assert 0.0 <= curves.epsilon(1e-5)[0] < 1e-4


@pytest.mark.parametrize(("sigma", "level"), [(0.3, 16), (10.0, 64), (1.0, 64), (10.0, 200), (1000.0, TOP)])
def test_a_million_steps_stay_tight(sigma, level):
    ratio = float(NORM_LEVELS[level]) / sigma * 1000.0
    curves = record_curves(counts_of({level: 10**6}), sample_rate=1.0, noise_multiplier=sigma)
    found = float(curves.epsilon(1e-5)[0])
    assert gaussian_delta_exact(found, ratio) <= 1e-5
    assert gaussian_delta_exact(found / 1.01, ratio) > 1e-5


@pytest.mark.parametrize(("steps", "delta"), [(400, 1e-12), (2000, 4e-12), (5000, 1e-12)])
def test_no_number_of_steps_falls_between_transform_and_moments(steps, delta, contour_delta):
    found = float(worst_curve(steps, sample_rate=0.01, noise_multiplier=1.0).epsilon(delta)[0])
    assert contour_delta(found, 0.01, [(1.0, steps)]) <= delta
    assert contour_delta(found / 1.2, 0.01, [(1.0, steps)]) > delta


def test_large_epsilons_are_resolved_too():
    ratio = 2.0 / 0.0346
    found = float(worst_curve(4, sample_rate=1.0, noise_multiplier=0.0346).epsilon(0.01)[0])
    assert gaussian_delta_exact(found, ratio) <= 0.01
    assert found <= 1.004 * 1803.1


def test_below_the_round_off_moments_still_answer():
    found = float(worst_curve(10**6, sample_rate=1e-3, noise_multiplier=3.0).epsilon(1e-10)[0])
    assert 2.0807 < found < 2.0807 * 1.15


@pytest.fixture(scope="module")
def crowd():
    """More records than have a grid each, over most levels, and alike."""
    rng = np.random.default_rng(5)
    norms = np.minimum(rng.lognormal(-1.0, 0.1, (1500, 1)) * rng.lognormal(0.0, 0.6, (1500, 60)), 1.0)
    counts = np.zeros((1500, len(NORM_LEVELS)), dtype=np.int16)
    np.add.at(counts, (np.arange(1500)[:, None], level_of(norms)), 10)
    return counts


def test_many_records_curves_are_those_of_few_and_at_most_slightly_looser(crowd):
    mechanism = {"sample_rate": 0.01, "noise_multiplier": 1.0}
    many, some = record_curves(crowd, **mechanism), np.arange(0, 1500, 5)
    assert max(len(group.deltas) for group in many.groups) > 100
    few = record_curves(crowd[some], **mechanism)
    for delta in (1e-3, 1e-5, 1e-8):
        ratio = many.epsilon(delta)[some] / few.epsilon(delta)
        assert ratio.min() > 0.998  # which has a grid of its own, and may itself be a little too large
        assert ratio.max() < 1.005
    assert many.delta(np.zeros(1))[0, some] == pytest.approx(few.delta(np.zeros(1))[0], rel=2e-3)


@pytest.mark.slow
def test_many_records_curves_are_above_the_contour_integral(crowd, contour_delta):
    epsilons = record_curves(crowd, sample_rate=0.01, noise_multiplier=1.0).epsilon(1e-5)
    for place in (int(epsilons.argmin()), int(epsilons.argmax()), 7):
        parts = [(float(NORM_LEVELS[level]), int(n)) for level, n in enumerate(crowd[place]) if n and level]
        assert contour_delta(float(epsilons[place]), 0.01, parts) <= 1e-5
        assert contour_delta(float(epsilons[place]) / 1.005, 0.01, parts) > 1e-5


def test_rows_whose_weighted_sums_are_equal_are_told_apart():
    weights = np.random.default_rng(0).integers(1 << 62, size=len(NORM_LEVELS))
    rows = np.zeros((3, len(NORM_LEVELS)), dtype=np.int64)
    rows[0, 5], rows[1, 9], rows[2, 5] = weights[9], weights[5], weights[9]
    assert rows[0] @ weights == rows[1] @ weights
    distinct, back = _distinct_rows(rows)
    assert len(distinct) == 2
    assert np.array_equal(distinct[back], rows)


def check_random_runs(rng, contour_delta, repeats):
    """Random mixtures of levels, against the contour integral, at the epsilon our own curve gives."""
    for _ in range(repeats):
        rate, sigma = 10 ** rng.uniform(-2.5, -0.5), 10 ** rng.uniform(-0.1, 0.8)
        levels = rng.choice(np.arange(20, 257), size=3, replace=False)
        row = {int(level): int(10 ** rng.uniform(1.5, 3.5)) for level in levels}
        delta = 10 ** rng.uniform(-8, -3)
        curves = record_curves(counts_of(row), sample_rate=rate, noise_multiplier=sigma)
        epsilon = float(curves.epsilon(delta)[0])
        if epsilon < 1e-3:
            continue
        parts = [(float(NORM_LEVELS[level]) / sigma, n) for level, n in row.items()]
        assert contour_delta(epsilon, rate, parts) <= delta * (1 + 1e-7), (rate, sigma, row, delta)
        assert contour_delta(epsilon / 1.005, rate, parts) > delta, (rate, sigma, row, delta)


def test_random_runs_equal_the_contour_integral_from_above(rng, contour_delta):
    check_random_runs(rng, contour_delta, 5)


@pytest.mark.slow
def test_random_runs_equal_the_contour_integral_from_above_in_the_long_run(rng, contour_delta):
    check_random_runs(rng, contour_delta, 100)
