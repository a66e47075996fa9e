r"""Log moments as the ledger adds them up, and when their sum is within a budget.

A cost is λ D_{λ+1}, a log moment, at each order λ of DECLARED, rounded up to whole units of 2⁻⁴⁰ nats, so sums
are exact. With J orders, a total A is within (ε, δ) if the releases' own deltas add up to at most δ/(J+1) and

    some λ in DECLARED has  exp(A_λ - λε) (1/(λ+1)) (1 - 1/(λ+1))^λ ≤ δ/(J+1).

Why this holds although later releases are chosen by what earlier ones showed: A only grows, so being within at the
end means having been within all along. For each λ, the process stopped before A_λ passes its threshold has moment
E_Q[(dP/dQ)^{λ+1}] ≤ exp(threshold), by the supermartingale of Feldman & Zrnic 2021 (docs: theory/filters),
hence P(E) ≤ e^ε Q(E) + δ/(J+1) on the paths it did not stop (Canonne, Kamath & Steinke 2020, Prop. 12). Every path
is such a path for at least one λ; assign it to the first. The union over J orders and over the releases that fail
outright, at most δ/(J+1) along any path, costs δ. The shares are fixed: if what the deltas leave went to the
orders, a share would depend on the path, and P could fail on some paths while the moment grows on others.

Releases that are purely ε-private (but for their own deltas) are also added up as they are: where that sum is at most
ε, the privacy loss is at most ε for certain, so it needs no share. It is kept in whole 10⁻¹² of the decimal number that
was declared, so that three times 0.1 is 0.3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacita import _check
from tacita._check import PrivacyError
from tacita.accounting.conversion import epsilon_from_costs
from tacita.accounting.levels import ORDERS
from tacita.guarantee import SMALLEST_EPSILON

DECLARED: tuple[int, ...] = (1, 2, 3, 5, 7, 11, 15, 23, 31, 47, 63, 128, 256)
SHARES = len(DECLARED) + 1  # one for each order, one for the releases' own deltas
COST_UNIT = 2**40
DELTA_UNIT = 2**80
PURE_UNIT = 10**12
_LARGEST = 1e15  # nats; beyond this a cost is taken to be infinite

Costs = Mapping[int, float] | Sequence[float] | NDArray[np.float64]
Units = int | float  # whole, or infinity


def cost_units(costs: Costs) -> tuple[Units, ...]:
    """Return costs at the declared orders in units of 2⁻⁴⁰, rounded up.

    Args:
        costs: λ D_{λ+1} for all steps of the block, as {λ: cost} or an array at DECLARED or at ORDERS. An order
            that is missing or infinite bounds nothing from then on.

    Examples:
        >>> cost_units({1: 2.0**-41, 2: 1.0})[:3]
        (1, 1099511627776, inf)
    """
    known = _by_order(costs)
    return tuple(_round_up(known.get(order, math.inf)) for order in DECLARED)


def delta_units(delta: float) -> int:
    """Return a release's own delta in units of 2⁻⁸⁰, rounded up."""
    return math.ceil(_check.in_range("delta", delta, 0.0, 1.0) * DELTA_UNIT)


def pure_units(epsilon: float) -> Units:
    """Return a purely private release's epsilon in units of 10⁻¹², rounded up.

    Examples:
        >>> 3 * pure_units(0.1) == pure_units(0.3)
        True
    """
    eps = _cost(epsilon)
    return math.ceil(Fraction(repr(eps)) * PURE_UNIT) if eps <= _LARGEST else math.inf


def pure_costs(epsilon: float) -> dict[int, float]:
    """Return the costs of a release that is purely ε-private: at every order those of a coin with odds e^ε.

    No ε-private mechanism has a larger Rényi divergence at any order (Kairouz, Oh & Viswanath 2015: it is a
    post-processing of that coin).
    """
    eps = _cost(epsilon)
    return {order: _coin_cost(order, eps) * (1.0 + 1e-14) + 1e-14 for order in ORDERS}


def _coin_cost(order: int, epsilon: float) -> float:
    return order * epsilon + math.log1p(math.exp(-(2 * order + 1) * epsilon)) - math.log1p(math.exp(-epsilon))


def total_epsilon(totals: Sequence[Units], deltas: int, *, delta: float, pure: Units = math.inf) -> float:
    """Return the smallest ε at which the totals are within (ε, δ); infinite if there is none.

    Args:
        totals: The costs at DECLARED, in units of 2⁻⁴⁰.
        deltas: The releases' own deltas, in units of 2⁻⁸⁰.
        delta: δ in (0, 1).
        pure: The sum of the releases' pure epsilons, in units of 10⁻¹²; infinite if not all are pure.

    Returns:
        ε, at least 1e-6.
    """
    share = _check.probability("delta", delta) / SHARES
    if not deltas <= share * DELTA_UNIT:
        return math.inf
    return max(SMALLEST_EPSILON, min(moments_epsilon(totals, delta=share), pure / PURE_UNIT))


def moments_epsilon(totals: Sequence[Units], *, delta: float) -> float:
    """Return the smallest ε at which some order has δ_λ(ε) ≤ delta: that of charges fixed beforehand.

    Args:
        totals: The costs at DECLARED, in units of 2⁻⁴⁰.
        delta: δ in (0, 1), all of it for the best order.
    """
    costs = np.array([(t + 1) / COST_UNIT for t in totals])  # the extra unit is more than all round-off below
    return float(epsilon_from_costs(costs, DECLARED, delta=delta, notion="weak"))


def replace_one_costs(costs: Costs) -> dict[int, float]:
    """Return costs for replacing one record from costs for adding or removing one.

    A replacement is a removal and an addition: a group of two. (α, ε)-RDP with α ≥ 4 gives (α/2, 3ε)-RDP for it
    (Mironov 2017, Prop. 2 with c = 1), so order λ takes 3λ D at order 2λ+1, or at the next order
    known, since D grows with the order. Orders with no such source get infinity. It covers pure costs only: a
    release with a delta of its own has no such bound.

    Examples:
        >>> replace_one_costs({3: 0.3, 5: 0.5})[1]  # 3 · 0.3 / 3
        0.3
    """
    known = _by_order(costs)
    sources = sorted(order for order in known if math.isfinite(known[order]))
    converted = {}
    for order in ORDERS:
        source = next((s for s in sources if s >= 2 * order + 1), None)
        converted[order] = math.inf if source is None else 3.0 * order * (known[source] / source)
    return converted


def _by_order(costs: Costs) -> dict[int, float]:
    if isinstance(costs, Mapping):
        known: dict[Any, Any] = dict(costs)
    elif len(costs) in (len(DECLARED), len(ORDERS)):
        known = dict(zip(DECLARED if len(costs) == len(DECLARED) else ORDERS, costs, strict=True))
    else:
        raise ValueError(
            f"costs must have one entry for each of the {len(DECLARED)} orders of DECLARED or the {len(ORDERS)} of "
            f"ORDERS, got {len(costs)}; or pass {{order: cost}}."
        )
    return {_check.count("order", order): _cost(cost) for order, cost in known.items()}


def _cost(cost: object) -> float:
    x = _check.number("a cost", cost)
    if not x >= 0.0:
        raise PrivacyError(f"A cost must be at least 0, got {x!r}; nothing was charged.")
    return x


def _round_up(cost: float) -> Units:
    return math.ceil(cost * COST_UNIT) if cost <= _LARGEST else math.inf  # scaling by a power of two is exact
