"""Theorems 3 and 4 of Triastcyn & Faltings 2020, and the classical Gaussian mechanism, as they are printed.

Their authors' code computes the left side of Theorem 3 alone, which is what `tacita.mechanisms` has; the figures of the
papers come from that code (`tacita.papers.coded`), not from these forms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tacita import _check
from tacita.accounting.levels import NORM_LEVELS
from tacita.mechanisms.subsampled import (
    gaussian_mixture_cost,
    log_binomial,
    log_mean_exp,
    sampled_gaussian_cost,
    squared_ratios,
)

if TYPE_CHECKING:
    from tacita._check import Floats


def classical_noise_multiplier(epsilon: float, *, delta: float) -> float:
    """Return the classical noise of one Gaussian release: sqrt(2 log(1.25/δ)) / ε (Definition 8 of Triastcyn 2020).

    Proved for ε below 1 only (Dwork & Roth 2014, Theorem A.1), and refused from there on: for large ε the formula is
    too small. `tacita.accounting.calibrate_gaussian` gives the least noise at every ε.

    Examples:
        >>> round(classical_noise_multiplier(0.5, delta=1e-5), 2)
        9.69
    """
    eps = _check.in_range("epsilon", epsilon, 1e-9, 1.0 - 1e-12, hint="Use tacita.accounting.calibrate_gaussian.")
    return math.sqrt(2.0 * math.log(1.25 / _check.probability("delta", delta))) / eps


def sampled_gaussian_reverse(order: int, *, sample_rate: float, ratio: float | Floats) -> Floats:
    """Return the right side of Theorem 3: log E_{k ~ Bin(λ, q)} exp((k² + k) r² / 2).

    A convexity bound on the direction that never decides.

    Args:
        order: λ, a whole number from 1.
        sample_rate: q in (0, 1].
        ratio: r ≥ 0, a number or an array.

    Returns:
        An array of costs, of the shape of `ratio`.
    """
    lam, q, u = squared_ratios(order, sample_rate, ratio)
    k = np.arange(1, lam + 1, dtype=np.float64)
    return gaussian_mixture_cost(log_binomial(lam, k, q), (k * k + k) / 2.0, u)


def sampled_gaussian_cost_as_printed(order: int, *, sample_rate: float, ratio: float | Floats) -> Floats:
    """Return max{left, right} of Theorem 3, as it is printed. Sound, and loose at small q.

    Args:
        order: λ, a whole number from 1.
        sample_rate: q in (0, 1].
        ratio: r ≥ 0, a number or an array.

    Returns:
        An array of costs, of the shape of `ratio`.
    """
    left = sampled_gaussian_cost(order, sample_rate=sample_rate, ratio=ratio)
    return np.maximum(left, sampled_gaussian_reverse(order, sample_rate=sample_rate, ratio=ratio))


@lru_cache(maxsize=8)
def printed_cost_table(sample_rate: float, noise_multiplier: float, orders: tuple[int, ...]) -> Floats:
    """Return `sampled_gaussian_cost_as_printed` of one step at every norm level, shape (orders, levels).

    Args:
        sample_rate: q.
        noise_multiplier: σ.
        orders: Values of λ.

    Returns:
        The table, read-only.
    """
    ratios = NORM_LEVELS / noise_multiplier
    costs = [sampled_gaussian_cost_as_printed(order, sample_rate=sample_rate, ratio=ratios) for order in orders]
    table = np.stack(costs)
    table.setflags(write=False)
    return table


def subsampled_forward_as_printed(order: int, *, sample_rate: float, forward: Callable[[int], float]) -> float:
    """Return Theorem 4's left side as it is printed, e^{k D_{k+1}} under the expectation.

    It disagrees with Theorem 3 for the Gaussian mechanism; the corrected form is `mechanisms.subsampled_cost`.

    Args:
        order: λ, a whole number from 1.
        sample_rate: q in (0, 1].
        forward: k -> D_k(B'‖B), called for k = 2, ..., λ+2.

    Returns:
        The cost, infinite if it is infinite.
    """
    lam = _check.count("order", order, high=100_000)
    q = _check.rate("sample_rate", sample_rate)
    k = np.arange(1.0, lam + 2.0)
    exponents = k * np.array([_check.in_range("a divergence", forward(int(i) + 1), 0.0, np.inf) for i in k])
    return float(log_mean_exp(log_binomial(lam + 1, k, q), exponents[None, :])[0])
