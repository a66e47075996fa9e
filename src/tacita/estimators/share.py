"""Exact confidence limits on a share, from counted successes."""

from __future__ import annotations

from scipy.special import betaincinv

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
