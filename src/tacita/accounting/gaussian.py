"""Worst cases that need no numerical composition: one full Gaussian release, and noise too small for a loss grid."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq
from scipy.stats import binom

from tacita import _check
from tacita._check import PrivacyError
from tacita.assumptions import assume
from tacita.guarantee import SMALLEST_EPSILON, Guarantee
from tacita.mechanisms.gaussian import gaussian_delta, gaussian_epsilon, smallest_epsilon
from tacita.profile import Profile

_ASSUMPTIONS = (assume("sensitivity"), assume("gaussian-noise"))
_TAIL = 1e-6  # of delta, for records that are drawn more often than is summed over


def gaussian_release(*, noise_multiplier: float, delta: float) -> Guarantee:
    """Return the worst case of one Gaussian release of a sum over all records, by its exact curve.

    Args:
        noise_multiplier: Noise standard deviation over the most that one record moves the sum.
        delta: δ in (0, 1).

    Guarantee:
        Exact: for every dataset and every change of one record that moves the sum by at most its sensitivity.

    Examples:
        >>> round(gaussian_release(noise_multiplier=3.7307, delta=1e-5).epsilon, 3)
        1.0
    """
    sigma = _check.in_range("noise_multiplier", noise_multiplier, 1e-4, 1e9)
    epsilon = max(gaussian_epsilon(delta, distance=1.0 / sigma), SMALLEST_EPSILON)
    return Guarantee(
        kind="worst_case",
        epsilon=epsilon,
        delta=delta,
        method="exact Gaussian curve",
        sampling="none",
        mechanism=(("noise_multiplier", sigma), ("sample_rate", 1.0), ("steps", 1)),
        assumptions=_ASSUMPTIONS,
        publishable=True,
        profile=Profile.gaussian(1.0 / sigma) & Profile.of_pair(epsilon, delta),
    )


def calibrate_gaussian(*, epsilon: float, delta: float) -> Guarantee:
    """Return the guarantee of the least noise with which one Gaussian release stays within (epsilon, delta).

    Guarantee:
        As of `gaussian_release`; the noise is rounded up, and epsilon never exceeds the target.

    Examples:
        >>> calibrate_gaussian(epsilon=1.0, delta=1e-5).noise_multiplier
        3.7307
    """
    target = _check.in_range("epsilon", epsilon, 1e-4, 1e4)
    dlt = _check.probability("delta", delta)

    def excess(log_noise: float) -> float:
        spent = gaussian_epsilon(dlt, distance=math.exp(-log_noise))
        return math.log(max(spent, SMALLEST_EPSILON) / target)

    if excess(math.log(1e9)) > 0.0:
        raise PrivacyError(f"No noise reaches epsilon {target:g} at delta {dlt:g}.")
    noise = math.exp(brentq(excess, math.log(1e-3), math.log(1e9), xtol=1e-9))
    least = least_noise(noise, lambda sigma: gaussian_release(noise_multiplier=sigma, delta=dlt).epsilon <= target)
    return gaussian_release(noise_multiplier=least, delta=dlt)


def least_noise(start: float, suffices: Callable[[float], bool]) -> float:
    """Return the first noise multiplier of five digits, from `start` upwards, that suffices.

    Args:
        start: Where to begin: about the answer.
        suffices: Whether a noise multiplier does.
    """
    noise = start
    while True:
        scale = 10.0 ** (4 - math.floor(math.log10(noise)))
        noise = math.ceil(noise * scale - 1e-6) / scale
        if suffices(noise):
            return noise
        noise *= 1.0 + 5e-5


def participation_bound(*, sample_rate: float, noise_multiplier: float, steps: int, delta: float) -> Guarantee:
    """Return a worst case of Poisson-sampled Gaussian steps that holds for noise of any size.

    Given the coins of one record, the steps in which it takes part are k Gaussian releases, and the others are the
    same with and without it. The hockey-stick divergence is jointly convex, so
    δ(ε) ≤ Σ_k Bin(k; steps, q) δ_Gauss(ε, √k / σ), in both directions. Loose where noise is ample (it does not hide
    which steps the record took part in), and the only finite answer where it is next to none: there a loss grid
    does not fit, and moments are far above.

    Args:
        sample_rate: q in (0, 1].
        noise_multiplier: Noise standard deviation over the most that one record moves a step.
        steps: Number of steps.
        delta: δ in (0, 1).

    Returns:
        The guarantee.

    Guarantee:
        For every dataset and every one record added or removed.

    Examples:
        >>> bound = participation_bound(sample_rate=64 / 60000, noise_multiplier=0.005, steps=375_000, delta=1e-5)
        >>> f"{bound.epsilon:.1e}"
        '9.8e+06'
    """
    q, count = _check.rate("sample_rate", sample_rate), _check.count("steps", steps)
    sigma = _check.in_range("noise_multiplier", noise_multiplier, 1e-4, 1e9)
    dlt = _check.probability("delta", delta)
    tail = _TAIL * dlt
    most = int(min(count, binom.isf(tail, count, q) + 1))
    times = np.arange(most + 1)
    weights = binom.pmf(times, count, q)

    def curve(epsilon: float) -> float:
        return float(weights @ gaussian_delta(epsilon, distance=np.sqrt(times) / sigma)) * (1.0 + 1e-9) + tail

    return Guarantee(
        kind="worst_case",
        epsilon=max(smallest_epsilon(curve, dlt), SMALLEST_EPSILON),
        delta=dlt,
        method="participations",
        mechanism=(("noise_multiplier", sigma), ("sample_rate", q), ("steps", count)),
        assumptions=_ASSUMPTIONS,
        publishable=True,
    )
