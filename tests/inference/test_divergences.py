"""Divergences of Gaussians against quadrature and 60-digit arithmetic, in both directions, up to where they end."""

import math

import hypothesis.strategies as st
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from scipy.special import logsumexp
from scipy.stats import norm

from tacita.inference.divergences import Box, Gaussians, renyi_divergences, worst_divergences
from tacita.mechanisms import diagonal_gaussian_renyi, gaussian_renyi, sampled_gaussian_cost, subsampled_cost
from tacita.mechanisms import subsampled_gaussian_costs as subsampled_costs


def one(mean, scale):
    return Gaussians(np.atleast_2d(mean), np.atleast_2d(scale))


def by_quadrature(alpha, first, second):
    """D_α of two Gaussians on a line, by mpmath's quadrature of its definition."""
    (m1, s1), (m2, s2) = first, second

    def log_density(x, mean, scale):
        return -(((x - mean) / scale) ** 2) / 2 - mpmath.log(scale) - mpmath.log(2 * mpmath.pi) / 2

    with mpmath.workdps(30):
        curvature = alpha / s1**2 - (alpha - 1) / s2**2  # of the exponent; only tells where to look
        centre = (alpha * m1 / s1**2 - (alpha - 1) * m2 / s2**2) / curvature
        cuts = [centre + k / math.sqrt(curvature) for k in range(-14, 15, 2)]

        def integrand(x):
            return mpmath.exp(alpha * log_density(x, m1, s1) + (1 - alpha) * log_density(x, m2, s2))

        return float(mpmath.log(mpmath.quad(integrand, cuts)) / (alpha - 1))


def in_sixty_digits(alpha, first, second):
    """The textbook closed form, exact for the given floats."""
    with mpmath.workdps(60):
        (m1, s1), (m2, s2) = [tuple(map(mpmath.mpf, pair)) for pair in (first, second)]
        a = mpmath.mpf(alpha)
        v = a * s2**2 + (1 - a) * s1**2
        if v <= 0:
            return mpmath.inf
        return mpmath.log(s2 / s1) + mpmath.log(s2**2 / v) / (2 * (a - 1)) + a * (m1 - m2) ** 2 / (2 * v)


@pytest.mark.parametrize("alpha", [1.05, 2.0, 3.7])
@pytest.mark.parametrize("second", [(0.4, 1.0), (0.0, 1.17), (-2.0, 1.25)])
def test_both_directions_equal_quadrature(alpha, second):
    first = (0.1, 1.1)
    for one_way in ((first, second), (second, first)):
        value = renyi_divergences([alpha], *(one(*g) for g in one_way))[0, 0]
        assert value == pytest.approx(by_quadrature(alpha, *one_way), rel=1e-9)


@pytest.mark.parametrize("room", [1e-2, 1e-4, pytest.param(1e-6, marks=pytest.mark.slow)])
def test_next_to_the_border_of_existence(room):
    """At α = 3 the border is s1²/s2² = 3/2; `room` is what is left of 1 - 2x."""
    first, second = (0.3, math.sqrt(1.0 + (1.0 - room) / 2.0)), (0.0, 1.0)
    value = renyi_divergences([3.0], one(*first), one(*second))[0, 0]
    assert value == pytest.approx(by_quadrature(3.0, first, second), rel=1e-7)


def test_on_the_border_and_beyond_it_is_infinite():
    """At s1 = 3, s2 = 1 the border is exactly α = 1.125, in floating point as well."""
    wide, narrow = one(0.0, 3.0), one(0.0, 1.0)
    assert np.isinf(renyi_divergences([1.125, np.nextafter(1.125, 2.0), 2.0], wide, narrow)).all()
    assert np.isfinite(renyi_divergences([1.125 - 1e-9], wide, narrow)).all()
    assert np.isfinite(renyi_divergences([1.125, 1e6], narrow, wide)).all()


def test_one_bad_dimension_makes_the_whole_infinite_and_only_that_pair():
    first = Gaussians([[0.0, 0.0], [0.0, 0.0]], [[1.0, 1.6], [1.0, 1.3]])
    second = Gaussians([[0.0, 0.0], [0.0, 0.0]], [[1.0, 1.0], [1.0, 1.0]])
    assert np.isinf(renyi_divergences([2.0, 1.5], first, second)).tolist() == [[True, False], [False, False]]


def test_dimensions_add_up_against_quadrature_in_the_plane():
    first, second = one([0.3, -0.2], [1.1, 0.8]), one([0.0, 0.1], [1.0, 0.9])
    x, y = np.meshgrid(np.linspace(-20, 20, 401), np.linspace(-20, 20, 401), indexing="ij")

    def log_density(g):
        (m, k), (s, t) = g.means[0], g.scales[0]
        return norm.logpdf(x, m, s) + norm.logpdf(y, k, t)

    for p, q in ((first, second), (second, first)):
        logs = 2.5 * log_density(p) - 1.5 * log_density(q)
        exact = (logsumexp(logs) + 2 * math.log(40 / 400)) / 1.5
        assert renyi_divergences([2.5], p, q)[0, 0] == pytest.approx(exact, rel=1e-9)


positive = st.floats(0.05, 20.0)


@settings(max_examples=300, deadline=None)
@given(
    scale=positive,
    ratio=st.one_of(st.floats(-12.0, 0.5), st.just(-np.inf)),
    wider=st.booleans(),
    shift=st.one_of(st.just(0.0), st.floats(1e-9, 5.0)),
    lam=st.floats(-3.0, 5.0),
)
def test_never_below_the_truth_by_more_than_round_off(scale, ratio, wider, shift, lam):
    """Scales from equal, through one part in 10^12, to 4 times apart; orders from 1.001 to 10^5."""
    other = scale * (1.0 + 10.0**ratio)
    first, second = ((shift, other), (0.0, scale)) if wider else ((shift, scale), (0.0, other))
    alpha = 1.0 + 10.0**lam
    value = renyi_divergences([alpha], one(*first), one(*second))[0, 0]
    exact = in_sixty_digits(alpha, first, second)
    assert value >= exact * (1 - mpmath.mpf("1e-13"))
    room = 1.0 - (alpha - 1.0) * ((first[1] / second[1]) ** 2 - 1.0)
    if room > 1e-3:  # closer to the border it may be larger than the truth, and infinite on it
        assert value <= exact * (1 + mpmath.mpf("1e-11"))


def test_equal_scales_and_single_pairs_agree_with_the_mechanisms(rng):
    means, scales = rng.normal(size=(2, 6, 3)), rng.uniform(0.9, 1.1, size=(2, 6, 3))
    found = renyi_divergences([1.5, 4.0], Gaussians(means[0], scales[0]), Gaussians(means[1], scales[1]))
    for row, alpha in zip(found, (1.5, 4.0), strict=True):
        for i, value in enumerate(row):
            single = diagonal_gaussian_renyi(
                alpha, mean1=means[0, i], stddev1=scales[0, i], mean2=means[1, i], stddev2=scales[1, i]
            )
            assert value == pytest.approx(single, rel=1e-9)
    assert renyi_divergences([7.0], one(0.7, 2.0), one(0.0, 2.0))[0, 0] == pytest.approx(gaussian_renyi(7, ratio=0.35))
    assert renyi_divergences([7.0], one(0.7, 2.0), one(0.7, 2.0))[0, 0] == 0.0


def test_extreme_scales_are_large_or_infinite_never_nan():
    tiny, huge = one(0.0, 1e-300), one(0.0, 1e300)
    assert np.isinf(renyi_divergences([1.001, 2.0], huge, tiny)).all()
    other_way = renyi_divergences([1.001, 2.0], tiny, huge)
    assert (other_way > 1000.0).all()  # ln(s2/s1) is 1381
    assert np.isinf(renyi_divergences([2.0], one(1e300, 1e-10), one(-1e300, 1e-10))).all()


# A batch with the record in it with probability q, and r points drawn from its one Gaussian.

WIDER = ((0.3, 1.05), (0.0, 1.0))
NARROWER = ((0.3, 0.9), (0.0, 1.0))
SAME = ((0.5, 1.0), (0.0, 1.0))


def mixture_cost(lam, q, pair, samples, *, removing):
    """λ D_{λ+1} between (1-q) p + q p' and p, by a sum over a fine grid; p, p' products of `samples` Gaussians."""
    (m1, s1), (m2, s2) = pair
    axis = np.linspace(-24.0, 24.0, 601)
    grid = np.meshgrid(*[axis] * samples, indexing="ij")
    with_record, without = (sum(norm.logpdf(x, m, s) for x in grid) for m, s in ((m1, s1), (m2, s2)))
    mixed = np.logaddexp(math.log1p(-q) + without, math.log(q) + with_record)
    top, bottom = (without, mixed) if removing else (mixed, without)
    return float(logsumexp((lam + 1) * top - lam * bottom) + samples * math.log(axis[1] - axis[0]))


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("pair", [WIDER, NARROWER, SAME])
@pytest.mark.parametrize(("lam", "q"), [(1, 0.3), (4, 0.05), (7, 0.3)])
def test_the_subsampled_bound_is_above_both_true_directions(lam, q, pair, samples):
    bound = subsampled_costs([lam], one(*pair[0]), one(*pair[1]), sample_rate=q, samples=samples)[0, 0]
    adding = mixture_cost(lam, q, pair, samples, removing=False)
    removing = mixture_cost(lam, q, pair, samples, removing=True)
    assert bound >= max(adding, removing) * (1 - 1e-9)
    assert bound <= (1.15 if lam * q < 0.25 else 2.2) * max(adding, removing)  # it keeps the q²


def test_samples_of_one_batch_are_not_separate_releases():
    """Charging one point twice is below the truth for two points of one batch."""
    lam, q = 4, 0.05
    once = subsampled_costs([lam], one(*WIDER[0]), one(*WIDER[1]), sample_rate=q)[0, 0]
    truth = mixture_cost(lam, q, WIDER, 2, removing=False)
    assert 2 * once < truth
    assert subsampled_costs([lam], one(*WIDER[0]), one(*WIDER[1]), sample_rate=q, samples=2)[0, 0] >= truth


def test_where_the_other_direction_has_no_moment_it_is_still_bounded():
    """The record narrows the posterior: D(without‖with) does not exist, but (1-q) p + q p' hides it."""
    pair, q, lam = ((0.0, 0.5), (0.0, 1.0)), 0.1, 6
    assert np.isinf(renyi_divergences([lam + 1.0], one(*pair[1]), one(*pair[0]))).all()
    bound = subsampled_costs([lam], one(*pair[0]), one(*pair[1]), sample_rate=q)[0, 0]
    truth = max(mixture_cost(lam, q, pair, 1, removing=way) for way in (False, True))
    assert truth * (1 - 1e-9) <= bound < math.inf
    wide = subsampled_costs([lam], one(*pair[1]), one(*pair[0]), sample_rate=q)
    assert np.isinf(wide).all()  # the record widens it: nothing hides that


def test_without_sampling_it_is_the_plain_divergence_and_equal_scales_are_the_sampled_gaussian():
    first, second = one(0.2, 1.05), one(0.0, 1.0)
    whole = subsampled_costs([1, 5], first, second, sample_rate=1.0, samples=3)[:, 0]
    for value, lam in zip(whole, (1, 5), strict=True):
        divergences = [renyi_divergences([lam + 1.0], *pair)[0, 0] for pair in ((first, second), (second, first))]
        assert value == pytest.approx(3 * lam * max(divergences), rel=1e-12)
    same = subsampled_costs([8], one(0.7, 1.0), one(0.0, 1.0), sample_rate=0.9)[0, 0]
    assert same >= sampled_gaussian_cost(8, sample_rate=0.9, ratio=0.7)


def one_by_one(lam, q, r, a, b):
    """The cost of one pair from the general formula of the mechanisms, and the third bound in 40 digits."""

    def divergence(k, *pair):
        return r * float(renyi_divergences([float(k)], *pair)[0, 0])

    exact = subsampled_cost(lam, sample_rate=q, forward=lambda k: divergence(k, a, b), reverse=lambda k: 0.0)
    other = subsampled_cost(lam, sample_rate=q, forward=lambda k: 0.0, reverse=lambda k: divergence(k, b, a))
    with mpmath.workdps(40):
        rest = (1 - mpmath.mpf(q)) ** -lam - 1 - lam * mpmath.mpf(q)
        ours = float(mpmath.log1p(rest * mpmath.expm1(divergence(2, a, b))))
    return max(exact, min(other, ours)), other


def test_many_pairs_at_once_equal_the_formulas_one_by_one(rng):
    first = Gaussians(rng.normal(0, 0.1, (5, 2)), rng.uniform(0.995, 1.005, (5, 2)))
    second = Gaussians(rng.normal(0, 0.1, (5, 2)), rng.uniform(0.995, 1.005, (5, 2)))
    found = subsampled_costs([2, 11], first, second, sample_rate=0.02, samples=2)
    for row, lam in zip(found, (2, 11), strict=True):
        for i, value in enumerate(row):
            pair = (Gaussians(g.means[i : i + 1], g.scales[i : i + 1]) for g in (first, second))
            expected, as_printed = one_by_one(lam, 0.02, 2, *pair)
            assert value == pytest.approx(expected, rel=1e-10)
            assert value < as_printed / 2


# The box.


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


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="one shape"):
        Gaussians([[0.0]], [[1.0, 1.0]])
    with pytest.raises(ValueError, match="diverged"):
        Gaussians([[math.nan]], [[1.0]])
    with pytest.raises(ValueError, match="positive"):
        Gaussians([[0.0]], [[0.0]])
    with pytest.raises(ValueError, match="above 1"):
        renyi_divergences([1.0], one(0.0, 1.0), one(0.0, 1.0))
    with pytest.raises(ValueError, match="row by row"):
        renyi_divergences([2.0], one(0.0, 1.0), one([0.0, 0.0], [1.0, 1.0]))
    with pytest.raises(ValueError, match="low <= high"):
        Box(bound=1.0, low=1.0, high=0.5, dimension=1)
    with pytest.raises(ValueError, match="3 of them"):
        Box(bound=np.ones(2), low=1.0, high=2.0, dimension=3)
    with pytest.raises(ValueError, match="coordinates"):
        Box(bound=1.0, low=1.0, high=2.0, dimension=3).holds(one(0.0, 1.0))
