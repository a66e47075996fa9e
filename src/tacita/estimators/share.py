"""Exact limits on a share and on what a share of a population stays under; the chance of a conformal miss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv
from scipy.stats import binom

from tacita import _check


def share_at_least(successes: int, trials: int, *, confidence: float) -> float:
    """Return the one-sided lower limit on a share (Clopper & Pearson 1934).

    Args:
        successes: How many trials succeeded.
        trials: How many there were.
        confidence: How often the limit holds, in (0, 1).

    Returns:
        The largest share that `confidence` allows to be ruled out from below; 0 without a success.

    Guarantee:
        For independent trials of any one share, Pr[share ≥ limit] ≥ confidence.

    Examples:
        >>> round(share_at_least(9, 10, confidence=0.975), 4)
        0.555
    """
    total = _check.count("trials", trials, low=0)
    count = _check.count("successes", successes, low=0, high=total)
    tail = 1.0 - _check.probability("confidence", confidence)
    return float(betaincinv(count, total - count + 1.0, tail)) if count else 0.0


def share_at_most(successes: int, trials: int, *, confidence: float) -> float:
    """Return the one-sided upper limit on a share: that of the failures, mirrored.

    Args:
        successes: How many trials succeeded.
        trials: How many there were.
        confidence: How often the limit holds, in (0, 1).

    Returns:
        The smallest share that `confidence` allows to be ruled out from above; 1 without a failure.

    Guarantee:
        For independent trials of any one share, Pr[share ≤ limit] ≥ confidence.
    """
    total = _check.count("trials", trials, low=0)
    count = _check.count("successes", successes, low=0, high=total)
    level = _check.probability("confidence", confidence)
    return float(betaincinv(count + 1.0, total - count, level)) if count < total else 1.0


def share_interval(successes: int, trials: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Return the two-sided interval of a share: both one-sided limits, each missing half as often.

    Args:
        successes: How many trials succeeded.
        trials: How many there were.
        confidence: How often the interval holds the share, in (0, 1).

    Returns:
        The lower and the upper end.

    Guarantee:
        For independent trials of any one share, the interval holds it with probability at least `confidence`.

    Examples:
        >>> [round(end, 4) for end in share_interval(9, 10)]
        [0.555, 0.9975]
    """
    one_sided = 0.5 + 0.5 * _check.probability("confidence", confidence)
    limits = share_at_least, share_at_most
    low, high = (limit(successes, trials, confidence=one_sided) for limit in limits)
    return low, high


def share_bounds(
    values: ArrayLike, *, percents: Sequence[float], gamma: float, worst: float, low: float = 0.0
) -> dict[float, float]:
    """Return what each percentage of a population stays under, from a sample of it.

    For a share p, the r-th smallest of m values, with r the smallest rank at which Pr[Bin(m, p) ≥ r] is at most
    gamma over the number of percentages. If it were below the p-quantile, at least r of m values would be too, each
    with a chance of at most p; ties change nothing. It is the sample form of random differential privacy (Hall,
    Rinaldo & Wasserman 2011).

    Args:
        values: One number for each record of the sample.
        percents: In (0, 100), chosen before the values are seen.
        gamma: The probability with which any of the statements may fail.
        worst: What no record exceeds; used where the sample is too small for a percentage.
        low: The chance with which a value is too low, for each record on its own. A value is then below the p-quantile
            with a chance of at most p + low (1 - p), which takes the place of p.

    Returns:
        From percentage to value, never above `worst`.

    Guarantee:
        For records drawn independently from any one law: except with probability `gamma` over the sample, at least
        each percentage of the population is at or below its value, for all of them at once.

    Examples:
        >>> share_bounds(range(1000), percents=(50, 90, 99), gamma=1e-6, worst=5000.0)
        {50: 578.0, 90: 944.0, 99: 5000.0}
    """
    own = np.sort(np.asarray(values, dtype=np.float64))
    each = _check.probability("gamma", gamma) / max(1, len(percents))
    found = {}
    for percent in percents:
        share = _check.probability("a percentage over 100", percent / 100.0)
        share += low * (1.0 - share)
        rank = int(binom.isf(each, len(own), share)) + 1  # the smallest r with Pr[Bin ≥ r] ≤ gamma / J
        while binom.sf(rank - 1, len(own), share) > each:
            rank += 1
        found[percent] = float(min(own[rank - 1], worst)) if rank <= len(own) else float(worst)
    return found


def share_under_another_law(share: float, *, tv: float) -> float:
    """Return at least which share of another population a statement about a share of this one holds for.

    A set that has mass p under one law has at least p - TV under another at total variation distance TV.

    Args:
        share: p, in [0, 1].
        tv: How far the two populations are apart, in [0, 1]. The reader assumes it; nothing estimates it.

    Examples:
        >>> share_under_another_law(0.9, tv=0.05)
        0.85
    """
    return max(0.0, _check.in_range("share", share, 0.0, 1.0) - _check.in_range("tv", tv, 0.0, 1.0))


def mean_under_another_law(mean: float, *, tv: float, low: float, high: float) -> float:
    """Return what the mean of a figure is at most under another law: the mean here plus (high - low) TV.

    Args:
        mean: An upper bound on the mean here.
        tv: How far the two populations are apart, in [0, 1]. The reader assumes it; nothing estimates it.
        low: What the figure is never below.
        high: What it is never above, such as the worst case; so is the result.

    Examples:
        >>> mean_under_another_law(0.52, tv=0.05, low=0.5, high=0.6)
        0.525
    """
    least, most = _check.number("low", low), _check.number("high", high)
    if not least <= most:
        raise ValueError(f"low must be at most high, got {least:g} and {most:g}.")
    return min(most, _check.number("mean", mean) + (most - least) * _check.in_range("tv", tv, 0.0, 1.0))


def conformal_miss(m: int, *, tolerated: int) -> float:
    """Return (k0 + 1) / (m + 1): the chance that a new record passes a budget few followed ones passed.

    If m followed records and one new record are exchangeable, the event "at most k0 followed records
    passed the budget, and the new one did" has at most this probability: among the m + 1, at most k0 + 1
    passed, and each is equally likely to be the new one.

    Args:
        m: The number of followed records.
        tolerated: k0, how many of them may pass the budget.

    Returns:
        The probability.

    Raises:
        ValueError: If `tolerated` is not below m.

    Examples:
        >>> conformal_miss(999, tolerated=0)
        0.001
    """
    m = _check.count("m", m)
    k0 = _check.count("tolerated", tolerated, low=0, high=m - 1)
    return (k0 + 1) / (m + 1)
