"""Noise is drawn as it is described, and its privacy curves are exact: against brute force and enumeration."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from tacita._check import PrivacyError
from tacita.posterior import samplers
from tacita.posterior.mechanisms import Statistic, geometric, laplace
from tacita.posterior.models import beta
from tacita.posterior.noise import GaussianNoise, GeometricNoise, LaplaceNoise
from tacita.posterior.noise.gaussian import smallest_sd
from tacita.posterior.plans import plan_release

FALSE_ALARM = 1e-6  # of each statistical test here; noise is drawn by the operating system and cannot be seeded


def number_plan(mechanism, step):
    return plan_release(mechanism, Statistic(step=step))


def fits(draws, chance, reach):
    """A chi-squared test of draws against the probabilities of -reach..reach, the ends taking all beyond."""
    clipped = np.clip(draws, -reach, reach)
    seen = np.bincount(clipped + reach, minlength=2 * reach + 1)
    wanted = np.array([chance(z) for z in range(-reach, reach + 1)])
    wanted[0] = wanted[-1] = (1 - wanted[1:-1].sum()) / 2
    return stats.chisquare(seen, len(draws) * wanted / wanted.sum()).pvalue


@pytest.mark.stat
@pytest.mark.parametrize("kind", [GeometricNoise, LaplaceNoise, GaussianNoise])
def test_f1_noise_is_what_it_is_said_to_be(kind):
    scale, size = 1.7, 4000 if kind is LaplaceNoise else 40_000
    source = kind(scale)
    draws = np.array(source.draw([0] * size))
    laplace_cdf = stats.laplace(scale=scale).cdf
    chance = {
        GeometricNoise: lambda z: math.tanh(0.5 / scale) * math.exp(-abs(z) / scale),
        LaplaceNoise: lambda z: laplace_cdf(z + 0.5) - laplace_cdf(z - 0.5),
        GaussianNoise: lambda z: math.exp(-(z**2) / (2 * scale**2)),
    }[kind]
    total = sum(chance(z) for z in range(-200, 201))
    assert fits(draws, lambda z: chance(z) / total, 4) > FALSE_ALARM
    assert fits(draws + np.arange(size) % 2, lambda z: chance(z) / total, 4) < FALSE_ALARM  # it can fail
    gaps = np.arange(-200, 201)
    assert np.exp(source.log_chance(gaps)) == pytest.approx([chance(z) / total for z in gaps], rel=1e-6)
    assert source.sd == pytest.approx(math.sqrt(sum(chance(z) / total * z * z for z in gaps)), rel=1e-6)
    inside = sum(chance(z) / total for z in gaps if abs(z) <= source.half_width(0.95))
    assert source.tail(np.arange(5)) == pytest.approx(
        [sum(chance(z) / total for z in range(k, 201)) for k in range(5)], rel=1e-6
    )
    assert inside >= 0.95 > inside - 2 * chance(source.half_width(0.95)) / total


@pytest.mark.stat
def test_f1_a_row_is_drawn_from_exactly():
    row = np.array([0.5, 0.25, 1e-300, 0.125, 0.125, 0.0])
    seen = np.bincount([samplers.pick(row) for _ in range(8000)], minlength=6)
    assert seen[2] == seen[5] == 0
    assert stats.chisquare(seen[[0, 1, 3, 4]], 8000 * row[[0, 1, 3, 4]]).pvalue > FALSE_ALARM
    assert samplers.pick(np.array([0.0, 5e-324, 0.0])) == 1


def test_scales_are_rounded_up():
    """The exact rational rate of the noise is never above the decimal epsilon that was asked for."""
    from fractions import Fraction

    for epsilon in np.round(np.random.default_rng(0).uniform(0.01, 3, 200), 3):
        scale = number_plan(geometric(epsilon=epsilon), 3).source.scale
        assert Fraction(3) / Fraction(scale) <= Fraction(repr(float(epsilon)))


EPSILONS = (0.0, 0.1, 0.4, 0.79, 0.8, 1.5)


def cells_plan(mechanism, prior, cells, n):
    return plan_release(mechanism, Statistic(cells, n, prior=prior))


def counts_of(dataset, cells):
    return tuple(dataset.count(value) for value in range(cells))


def brute_delta(made, epsilon):
    """The largest hockey-stick divergence over every ordered pair of datasets that differ in one record."""
    worst = mpmath.mpf(0)
    for one, other in itertools.permutations(made, 2):
        if sum(x != y for x, y in zip(one, other, strict=True)) == 1:
            excess = (made[one][r] - mpmath.exp(epsilon) * made[other].get(r, 0) for r in made[one])
            worst = max(worst, mpmath.fsum(max(0, e) for e in excess))
    return worst


def brute_noise(n, cells, chance):
    """Noise on every cell (with two, on the first alone), clipped to 0..n: {dataset: {output: probability}}."""
    noisy = 1 if cells == 2 else cells
    made = {}
    for d in itertools.product(range(cells), repeat=n):
        rows = []
        for count in counts_of(d, cells)[:noisy]:
            row = [chance(z - count) for z in range(n + 1)]
            row[0] = mpmath.nsum(lambda z, c=count: chance(int(z) - c), [-mpmath.inf, 0])
            row[n] = mpmath.nsum(lambda z, c=count: chance(int(z) - c), [n, mpmath.inf])
            rows.append(row)
        outputs = itertools.product(range(n + 1), repeat=noisy)
        made[d] = {o: mpmath.fprod(row[z] for row, z in zip(rows, o, strict=True)) for o in outputs}
    return made


def geometric_chance(rate):
    return lambda z: mpmath.tanh(mpmath.mpf(rate) / 2) * mpmath.exp(-rate * abs(z))


@pytest.mark.parametrize(("cells", "n"), [(2, 4), (3, 2)])
def test_geometric_curve_equals_brute_force_over_all_datasets(cells, n):
    plan = cells_plan(geometric(epsilon=0.8), None, cells, n)
    made = brute_noise(n, cells, geometric_chance(0.8 if cells == 2 else 0.4))
    for epsilon in EPSILONS:
        exact = float(brute_delta(made, epsilon))
        assert exact - 1e-12 <= plan.certificate.delta(epsilon) <= exact + 1e-12


def test_laplace_curve_is_never_below_brute_force_over_all_datasets():
    scale = 1 / mpmath.mpf("0.8")

    def chance(z):
        if z == 0:
            return 1 - mpmath.exp(-1 / (2 * scale))
        return (mpmath.exp(-(abs(z) - 0.5) / scale) - mpmath.exp(-(abs(z) + 0.5) / scale)) / 2

    plan = cells_plan(laplace(epsilon=0.8, sensitivity="histogram"), beta(1, 1), 2, 4)
    made = brute_noise(4, 2, chance)
    for epsilon in EPSILONS:
        exact = float(brute_delta(made, epsilon))
        assert exact - 1e-12 <= plan.certificate.delta(epsilon) <= exact + 1e-12


def test_the_curve_of_a_sum_is_that_of_the_shifted_noise():
    rate, step = 0.05, 7
    curve = GeometricNoise(1 / rate).curve(step)
    places = np.arange(-2000, 2000)
    p, q = (np.tanh(rate / 2) * np.exp(-rate * np.abs(places - shift)) for shift in (0, step))
    for epsilon in (0.0, 0.1, 0.3, 0.35):
        assert curve.delta(epsilon) == pytest.approx(np.maximum(p - np.exp(epsilon) * q, 0).sum(), abs=1e-12)
    assert curve.epsilon(0.0) == pytest.approx(rate * step, rel=1e-9)
    coin = GeometricNoise(1e7).curve(2_000_000)
    assert coin.epsilon(0.0) == pytest.approx(0.2, rel=1e-9)


def test_the_gaussian_curve_is_exact():
    sd, step = 3.7, 2
    mp = mpmath.mp.clone()
    mp.dps = 40
    total = mp.fsum(mp.exp(-(mp.mpf(z) ** 2) / (2 * mp.mpf(sd) ** 2)) for z in range(-400, 401))

    def chance(z):
        return mp.exp(-(mp.mpf(z) ** 2) / (2 * mp.mpf(sd) ** 2)) / total

    curve = GaussianNoise(sd).curve(step)
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        exact = mp.fsum(max(0, chance(z) - mp.exp(epsilon) * chance(z - step)) for z in range(-300, 300))
        assert exact <= curve.delta(epsilon) <= exact + 2e-13


@pytest.mark.parametrize(
    ("epsilon", "delta", "step"), [(0.5, 1e-6, 1), (1.0, 1e-5, 100), (4.0, 1e-3, 3), (0.1, 1e-9, 2)]
)
def test_the_gaussian_spends_its_budget(epsilon, delta, step):
    sd = smallest_sd(epsilon, delta, step)
    assert GaussianNoise(sd).curve(step).delta(epsilon) <= delta
    assert GaussianNoise(sd / 1.001).curve(step).delta(epsilon) > delta


def test_a_gaussian_too_wide_to_certify_is_refused():
    with pytest.raises(PrivacyError, match="coarser step"):
        smallest_sd(0.1, 1e-9, 10_000)


def test_gaussian_noise_is_never_purely_private():
    """What the table leaves out is in the curve: no finite epsilon holds at delta 0."""
    curve = GaussianNoise(3.0).curve(2)
    assert curve.epsilon(0.0) == math.inf
    assert curve.delta(50.0) > 0.0
