r"""From log moments to (ε, δ).

With A_λ a record's log moment, Chernoff bounds the tail of its privacy loss (the strong notion):

    Pr[L ≥ ε] ≤ exp(A_λ - λε),

and Canonne, Kamath & Steinke 2020 (arXiv:2004.00010v4, Prop. 12) its hockey-stick divergence (weak):

    δ(ε) ≤ exp(A_λ - λε) · (1/(λ+1)) (1 - 1/(λ+1))^λ.

Both stay true under an expectation over records, with log E exp(A_λ) in the place of A_λ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tacita import _check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacita._check import Floats

NOTIONS = ("strong", "weak")


def epsilon_from_costs(costs: Floats, orders: Sequence[float], *, delta: float, notion: str) -> Floats:
    """Return the smallest ε over the orders; `costs` has shape (..., orders).

    Args:
        costs: Log moments A_λ, shape (..., orders).
        orders: The λ of the last axis.
        delta: δ in (0, 1).
        notion: `strong` or `weak`.

    Returns:
        Shape (...).

    Examples:
        >>> float(epsilon_from_costs(np.array([1.0]), [2], delta=np.exp(-3.0), notion="strong"))
        2.0
    """
    return np.asarray(epsilon_by_order(costs, orders, delta=delta, notion=notion).min(axis=-1))


def epsilon_by_order(costs: Floats, orders: Sequence[float], *, delta: float, notion: str) -> Floats:
    """Return the ε that each order gives; `costs` has shape (..., orders).

    Args:
        costs: Log moments A_λ, shape (..., orders).
        orders: The λ of the last axis.
        delta: δ in (0, 1).
        notion: `strong` or `weak`.

    Returns:
        The shape of `costs`.
    """
    lam = np.asarray(orders, dtype=np.float64)
    bound = (costs + _log_factor(lam, notion) - np.log(_check.probability("delta", delta))) / lam
    return np.asarray(np.maximum(bound, 0.0))


def delta_from_costs(costs: Floats, orders: Sequence[float], *, epsilon: float, notion: str) -> Floats:
    """Return the smallest δ over the orders, at most 1; `costs` has shape (..., orders).

    Args:
        costs: Log moments A_λ, shape (..., orders).
        orders: The λ of the last axis.
        epsilon: ε.
        notion: `strong` or `weak`.

    Returns:
        Shape (...).
    """
    lam = np.asarray(orders, dtype=np.float64)
    exponent = costs + _log_factor(lam, notion) - lam * epsilon
    return np.asarray(np.exp(np.minimum(exponent.min(axis=-1), 0.0)))


def _log_factor(lam: Floats, notion: str) -> Floats:
    if _check.one_of("notion", notion, NOTIONS) == "strong":
        return np.zeros_like(lam)
    return np.asarray(-np.log1p(lam) - lam * np.log1p(1.0 / lam))
