"""From records' costs to a statement about the population they were drawn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tacita import _check
from tacita._check import PrivacyError
from tacita.accounting.conversion import delta_from_costs, epsilon_by_order, epsilon_from_costs
from tacita.accounting.filters import Budget, TokenBudget
from tacita.accounting.history import Sample
from tacita.accounting.levels import ORDERS, TOP
from tacita.assumptions import Assumption, assume
from tacita.estimators import ESTIMATORS, Estimator, conformal_miss
from tacita.guarantee import SMALLEST_EPSILON, Guarantee
from tacita.profile import Profile

if TYPE_CHECKING:
    from tacita._check import Counts, Floats

_PROFILE_POINTS = 32
_COSTS = 1 << 23  # of records at orders, held at once
FIRST_ORDERS = ORDERS[:96]  # the others are tried only if these do not bracket the minimum

Deltas = Callable[["Floats"], tuple["Floats", "Floats"]]  # ε -> each record's δ (E, m), and the worst case's (E,)


@dataclass(frozen=True, kw_only=True)
class PopulationFigure:
    """An epsilon for the population, before it is capped by the worst case.

    Attributes:
        epsilon: ε.
        estimator: The name of the estimator in `ESTIMATORS`, or `conformal`.
        notion: `strong` or `weak`.
        method: `pld` or `moments`.
        delta_split: Where the total delta went.
        profile: The population's curve, if there is one; it need not pass through (epsilon, delta).
    """

    epsilon: float
    estimator: str
    notion: str
    method: str
    delta_split: tuple[tuple[str, float], ...]
    profile: Profile | None = None


def failure_of_each(delta: float, gamma: float | None, *, uses: int, share: float) -> float:
    """Return the failure probability of one estimate.

    Args:
        delta: The total failure probability.
        gamma: What the user asked for, or None.
        uses: How many estimates are taken; each may fail.
        share: The part of delta that all estimates together get where gamma is None.

    Returns:
        γ.

    Raises:
        PrivacyError: If all estimates together reach delta.
    """
    if gamma is None:
        return delta * share / uses
    each = _check.probability("gamma", gamma)
    if uses * each >= delta:
        raise PrivacyError(
            f"gamma={each:g} counts {uses} times, once for every estimate taken, which reaches delta={delta:g}. "
            f"Pass gamma below {delta / uses:.1e} or leave it out."
        )
    return each


def mean_delta_epsilon(estimator: Estimator, deltas: Deltas, *, target: float, gamma: float, largest: float) -> float:
    """Return the smallest ε at which the population's mean delta is bounded by `target`.

    Args:
        estimator: An estimator that averages deltas.
        deltas: Each record's own delta, and the worst case's.
        target: The delta to reach.
        gamma: The probability with which the bound at one ε may fail.
        largest: Where the search ends.

    Returns:
        ε in [0, largest], rounded up to one part in 32⁴ of `largest`; infinite if there is none.
    """
    low, high = 0.0, largest
    for _ in range(4):  # a grid instead of a bisection: curves answer many epsilons at once
        grid = np.linspace(low, high, 33)
        values, worst = deltas(grid)
        ones = np.ones(values.shape[1], dtype=np.int64)
        fits = np.flatnonzero(estimator.bound(values, weights=ones, gamma=gamma, worst=worst) <= target)
        if not len(fits):
            return np.inf
        if fits[0] == 0:
            return float(grid[0])
        low, high = float(grid[fits[0] - 1]), float(grid[fits[0]])
    return high


def population_profile(estimator: Estimator, deltas: Deltas, *, gamma: float, largest: float) -> Profile:
    """Return the curve of a record drawn from the population: E_x δ_x(ε).

    An attack that has one threshold for everybody and a false-positive rate *on average* is bounded by it; averaging
    records' own bounds at that rate would not do.

    Args:
        estimator: An estimator that averages deltas.
        deltas: Each record's own delta, and the worst case's.
        gamma: The probability with which any of the bounds may fail; the worst case counts then. It is counted twice:
            the curve is combined with a figure that may fail as often, for other panels. What may fail before, such
            as a bound on unmeasured steps, counts in it.
        largest: The epsilon to which the curve goes.

    Returns:
        The curve at epsilons that depend on `largest` alone.
    """
    grid = np.concatenate([[0.0], largest * np.linspace(0.02, 1.0, _PROFILE_POINTS) ** 1.5])
    values, worst = deltas(grid)
    ones = np.ones(values.shape[1], dtype=np.int64)
    bound = estimator.bound(values, weights=ones, gamma=gamma / len(grid), worst=worst)
    return Profile.of_curve(lambda _: np.minimum(bound + 2.0 * gamma * worst, worst), grid)


def profile_under_another_law(typical: Profile, worst: Profile, *, tv: float) -> Profile:
    """Return the curve of a record drawn from another population than the one that a typical figure speaks of.

    E_ν δ_x(ε) ≤ E_μ δ_x(ε) + worst(ε) TV(μ, ν), because no record's curve is above the worst case's; never above it.

    Args:
        typical: The population's curve, in the weak notion.
        worst: That of the worst case of the same steps.
        tv: How far the two populations are apart, in [0, 1]. The reader assumes it; nothing estimates it.

    Returns:
        The curve, at the points of both.

    Guarantee:
        For fixed curves: where a record's curve depends on the run, for this run's.
    """
    far = _check.in_range("tv", tv, 0.0, 1.0)
    at = np.union1d(typical.epsilons, worst.epsilons)

    def curve(epsilons: Floats) -> Floats:
        most = worst.delta(epsilons)
        return np.asarray(np.minimum(typical.delta(epsilons) + far * most, most))

    return Profile.of_curve(curve, at)


def under_another_law(typical: Guarantee, worst: Guarantee, *, tv: float, population: str) -> Guarantee:
    """Return what a typical figure says about records of another population.

    Args:
        typical: A Bayesian figure in the weak notion.
        worst: The worst case of the same steps and unit, at the same delta.
        tv: How far the two populations are apart, in [0, 1]. The reader assumes it; nothing estimates it.
        population: The name of the other population.

    Returns:
        The statement, with the distance among its assumptions; never above the worst case.

    Raises:
        PrivacyError: If the two do not belong together, or the figure is not of the weak notion.
    """
    alike = (typical.unit, typical.delta, typical.neighbours) == (worst.unit, worst.delta, worst.neighbours)
    if not (alike and typical.kind == "bayesian" and worst.kind == "worst_case") or worst.one_end:
        raise PrivacyError("Pass a typical figure and the worst case of the same steps, unit and delta.")
    if typical.notion != "weak" or not typical.is_bound:
        raise PrivacyError("Only an expected hockey-stick divergence (the weak notion) carries over to another law.")
    curve = profile_under_another_law(typical.curve, worst.curve, tv=tv)
    epsilon = max(SMALLEST_EPSILON, min(worst.epsilon, curve.epsilon(worst.delta)))
    assumed = assume("another-population", population=population, tv=f"{tv:g}")
    return replace(
        typical,
        epsilon=epsilon,
        population=population,
        assumptions=(*typical.assumptions, assumed),
        profile=curve & Profile.of_pair(epsilon, worst.delta),
    )


def deltas_by_moments(own: Floats, most: Floats, *, target: float, notion: str) -> tuple[Deltas, float]:
    """Return each record's delta by moments, the order chosen inside the record, and an epsilon that surely suffices.

    Args:
        own: Each record's costs, shape (records, len(FIRST_ORDERS)).
        most: The worst case's costs at the same orders.
        target: The delta to reach.
        notion: `strong` or `weak`.

    Returns:
        The deltas as a function of ε, and that epsilon.
    """

    def deltas(epsilons: Floats) -> tuple[Floats, Floats]:
        ways = (
            [delta_from_costs(c, FIRST_ORDERS, epsilon=float(e), notion=notion) for e in epsilons] for c in (own, most)
        )
        values, worst = (np.stack(way) for way in ways)
        return values, worst

    enough = float(epsilon_from_costs(most, FIRST_ORDERS, delta=target, notion=notion))
    return deltas, enough * (1.0 + 1e-12)


def population_costs(estimator: Estimator, samples: Sequence[Sample], table: Floats, *, gamma: float) -> Floats:
    """Return the bound on log E_x exp(A_λ(x)) for every order.

    Args:
        estimator: An estimator that averages moments.
        samples: The records, from `History.samples`.
        table: The cost of one step at every level, shape (orders, levels).
        gamma: The probability with which one estimate may fail.

    Returns:
        Shape (orders,).
    """
    total = np.zeros(len(table))
    for sample in samples:
        blocks = np.array_split(table, min(len(table), 1 + len(table) * len(sample.weights) // _COSTS))
        one = [
            estimator.bound(
                sample.costs(block), weights=sample.weights, gamma=gamma, worst=sample.steps * block[:, TOP]
            )
            for block in blocks
        ]
        total += sample.repeat * np.concatenate(one) / sample.root
    return total


def moments_figure(
    estimator: str,
    samples: Sequence[Sample],
    table: Callable[[tuple[int, ...]], Floats],
    *,
    delta: float,
    gamma: float | None,
    notion: str,
) -> PopulationFigure:
    """Return the figure of an estimator that averages moments.

    Args:
        estimator: Its name in `ESTIMATORS`.
        samples: The records, from `History.samples`.
        table: From orders to the cost of one step at every level, shape (orders, levels).
        delta: The total failure probability.
        gamma: The failure probability of one estimate; None picks it.
        notion: `strong` or `weak`.

    Returns:
        The figure, over the best order.

    Raises:
        PrivacyError: If the estimates' failures reach delta.
    """
    uses = len(samples) * len(ORDERS)
    failure = failure_of_each(delta, gamma, uses=uses, share=1 / 100)
    spare = delta - uses * failure
    epsilon = np.inf
    for orders in (FIRST_ORDERS, ORDERS):
        costs = population_costs(ESTIMATORS[estimator], samples, table(orders), gamma=failure)
        by_order = epsilon_by_order(costs, orders, delta=spare, notion=notion)
        epsilon = float(by_order.min())
        if by_order[-1] > epsilon:
            break
    split = (("estimator", uses * failure), ("tail", spare))
    return PopulationFigure(epsilon=epsilon, estimator=estimator, notion=notion, method="moments", delta_split=split)


def conformal_figure(
    budget: Budget,
    counts: Counts,
    *,
    tolerated: int,
    delta: float,
    notion: str | None,
    sample_rate: float,
    noise_multiplier: float,
) -> PopulationFigure:
    """Return the figure of a declared budget, if few enough followed records passed it.

    Args:
        budget: What a record may spend, declared before the first step.
        counts: The followed records' steps at each level.
        tolerated: How many of them may pass the budget.
        delta: The total failure probability.
        notion: `strong` or `weak`; None takes the one that the budget bounds.
        sample_rate: q.
        noise_multiplier: σ.

    Returns:
        The figure of a record within the budget.

    Raises:
        PrivacyError: If too many records passed it, or delta is too small for so few records.
    """
    miss = conformal_miss(len(counts), tolerated=tolerated)
    if miss >= delta:
        raise PrivacyError(
            f"With {len(counts)} followed records and {tolerated} tolerated, delta must be above "
            f"{miss:.3g}, got {delta:g}; follow more records or ask for a larger delta."
        )
    mechanism = {"sample_rate": sample_rate, "noise_multiplier": noise_multiplier}
    if np.count_nonzero(~budget.within(counts, **mechanism)) > tolerated:
        raise PrivacyError("No certificate: more followed records passed the declared budget than were tolerated.")
    by_tokens, spare = isinstance(budget, TokenBudget), delta - miss
    chosen = notion or ("weak" if by_tokens else "strong")
    own = budget.profile(**mechanism) if chosen == "weak" else None
    return PopulationFigure(
        epsilon=budget.epsilon(spare, **mechanism, notion=chosen),
        estimator="conformal",
        notion=chosen,
        method="pld" if by_tokens else "moments",
        delta_split=(("conformal", miss), ("tail", spare)),
        profile=own and own.raised(miss, up_to=own.epsilons[-1]),
    )


def bayesian_guarantee(
    figure: PopulationFigure,
    worst: Guarantee,
    *,
    composition: str,
    static: bool,
    assumptions: tuple[Assumption, ...],
    is_bound: bool = True,
) -> Guarantee:
    """Return a figure as a statement, capped by the worst case where that implies it.

    Args:
        figure: The figure.
        worst: The worst case of the same steps at the same delta.
        composition: How steps were added up.
        static: Whether it holds over every path of the mechanism, and not only for this run.
        assumptions: What it rests on beyond the worst case's assumptions.
        is_bound: False for figures that are for comparison only.

    Returns:
        The statement.

    Guarantee:
        In the weak notion epsilon is at most the worst case's, which implies it; the strong notion is not implied.
    """
    epsilon, method, certificate = figure.epsilon, figure.method, figure.estimator == "conformal"
    profile = figure.profile
    if figure.notion == "weak" and epsilon >= worst.epsilon:
        epsilon, method, profile = worst.epsilon, "worst-case cap", worst.profile
    epsilon = max(epsilon, SMALLEST_EPSILON)
    return Guarantee(
        kind="bayesian",
        epsilon=epsilon,
        delta=worst.delta,
        method=method,
        scope="guarantee" if static or certificate else "reading",
        notion="strong" if figure.notion == "strong" else "weak",
        estimator=figure.estimator,
        composition=composition,
        model="distribution-free" if certificate else ESTIMATORS[figure.estimator].model,
        delta_split=figure.delta_split,
        mechanism=worst.mechanism,
        assumptions=(*worst.assumptions, *assumptions),
        publishable=certificate,
        is_bound=is_bound,
        profile=profile and profile & Profile.of_pair(epsilon, worst.delta),
    )
