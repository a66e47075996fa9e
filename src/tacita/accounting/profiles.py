"""Privacy curves of mechanisms: of sampled Gaussian steps, and of whatever log moments were bounded of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import binom

from tacita import _check
from tacita.accounting.conversion import delta_from_costs
from tacita.accounting.curves import worst_curve
from tacita.mechanisms.gaussian import gaussian_delta
from tacita.profile import Profile

if TYPE_CHECKING:
    from tacita._check import Floats

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


def moments_profile(costs: Floats, orders: Sequence[float], *, up_to: float, points: int = 100) -> Profile:
    """Return the curve that log moments prove (Canonne, Kamath & Steinke 2020, Prop. 12).

    Args:
        costs: Log moments A_λ, in both directions, shape (orders,).
        orders: The λ.
        up_to: The largest epsilon of the curve; finite.
        points: How many epsilons it has.

    Returns:
        The smallest δ over the orders at every epsilon.
    """

    def curve(grid: Floats) -> Floats:
        found = [delta_from_costs(costs, orders, epsilon=float(eps), notion="weak") for eps in grid]
        return np.asarray(found, dtype=np.float64).reshape(len(grid))

    return Profile.of_curve(curve, np.asarray(up_to * np.linspace(0.0, 1.0, points) ** 1.5))
