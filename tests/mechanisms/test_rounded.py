"""Rounded Gaussian noise: its staircase and its bounds against mpmath, its law against the closed form."""

import math

import mpmath
import numpy as np
import pytest
from scipy.stats import binomtest, chi2, chisquare, norm

from tacita.mechanisms import rounded
from tacita.mechanisms.rounded import rounded_gaussian

FALSE_ALARM = 1e-6


def law(cells, scale):
    """The exact probabilities of whole numbers, from both tails for accuracy."""
    n = np.abs(np.asarray(cells, dtype=float))
    return norm.sf((n - 0.5) / scale) - norm.sf((n + 0.5) / scale)


def fits(draws, scale, reach):
    """The p-value of draws within a reach, each tail beyond it taken together."""
    cells = np.arange(-reach, reach + 1)
    counts = np.bincount(np.clip(draws, -reach, reach) + reach, minlength=len(cells))
    expected = law(cells, scale)
    expected[[0, -1]] = norm.sf((reach - 0.5) / scale)
    return chisquare(counts, expected * len(draws), sum_check=False).pvalue


def test_bounds_of_the_exponential_enclose_it():
    rng = np.random.default_rng(5)
    cases = [(0, 1, 10), (1, 3, 64), (7, 2, 64), (100, 1, 200), (1, 10**9, 64), (1800, 1, 100)]
    cases += [
        (int(rng.integers(10**9)), int(rng.integers(10**7, 10**9)), int(rng.integers(8, 150))) for _ in range(200)
    ]
    with mpmath.workdps(120):
        for over, under, digits in cases:
            low, high = rounded._exp_bounds(over, under, digits)
            true = mpmath.exp(-mpmath.mpf(over) / under) * mpmath.mpf(2) ** digits
            assert low <= true <= high <= low + 2, (over, under, digits)


def test_the_staircase_is_above_the_curve_and_what_is_sure_below_it():
    stairs, height = rounded._staircase(), rounded._HEIGHT
    strips = (stairs.places >> np.uint64(32)).astype(int)
    assert len(strips) == 2**16 == stairs.slots.sum()
    assert (np.bincount(strips) == stairs.slots).all()
    sure = dict(zip(strips.tolist(), stairs.sure.tolist(), strict=True))
    with mpmath.workdps(50):
        heights = [height * mpmath.exp(-(mpmath.mpf(b) ** 2) / 32768) for b in range(641)]
        for b in range(640):
            assert stairs.slots[b] >= heights[b]
            assert sure[b] <= 2**15 * heights[b + 1] / stairs.slots[b]
            assert abs(stairs.chances[b] - heights[b] / stairs.slots[b]) < 2.0**-50
        for j in range(60):  # the tail's one slot: 2^-(j + 1) of it for the unit from 5 + j on, of 128 strips
            assert 2 ** -mpmath.mpf(j + 1) >= 128 * height * mpmath.exp(-(mpmath.mpf(5 + j) ** 2) / 2)
    assert stairs.slots[640] == 1
    assert sure[640] == 0


@pytest.mark.stat
@pytest.mark.parametrize(("scale", "reach"), [(1, 4), (2, 8), (7, 28)])
def test_draws_have_the_law_of_a_rounded_gaussian(scale, reach, rng):
    draws = rounded_gaussian(400_000, scale=scale, rng=rng)
    assert fits(draws, scale, reach) > FALSE_ALARM
    wider = np.round(1.03 * scale * rng.standard_normal(len(draws))).astype(int)
    for wrong in (np.where(rng.random(len(draws)) < 0.03, 0, draws), wider):
        assert fits(wrong, scale, reach) < FALSE_ALARM


@pytest.mark.stat
@pytest.mark.parametrize("scale", [2**20, 1_234_567, 2**21])
def test_wide_noise_is_right_in_its_first_and_in_its_last_digits(scale, rng):
    draws = rounded_gaussian(300_000, scale=scale, rng=rng)
    ends = np.round(norm.ppf(np.arange(1, 200) / 200) * scale).astype(int)
    expected = np.diff([0.0, *norm.cdf((ends + 0.5) / scale), 1.0]) * len(draws)
    counts = np.bincount(np.searchsorted(ends, draws), minlength=200)
    assert chisquare(counts, expected).pvalue > FALSE_ALARM
    for digits in (draws & 255, draws >> 8 & 255):  # uniform but for 1e-6 of them
        assert chisquare(np.bincount(digits, minlength=256)).pvalue > FALSE_ALARM
    assert binomtest(int((draws > 0).sum()), int((draws != 0).sum())).pvalue > FALSE_ALARM
    assert abs(np.corrcoef(draws[1:], draws[:-1])[0, 1]) < 5 / math.sqrt(len(draws))


@pytest.mark.stat
def test_what_is_decided_by_exact_arithmetic_alone_has_the_same_law(rng, monkeypatch):
    monkeypatch.setattr(rounded, "_SLACK", 4.0)  # no comparison of floats is sure then
    stairs = rounded._staircase()
    monkeypatch.setattr(rounded, "_staircase", lambda: stairs._replace(sure=np.zeros_like(stairs.sure)))
    assert fits(rounded_gaussian(8_000, scale=3, rng=rng), 3, 8) > FALSE_ALARM


@pytest.mark.stat
def test_the_tail_beyond_five_standard_deviations_has_its_law(rng):
    tries, scale = 12_000, 10
    found = [
        n
        for place, coin in rng.integers((2**32, 2**47), size=(tries, 2)).tolist()
        if (n := rounded._decided((640 << 32) + place, coin, scale, rng)) is not None
    ]
    # The slot is accepted with probability 128 height ∫ exp(-x²/2) over the tail.
    chance = 128 * rounded._HEIGHT * norm.sf(5.0) * math.sqrt(2 * math.pi)
    assert binomtest(len(found), tries, chance).pvalue > FALSE_ALARM
    edges = np.array([50.5, 51.5, 52.5, 53.5, 54.5, 56.5])
    expected = -np.diff([norm.sf(5.0), *norm.sf(edges / scale), 0.0]) / norm.sf(5.0)
    counts = np.bincount(np.searchsorted(edges, found), minlength=len(expected))
    statistic = float(((counts - expected * len(found)) ** 2 / (expected * len(found))).sum())
    assert chi2.sf(statistic, len(expected) - 1) > FALSE_ALARM
    assert min(found) == 50


@pytest.mark.slow
@pytest.mark.stat
def test_both_tails_from_four_to_six_standard_deviations(rng):
    draws = np.concatenate([rounded_gaussian(10**7, scale=2, rng=rng) for _ in range(4)])
    for size in (8, 9, 10, 11, 12):
        for side in (draws >= size, draws <= -size):
            assert binomtest(int(side.sum()), len(draws), norm.sf((size - 0.5) / 2)).pvalue > FALSE_ALARM


@pytest.mark.stat
def test_opendp_draws_nearly_the_same_law(rng):
    from tacita.posterior.samplers import sampler

    scale, reach = 20, 60  # the laws differ by less than 1e-4 in every cell
    ours = rounded_gaussian(40_000, scale=scale, rng=rng)
    theirs = np.array(sampler("gaussian", math.sqrt(scale**2 + 1 / 12))([0] * 40_000))
    one, other = (np.bincount((np.clip(d, -reach, reach) + reach) // 5, minlength=25) for d in (ours, theirs))
    assert chi2.sf(float(((one - other) ** 2 / (one + other)).sum()), 24) > FALSE_ALARM
    wrong = np.bincount((np.clip(ours * 21 // 20, -reach, reach) + reach) // 5, minlength=25)
    assert chi2.sf(float(((wrong - other) ** 2 / (wrong + other)).sum()), 24) < FALSE_ALARM


class Digits:
    """Gives digits, and remembers them."""

    def __init__(self, rng):
        self.rng, self.given = rng, []

    def integers(self, high):
        self.given.append(int(self.rng.choice([0, high - 1, high // 2, self.rng.integers(high)])))
        return self.given[-1]


@pytest.mark.parametrize("scale", [1, 5, 12])
def test_rounding_waits_until_all_further_digits_agree(scale, rng):
    for x in range(48):
        digits = Digits(rng)
        number = rounded._rounded(x, 4, scale, digits)
        for more in digits.given:
            x = x << 32 | more
        ends = [mpmath.mpf(scale * end) / 2 ** (4 + 32 * len(digits.given)) for end in (x, x + 1)]
        with mpmath.workdps(300):
            assert number - 0.5 <= ends[0] <= ends[1] <= number + 0.5


def test_a_seed_repeats_draws_and_nonsense_is_refused():
    one, other = (rounded_gaussian(100, scale=1000, rng=np.random.default_rng(3)) for _ in range(2))
    assert (one == other).all()
    assert len(rounded_gaussian(0, scale=1, rng=np.random.default_rng(3))) == 0
    for scale in (0, 2**21 + 1):
        with pytest.raises(ValueError, match="scale"):
            rounded_gaussian(1, scale=scale, rng=np.random.default_rng(3))
