"""The chance that a new record is unlike the followed ones, by exchangeability alone."""

from __future__ import annotations

from tacita import _check


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
