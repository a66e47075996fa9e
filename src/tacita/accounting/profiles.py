"""Privacy curves of mechanisms: sampled Gaussian steps, and several mechanisms one after the other."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.stats import binom

from tacita import _check
from tacita.accounting.curves import worst_curve
from tacita.mechanisms.gaussian import gaussian_delta
from tacita.profile import Profile

_UNCOUNTED = 1e-16  # chance of more participations than are summed over; added to δ


@lru_cache(maxsize=64)
def worst_profile(*, sample_rate: float, noise_multiplier: float, steps: int) -> Profile:
    """Return the curve of Poisson-sampled Gaussian steps for a record that is at the clip norm in every one.

    The smaller of two bounds at every epsilon: the composed loss distribution, and the one that reveals to the attacker
    in how many steps the record took part, which is better where there is little noise.

    Args:
        sample_rate: q in (0, 1].
        noise_multiplier: σ; noise standard deviation over the clip norm.
        steps: How many, fixed beforehand.

    Returns:
        The curve.

    Guarantee:
        For every dataset and every one record added or removed, whatever the other records do.

    Examples:
        >>> curve = worst_profile(sample_rate=0.01, noise_multiplier=1.0, steps=2000)
        >>> round(curve.attack_success(), 3)
        0.613
    """
    count = _check.count("steps", steps)
    (group,) = worst_curve(count, sample_rate=sample_rate, noise_multiplier=noise_multiplier, points=1024).groups
    composed = Profile(tuple(group.epsilons.tolist()), tuple(group.deltas[0].tolist()))
    most = int(min(count, binom.isf(_UNCOUNTED, count, sample_rate) + 1))
    times = np.arange(int(max(0, binom.ppf(_UNCOUNTED, count, sample_rate) - 1)), most + 1)
    weights = binom.pmf(times, count, sample_rate)
    distances = np.sqrt(times) / noise_multiplier
    deltas = gaussian_delta(group.epsilons[:, None], distance=distances[None]) @ weights + 2.0 * _UNCOUNTED
    participations = Profile.of_curve(lambda _: deltas * (1.0 + 1e-9), group.epsilons)
    return (composed & participations).thinned()
