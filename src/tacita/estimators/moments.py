"""Upper bounds on log E exp(A) from a sample of A: the papers' estimators, and a distribution-free one.

Everything stays in the log domain; no exp of a cost is formed unscaled. Each function takes costs of shape
(..., n) with `weights` of shape (n,), the number of records at each cost, and the largest cost a record can
have, `worst` of shape (...). It returns shape (...).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import betainccinv
from scipy.stats import t as student_t

from tacita import _check

if TYPE_CHECKING:
    from tacita._check import Counts, Floats


def student(costs: Floats, *, weights: Counts, gamma: float, worst: Floats) -> Floats:
    r"""Return the papers' estimator of log E exp(A) (Definition 17 of Triastcyn 2020, eq. 5.45).

    log(M + t_{m-1}^{-1}(1-γ) / √(m-1) · S), with M and S the mean and the (1/m) standard deviation of
    exp(A). Model-based: it holds under a flat prior and a maximum-entropy model, not for every law. With
    one record in a thousand at the clip bound and m = 1000 it is too low in about a third of draws.
    """
    m = _sample_size("student", weights)
    gamma = _check.probability("gamma", gamma)
    if gamma >= 0.5:
        raise ValueError(f"gamma must be below 0.5 for estimator 'student', got {gamma:g}.")
    top = costs.max(axis=-1)
    mean, variance = _mean_and_variance(np.exp(costs - top[..., None]), weights)
    margin = float(student_t.isf(gamma, m - 1)) / math.sqrt(m - 1)
    return np.asarray(np.minimum(top + np.log(mean + margin * np.sqrt(variance)), worst))


def bernstein(costs: Floats, *, weights: Counts, gamma: float, worst: Floats) -> Floats:
    r"""Return a distribution-free bound on log E exp(A): empirical Bernstein (Maurer & Pontil 2009, Thm 4).

    For Y = exp(A - worst) in [0, 1] with sample variance V (divisor m - 1),
    E Y ≤ mean + √(2 V ln(2/γ) / m) + 7 ln(2/γ) / (3 (m-1)) except with probability γ. Suggested in
    Remark 8 of Triastcyn 2020.
    """
    m = _sample_size("bernstein", weights)
    log_term = math.log(2.0 / _check.probability("gamma", gamma))
    mean, variance = _mean_and_variance(np.exp(costs - worst[..., None]), weights)
    bound = mean + np.sqrt(2.0 * variance * log_term / (m - 1)) + 7.0 * log_term / (3.0 * (m - 1))
    return np.asarray(worst + np.log(np.minimum(bound, 1.0)))


def binary(costs: Floats, *, weights: Counts, gamma: float, worst: Floats) -> Floats:
    """Return log E exp(A) for a population with at most two costs, by `binary_share`.

    The larger of the two costs seen is the "one". If only one cost was seen, the other is the worst case.
    Model-based (flat prior).
    """
    low, high = costs.min(axis=-1), costs.max(axis=-1)
    at_high = costs == high[..., None]
    if not (at_high | (costs == low[..., None])).all():
        raise ValueError("estimator 'binary' needs followed records with at most two different costs; use 'band'.")
    m = int(weights.sum())
    two_seen = low < high
    ones = np.where(two_seen, at_high @ weights, 0)
    share = np.vectorize(lambda n: binary_share(int(n), m - int(n), gamma=gamma), otypes=[float])(ones)
    return np.asarray(np.logaddexp(np.log(share) + np.where(two_seen, high, worst), np.log1p(-share) + low))


def binary_share(ones: int, zeros: int, *, gamma: float) -> float:
    """Return the (1 - γ) quantile of Beta(ones + 1, zeros + 1) (Triastcyn 2020, section 5.4.5).

    Examples:
        >>> round(binary_share(0, 100, gamma=0.99**101), 12)
        0.01
    """
    n1 = _check.count("ones", ones, low=0)
    n0 = _check.count("zeros", zeros, low=0)
    return float(betainccinv(n1 + 1.0, n0 + 1.0, _check.probability("gamma", gamma)))


def _sample_size(estimator: str, weights: Counts) -> int:
    m = int(weights.sum())
    if m < 2:
        raise ValueError(f"estimator {estimator!r} needs at least 2 records, got {m}.")
    return m


def _mean_and_variance(values: Floats, weights: Counts) -> tuple[Floats, Floats]:
    """Return the weighted mean and the variance with divisor m."""
    m = weights.sum()
    mean = values @ weights / m
    return mean, (values - mean[..., None]) ** 2 @ weights / m
