"""Estimators that average moments: bounds on log E exp(A) of a population, from a sample of its costs A."""

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
    r"""Return the papers' estimate of log E exp(A) (Definition 17 of Triastcyn 2020, eq. 5.45).

    log(M + t_{m-1}^{-1}(1-γ) / √(m-1) · S), with M and S the mean and the (1/m) standard deviation of
    exp(A). Everything stays in the log domain: no exp of a cost is formed unscaled.

    Args:
        costs: Shape (..., n); the costs A that were observed.
        weights: Shape (n,); how many records have each cost.
        gamma: The probability with which the estimate may be too low, below 0.5.
        worst: Shape (...); the largest cost that a record can have.

    Returns:
        Shape (...), at most `worst`.

    Raises:
        ValueError: If there are fewer than two records, or gamma is not below 0.5.

    Guarantee:
        Model-based: it holds under a flat prior and a maximum-entropy model, not for every distribution. With one
        record in a thousand at the clip bound and m = 1000 it is too low in about a third of draws.
    """
    gamma = _check.probability("gamma", gamma)
    if gamma >= 0.5:
        raise ValueError(f"gamma must be below 0.5 for estimator 'student', got {gamma:g}.")
    top = costs.max(axis=-1)
    m, mean, variance = _mean_and_variance("student", np.exp(costs - top[..., None]), weights)
    margin = float(student_t.isf(gamma, m - 1)) / math.sqrt(m - 1)
    return np.asarray(np.minimum(top + np.log(mean + margin * np.sqrt(variance)), worst))


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
    log_term = math.log(2.0 / _check.probability("gamma", gamma))
    m, mean, variance = _mean_and_variance("bernstein", np.exp(costs - worst[..., None]), weights)
    bound = mean + np.sqrt(2.0 * variance * log_term / (m - 1)) + 7.0 * log_term / (3.0 * (m - 1))
    return np.asarray(worst + np.log(np.minimum(bound, 1.0)))


def binary(costs: Floats, *, weights: Counts, gamma: float, worst: Floats) -> Floats:
    """Return an estimate of log E exp(A) for a population with at most two costs, by `binary_share`.

    The larger of the two observed costs is the "one". If only one cost was observed, the other is the worst case.

    Args:
        costs: Shape (..., n); the costs A that were observed, at most two different ones in each row.
        weights: Shape (n,); how many records have each cost.
        gamma: The probability with which the estimate may be too low.
        worst: Shape (...); the largest cost that a record can have.

    Returns:
        Shape (...).

    Raises:
        ValueError: If a row has more than two different costs.

    Guarantee:
        Model-based: it holds under a flat prior on the share of ones.
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

    Args:
        ones: The number of records with the larger cost.
        zeros: The number of records with the smaller cost.
        gamma: γ in (0, 1).

    Returns:
        The share of ones in the population, except with probability γ under a flat prior.

    Examples:
        >>> round(binary_share(0, 100, gamma=0.99**101), 12)
        0.01
    """
    n1 = _check.count("ones", ones, low=0)
    n0 = _check.count("zeros", zeros, low=0)
    return float(betainccinv(n1 + 1.0, n0 + 1.0, _check.probability("gamma", gamma)))


def _mean_and_variance(estimator: str, values: Floats, weights: Counts) -> tuple[int, Floats, Floats]:
    """Return the sample's size, its weighted mean and its variance with divisor m; refuse fewer than two records."""
    m = int(weights.sum())
    if m < 2:
        raise ValueError(f"estimator {estimator!r} needs at least 2 records, got {m}.")
    mean = values @ weights / m
    return m, mean, (values - mean[..., None]) ** 2 @ weights / m
