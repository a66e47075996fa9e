"""The papers' estimator for populations in which a record has one of two costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import betainccinv

from tacita import _check

if TYPE_CHECKING:
    from tacita._check import Counts, Floats


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
