r"""What charges add up to, and when the sum is within a budget: moments, and Gaussian distances.

`costs` says when moments are within (ε, δ). The second account adds up distances. A charge with a privacy curve δ(ε)
counts as a Gaussian release at distance μ that fails with probability f, if

    δ(ε) ≤ f + (1 - f) G_μ(ε)   for every ε ≥ 0,   G_μ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ).

Then it is a post-processing of such a release (Blackwell), also if it is a whole run whose steps are interleaved with
those of others. If Σ μ² ≤ M² and Σ f ≤ F along every path, everything together has δ(ε) ≤ G_M(ε) + F, however charges
are chosen by what earlier ones showed: the Gaussian releases are read off one Brownian motion with drift, one after the
other, and the path up to time M² is one Gaussian release at distance M (Smith & Thakurta 2022; Koskela, Tobaben &
Honkela 2023). The proof is in docs/explanation/theory/ledger.md.

A total is within (ε, δ) if the distances are at δ times the declared share, or the moments at the rest. Which of the
two holds may depend on the path; each has its own part of δ, so the union costs δ. Of the distances' part, a tenth is
for the failures and the rest for G_M(ε): were the failures limited by what the distances leave, some paths could spend
the part on distances and others spend it again on failures (tests/ledger/test_totals.py keeps such an adversary).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tacita import _check, _search
from tacita.guarantee import SMALLEST_EPSILON
from tacita.ledger.costs import (
    COST_UNIT,
    DECLARED,
    DELTA_UNIT,
    PURE_UNIT,
    Units,
    delta_units,
    moments_epsilon,
    total_epsilon,
)
from tacita.mechanisms.gaussian import gaussian_delta, gaussian_epsilon
from tacita.profile import Profile

FLOOR = 1e-9  # what a charge's curve may exceed the Gaussian one by; less where the budget's delta is small
FAILING = 0.1  # of the account's part of delta, for failures beside the distances, on every path
_FLOORS = 1000  # so many charges' floors fit into that
_FARTHEST = 1e6  # distances beyond this count as infinite


@dataclass(frozen=True)
class Totals:
    """What charges add up to, in whole units; infinite where a charge has no such figure.

    Attributes:
        orders: Log moments at DECLARED, in units of 2⁻⁴⁰.
        deltas: Failure probabilities beside the moments, in units of 2⁻⁸⁰.
        pure: Epsilons of purely private releases, in units of 10⁻¹².
        squared: Squared Gaussian distances, in units of 2⁻⁴⁰.
        fails: Failure probabilities beside the distances, in units of 2⁻⁸⁰.
    """

    orders: tuple[Units, ...] = (0,) * len(DECLARED)
    deltas: int = 0
    pure: Units = 0
    squared: Units = 0
    fails: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            tuple(a + b for a, b in zip(self.orders, other.orders, strict=True)),
            self.deltas + other.deltas,
            self.pure + other.pure,
            self.squared + other.squared,
            self.fails + other.fails,
        )

    def at_least(self, other: Totals) -> Totals:
        """Return the larger of both in each figure."""
        return Totals(
            tuple(map(max, self.orders, other.orders)),
            max(self.deltas, other.deltas),
            max(self.pure, other.pure),
            max(self.squared, other.squared),
            max(self.fails, other.fails),
        )

    def beyond(self, other: Totals) -> Totals:
        """Return what brings `other` to at least these figures."""
        return Totals(
            tuple(map(_missing, self.orders, other.orders)),
            int(_missing(self.deltas, other.deltas)),
            _missing(self.pure, other.pure),
            _missing(self.squared, other.squared),
            int(_missing(self.fails, other.fails)),
        )

    def times(self, count: int) -> Totals:
        """Return what so many of it add up to, at least one."""
        return Totals(
            tuple(cost * count for cost in self.orders),
            self.deltas * count,
            self.pure * count,
            self.squared * count,
            self.fails * count,
        )

    def epsilon(self, delta: float, *, gaussian_share: float) -> float:
        """Return the smallest ε at which the total is within (ε, δ), however charges were chosen; may be infinite.

        Args:
            delta: δ in (0, 1).
            gaussian_share: The declared part of delta for distances; the rest is for moments.
        """
        part = gaussian_share * delta
        found = [self._by_distances((1.0 - FAILING) * part, fails=FAILING * part)]
        if gaussian_share < 1.0:
            rest = (1.0 - gaussian_share) * delta
            found.append(total_epsilon(self.orders, self.deltas, delta=rest, pure=self.pure))
        return max(SMALLEST_EPSILON, min(found))

    def planned_epsilon(self, delta: float) -> float:
        """Return the ε that the same charges would have had if all of them had been fixed beforehand.

        The better account has all of delta then, and so has the best order.
        """
        failing = self.fails / DELTA_UNIT * (1.0 + 1e-12)
        found, spare = [self._by_distances(delta - failing, fails=delta)], delta - self.deltas / DELTA_UNIT
        if spare > 0.0:
            found += [moments_epsilon(self.orders, delta=spare), self.pure / PURE_UNIT]
        return max(SMALLEST_EPSILON, min(found))

    def _by_distances(self, delta: float, *, fails: float) -> float:
        distance = math.sqrt((self.squared + 1) / COST_UNIT)  # the extra unit is more than all round-off
        if not (delta > 0.0 and self.fails <= fails * DELTA_UNIT and distance <= _FARTHEST):
            return math.inf
        return gaussian_epsilon(delta, distance=distance)


def _missing(wanted: Units, there: Units) -> Units:
    return 0 if there >= wanted else wanted if math.isinf(wanted) else wanted - there


@lru_cache(maxsize=256)
def distance_units(curve: Profile | None, *, delta: float = 0.0, floor: float = FLOOR) -> tuple[Units, int]:
    """Return what a charge adds to the account of distances: its squared distance and its chance to fail, rounded up.

    Args:
        curve: Its whole privacy curve, for the ledger's unit and relation; None if it has none.
        delta: What may fail beside the curve.
        floor: How much the curve may exceed the Gaussian one by, beyond its own last value.

    Returns:
        Units of 2⁻⁴⁰ and 2⁻⁸⁰; (infinite, 0) if there is no such distance.

    Examples:
        >>> squared, fails = distance_units(Profile.gaussian(0.5))
        >>> round((squared / 2**40) ** 0.5, 2), f"{fails / 2**80:.2g}"
        (0.5, '1.2e-09')
    """
    if curve is None:
        return math.inf, 0
    extra = floor + curve.deltas[-1]
    distance = curve.mu(floor=extra) if extra < 1.0 else math.inf
    even = float(gaussian_delta(0.0, distance=min(distance, _FARTHEST))[0])
    if not (distance <= _FARTHEST and even < 1.0):
        return math.inf, 0
    fails = extra / (1.0 - even) * (1.0 + 1e-12) + _check.in_range("delta", delta, 0.0, 1.0)
    if not fails < 1.0:
        return math.inf, 0
    return math.ceil(distance * distance * (1.0 + 1e-12) * COST_UNIT), delta_units(fails)


def floor_for(budget: tuple[float, float] | None, gaussian_share: float) -> float:
    """Return the floor of a charge: so small that a thousand of them fit into what is for failures."""
    if budget is None or gaussian_share == 0.0:
        return FLOOR
    return min(FLOOR, FAILING * gaussian_share * budget[1] / _FLOORS)


def cap_profile(budget: tuple[float, float], gaussian_share: float) -> Profile:
    """Return the privacy curve of everything that a budget (ε, δ) lets through, however charges are chosen.

    Where all of δ is for distances, everything is one Gaussian release with G_M(ε) ≤ 0.9 δ, but for 0.1 δ. Otherwise
    all that is known is the pair: which of the accounts holds may depend on the path.
    """
    epsilon, delta = budget
    pair = Profile.of_pair(epsilon, delta)
    if gaussian_share < 1.0:
        return pair
    most = _search.boundary(
        lambda mu: bool(gaussian_delta(epsilon, distance=mu)[0] >= (1.0 - FAILING) * delta),
        fails=1e-9,
        at=_FARTHEST,
        rtol=1e-9,
        geometric=True,
    )
    curve = Profile.gaussian(most)
    return Profile.of_curve(lambda eps: curve.delta(eps) + FAILING * delta, np.array(curve.epsilons)) & pair
