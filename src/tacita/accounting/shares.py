"""Followed records' own figures, and what shares of their population stay under, for the owner's label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from tacita.accounting.bayesian import BayesianAccountant
from tacita.estimators import share_bounds, share_under_another_law
from tacita.guarantee import SMALLEST_EPSILON, Guarantee
from tacita.label import Points, Shares

if TYPE_CHECKING:
    from tacita._check import Floats

T = TypeVar("T")

PERCENTS = (50, 75, 90, 95, 99)  # of the population
TESTED = (50, 90)  # those of whom true-positive rates are given
RATES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)  # the false-positive rates of these tests
GAMMA = 1e-6  # the probability that any statement about the population fails


def own_epsilons(accountant: BayesianAccountant, worst: Guarantee) -> Floats:
    """Return each followed record's own epsilon, at the worst case's delta and never above its epsilon."""
    return np.clip(accountant.epsilons(delta=worst.delta), SMALLEST_EPSILON, worst.epsilon)


def own_successes(accountant: BayesianAccountant, worst: Guarantee) -> Floats:
    """Return how often an attack on each followed record is right at most, never above the worst case."""
    return np.minimum(accountant.successes(), worst.curve.attack_success())


def certified_shares(accountant: BayesianAccountant, worst: Guarantee) -> Shares | None:
    """Return what shares of the population stay under.

    Args:
        accountant: Of followed units that were not trained on and steered nothing.
        worst: The worst case of the same unit, at the delta of every epsilon.

    Returns:
        None if nothing can be said about half of the population that the worst case does not say of everybody: too few
        were followed, or most of them are as exposed as anyone.

    Guarantee:
        If they were drawn independently from the population: all of it holds for the levels of this run except with
        probability `GAMMA`. A third of it goes to the epsilons, a third to the successes, and a third to the tests, in
        equal parts to each false-positive rate; within each, every percentage takes an equal part.
    """
    third = GAMMA / 3.0

    def bounds(values: Floats, percents: Sequence[float], gamma: float, most: float) -> dict[float, float]:
        return share_bounds(values, percents=percents, gamma=gamma, worst=most, low=accountant.too_low)

    epsilons = bounds(own_epsilons(accountant, worst), PERCENTS, third, worst.epsilon)
    if epsilons[PERCENTS[0]] >= worst.epsilon:
        return None
    most = worst.curve.attack_success()
    successes = bounds(own_successes(accountant, worst), PERCENTS, third, most)
    found = [
        bounds(values, TESTED, third / len(RATES), worst.curve.tpr(rate))
        for rate, values in zip(RATES, accountant.tprs(RATES), strict=True)
    ]
    return Shares(
        epsilons=_points(epsilons.items()),
        successes=_points(successes.items()),
        tests=tuple(
            (float(percent), _points(zip(RATES, (bounds[percent] for bounds in found), strict=True)))
            for percent in TESTED
        ),
        gamma=GAMMA,
        followed=len(accountant.counts),
    )


def shares_under_another_law(shares: Shares, *, tv: float) -> Shares:
    """Return what the shares of one population say about another: each share p becomes p - tv, or is left out.

    Args:
        shares: From `certified_shares`.
        tv: How far the two populations are apart in total variation, in [0, 1]. The reader assumes it; nothing
            estimates it.
    """

    def lower(points: Iterable[tuple[float, T]]) -> tuple[tuple[float, T], ...]:
        kept = ((100.0 * share_under_another_law(p / 100.0, tv=tv), value) for p, value in points)
        return tuple((p, value) for p, value in kept if p > 0.0)

    return replace(
        shares, epsilons=lower(shares.epsilons), successes=lower(shares.successes), tests=lower(shares.tests)
    )


def _points(pairs: Iterable[tuple[float, float]]) -> Points:
    return tuple((float(x), float(y)) for x, y in pairs)
