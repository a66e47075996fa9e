"""A distribution-free bound on a mean by its variance: empirical Bernstein."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tacita import _check
from tacita.estimators._weighted import mean_and_variance, sample_size

if TYPE_CHECKING:
    from tacita._check import Counts, Floats


def bernstein(costs: Floats, *, weights: Counts, gamma: float, worst: Floats) -> Floats:
    r"""Return an upper bound on log E exp(A): empirical Bernstein (Maurer & Pontil 2009, Thm 4).

    For Y = exp(A - worst) in [0, 1] with sample variance V (divisor m - 1),
    E Y ≤ mean + √(2 V ln(2/γ) / m) + 7 ln(2/γ) / (3 (m-1)) except with probability γ. Suggested in
    Remark 8 of Triastcyn 2020.

    Args:
        costs: Shape (..., n); the costs A that were observed.
        weights: Shape (n,); how many records have each cost.
        gamma: The probability with which the bound may fail.
        worst: Shape (...); the largest cost that a record can have.

    Returns:
        Shape (...), at most `worst`.

    Raises:
        ValueError: If there are fewer than two records.

    Guarantee:
        For i.i.d. records of any distribution with costs up to `worst`, Pr[log E exp(A) > bound] ≤ gamma.
    """
    m = sample_size("bernstein", weights)
    log_term = math.log(2.0 / _check.probability("gamma", gamma))
    mean, variance = mean_and_variance(np.exp(costs - worst[..., None]), weights)
    bound = mean + np.sqrt(2.0 * variance * log_term / (m - 1)) + 7.0 * log_term / (3.0 * (m - 1))
    return np.asarray(worst + np.log(np.minimum(bound, 1.0)))
