"""Budgets that a record may not pass, declared before the first step.

A filter turns what was observed into a guarantee: a record takes part only while it is within the declared
budget, so the budget bounds its privacy loss over every path, however the steps were chosen. The proofs are
in docs/explanation/theory/filters.md. All functions are pure; `counts` is the (records, levels) matrix of steps taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tacita import _check
from tacita._check import PrivacyError
from tacita.accounting.conversion import epsilon_from_costs
from tacita.accounting.curves import RecordCurves, record_curves
from tacita.accounting.levels import NORM_LEVELS, ORDERS, TOP, cost_table, level_of
from tacita.accounting.profiles import moments_profile
from tacita.accounting.spectra import ROWS, products
from tacita.guarantee import SMALLEST_EPSILON
from tacita.profile import Profile

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tacita._check import Counts, Floats

_LEAST_DELTA = 1e-12  # to which the curve of a moments budget goes


@dataclass(frozen=True)
class MomentsBudget:
    """A cap on a record's log moments at one order or along a whole curve (Feldman & Zrnic 2021).

    A record is within it while NO declared order is exceeded; continuing while SOME order is within budget
    would be a different, weaker filter.
    """

    orders: tuple[int, ...]
    costs: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "orders", tuple(self.orders))
        object.__setattr__(self, "costs", tuple(self.costs))
        if not self.orders or len(self.orders) != len(self.costs):
            raise ValueError(
                f"orders and costs must have one length of at least 1, got {len(self.orders)} and {len(self.costs)}."
            )
        for order, cost in zip(self.orders, self.costs, strict=True):
            _check.count("order", order, high=100_000)
            _check.in_range("cost", cost, 0.0, 1e12)

    def within(self, counts: Counts, *, sample_rate: float, noise_multiplier: float) -> NDArray[np.bool_]:
        """Return which records have not passed the budget. Comparison is exact to one part in 1e12.

        Args:
            counts: Each record's steps, shape (records, levels).
            sample_rate: q, the chance in (0, 1] with which each record enters a step.
            noise_multiplier: σ; noise standard deviation over the clip norm.

        Returns:
            Shape (records,).
        """
        costs = products(counts, cost_table(sample_rate, noise_multiplier, self.orders).T)
        return np.asarray((costs <= np.array(self.costs) * (1.0 + 1e-12)).all(axis=1))

    def epsilon(self, delta: float, *, sample_rate: float, noise_multiplier: float, notion: str = "weak") -> float:
        """Return the ε that a record within the budget has at `delta`.

        Args:
            delta: δ in (0, 1).
            sample_rate: Not needed: the costs are declared.
            noise_multiplier: Not needed.
            notion: `strong` or `weak`.

        Returns:
            ε.
        """
        return float(epsilon_from_costs(np.array(self.costs), self.orders, delta=delta, notion=notion))

    def profile(self, *, sample_rate: float, noise_multiplier: float) -> Profile:
        """Return the privacy curve of a record within the budget; the mechanism is not needed."""
        costs = np.array(self.costs)
        largest = float(epsilon_from_costs(costs, self.orders, delta=_LEAST_DELTA, notion="weak"))
        return moments_profile(costs, self.orders, up_to=max(largest, SMALLEST_EPSILON))


@dataclass(frozen=True)
class TokenBudget:
    """How many steps a record may take at each level: a filter for privacy-loss distributions.

    A record is within it while, for every level, its steps at that level or above number at most the tokens
    at that level or above. The claim is the curve of all tokens spent, whatever the order.
    """

    tokens: tuple[int, ...]  # one for each of NORM_LEVELS

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", tuple(self.tokens))
        if len(self.tokens) != len(NORM_LEVELS):
            raise ValueError(
                f"tokens must have one entry for each of {len(NORM_LEVELS)} levels, got {len(self.tokens)}."
            )
        for number in self.tokens:
            _check.count("tokens", number, low=0)

    def within(self, counts: Counts, *, sample_rate: float = 1.0, noise_multiplier: float = 1.0) -> NDArray[np.bool_]:
        """Return which records have not passed the budget (the mechanism does not matter for that).

        Args:
            counts: Each record's steps, shape (records, levels).
            sample_rate: Not needed.
            noise_multiplier: Not needed.

        Returns:
            Shape (records,).
        """
        allowed = np.cumsum(np.array(self.tokens)[:0:-1])
        within = np.empty(len(counts), dtype=bool)
        for start in range(0, len(counts), ROWS):
            used = np.cumsum(counts[start : start + ROWS, :0:-1], axis=1)
            within[start : start + ROWS] = (used <= allowed).all(axis=1)
        return within

    def curve(self, *, sample_rate: float, noise_multiplier: float) -> RecordCurves:
        """Return the claim: the privacy curve of spending every token."""
        return record_curves(
            np.array([self.tokens], dtype=np.int64), sample_rate=sample_rate, noise_multiplier=noise_multiplier
        )

    def epsilon(self, delta: float, *, sample_rate: float, noise_multiplier: float, notion: str = "weak") -> float:
        """Return the ε that a record within the budget has at `delta`. Weak notion only.

        Args:
            delta: δ in (0, 1).
            sample_rate: q, the chance in (0, 1] with which each record enters a step.
            noise_multiplier: σ; noise standard deviation over the clip norm.
            notion: `weak`; the strong one is refused.

        Returns:
            ε.
        """
        if notion != "weak":
            raise PrivacyError(
                "A token budget bounds the hockey-stick divergence (notion='weak'); for the strong notion "
                "declare a moments budget."
            )
        curve = self.curve(sample_rate=sample_rate, noise_multiplier=noise_multiplier)
        return float(curve.epsilon(_check.probability("delta", delta))[0])

    def profile(self, *, sample_rate: float, noise_multiplier: float) -> Profile:
        """Return the privacy curve of a record within the budget."""
        return self.curve(sample_rate=sample_rate, noise_multiplier=noise_multiplier).profile(0)


Budget = MomentsBudget | TokenBudget


def moments_budget(*, steps: int, sample_rate: float, noise_multiplier: float, level: float = 1.0) -> MomentsBudget:
    """Return the whole moments curve of `steps` steps at a fraction `level` of the clip norm.

    Args:
        steps: How many steps.
        sample_rate: q, the chance in (0, 1] with which each record enters a step.
        noise_multiplier: σ; noise standard deviation over the clip norm.
        level: The norm, as a fraction of the clip norm; rounded up to a norm level.

    Returns:
        The budget, at all declared orders.
    """
    table = cost_table(sample_rate, noise_multiplier, ORDERS)
    index = int(level_of(_check.norms("level", np.array([level])))[0])
    return MomentsBudget(ORDERS, tuple(float(c) for c in _check.count("steps", steps) * table[:, index]))


def token_budget(tokens: Mapping[float, int]) -> TokenBudget:
    """Return a token budget from {fraction of the clip norm: steps}. Fractions are rounded up to a level.

    Examples:
        >>> token_budget({1.0: 40, 0.25: 60}).within(np.zeros((1, 257), dtype=np.int64))
        array([ True])
    """
    if not isinstance(tokens, Mapping):
        raise TypeError(f"tokens must map fractions of the clip norm to steps, got {type(tokens).__name__}.")
    counts = np.zeros(len(NORM_LEVELS), dtype=np.int64)
    for fraction, steps in tokens.items():
        index = int(level_of(_check.norms("a token's level", np.array([fraction])))[0])
        counts[index] += _check.count("a token's steps", steps, low=0)
    return TokenBudget(tuple(int(c) for c in counts))


def token_profile(shares: Mapping[float, float], *, steps: int) -> TokenBudget:
    """Return a token budget from {fraction of the clip norm: share of the steps}, shares adding up to 1.

    "At most 40% of the steps at the full bound, the others at a quarter of it":

    Examples:
        >>> sum(token_profile({1.0: 0.4, 0.25: 0.6}, steps=2000).tokens)
        2000
    """
    total = _check.count("steps", steps)
    if not isinstance(shares, Mapping):
        raise TypeError(f"shares must map fractions of the clip norm to shares, got {type(shares).__name__}.")
    values = [_check.in_range("a share", share, 0.0, 1.0) for share in shares.values()]
    if not abs(sum(values) - 1.0) <= 1e-9:
        raise ValueError(f"shares must add up to 1, got {sum(values):g}.")
    highest = sorted(shares, reverse=True)
    ends = [round(total * sum(shares[f] for f in highest[: i + 1])) for i in range(len(highest))]
    return token_budget({f: end - start for f, start, end in zip(highest, [0, *ends], ends, strict=False)})


def affordable(
    budget: Budget, counts: Counts, wanted: Counts, *, steps: int, sample_rate: float, noise_multiplier: float
) -> Counts:
    """Return the highest level, at most the one wanted, that each record can pay for `steps` more steps.

    Level 0 means that the record sits out.

    Args:
        budget: What a record may spend in all.
        counts: Each record's steps so far, shape (records, levels).
        wanted: The norm level that each record wants, shape (records,).
        steps: How many more steps it must last.
        sample_rate: q, the chance in (0, 1] with which each record enters a step.
        noise_multiplier: σ; noise standard deviation over the clip norm.

    Returns:
        The levels, shape (records,).
    """
    if isinstance(budget, TokenBudget):
        highest, allowed = np.array(wanted), np.cumsum(np.array(budget.tokens)[::-1])[::-1]
        for start in range(0, len(counts), ROWS):
            above = allowed - np.cumsum(counts[start : start + ROWS, ::-1], axis=1)[:, ::-1]
            free = np.minimum.accumulate(above[:, 1:], axis=1)  # tokens free for a step at each level
            rows = highest[start : start + ROWS]
            np.minimum(rows, np.count_nonzero(free >= steps, axis=1), out=rows)
        return highest
    table = cost_table(sample_rate, noise_multiplier, budget.orders).T
    spare = np.array(budget.costs) * (1.0 + 1e-12) - products(counts, table)
    low, high = np.zeros_like(wanted), np.array(wanted)
    while (low < high).any():
        middle = (low + high + 1) // 2
        fits = (steps * table[middle] <= spare).all(axis=1)
        low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
    return low


def most_spent(
    budget: Budget | None, *, steps: int, orders: tuple[int, ...], sample_rate: float, noise_multiplier: float
) -> Floats:
    """Return the largest log moments any record can have after `steps` steps, whatever its gradients did.

    Args:
        budget: What a record may spend, or None.
        steps: How many steps.
        orders: Values of λ.
        sample_rate: q, the chance in (0, 1] with which each record enters a step.
        noise_multiplier: σ; noise standard deviation over the clip norm.

    Returns:
        Shape (orders,).
    """
    table = cost_table(sample_rate, noise_multiplier, orders)
    plain: Floats = steps * table[:, TOP]
    if isinstance(budget, TokenBudget):
        tokens = np.array(budget.tokens)[::-1]
        used = np.diff(np.minimum(np.cumsum(tokens), steps), prepend=0)[::-1]
        return np.asarray(np.minimum(plain, table @ used))
    if budget is not None:
        caps = dict(zip(budget.orders, budget.costs, strict=True))
        return np.minimum(plain, [caps.get(order, np.inf) for order in orders])
    return plain
