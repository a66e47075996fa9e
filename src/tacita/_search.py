"""The one bisection: where a condition begins to hold, from the side on which it does.

For the root of a smooth function use `scipy.optimize.brentq`; for whole numbers `bisect.bisect_left` with a `key`.
"""

from __future__ import annotations

import math
from collections.abc import Callable


def boundary(
    holds: Callable[[float], bool],
    *,
    fails: float,
    at: float,
    rtol: float = 0.0,
    xtol: float = 0.0,
    geometric: bool = False,
) -> float:
    """Return a point at which a condition holds, next to where it stops holding.

    Only points at which `holds` was true are returned, so rounding is to the safe side.

    Args:
        holds: The condition; true between the boundary and `at`.
        fails: Where it does not hold, or is not needed to.
        at: Where it holds. It may be above or below `fails`, and is not tried again.
        rtol: Stop when the two ends differ by at most this share of the larger one (of the smaller one, if
            `geometric`).
        xtol: Stop when they differ by at most this.
        geometric: Halve the ratio of the ends, which must be positive, instead of their difference.

    Returns:
        A point between `fails` and `at`, or `at`.

    Examples:
        >>> round(boundary(lambda x: x * x >= 2.0, fails=0.0, at=2.0, xtol=1e-9), 6)
        1.414214
    """
    while True:
        low, high = sorted((fails, at))
        if high - low <= max(xtol, rtol * (low if geometric else high)):
            return at
        middle = math.sqrt(low * high) if geometric else 0.5 * (low + high)
        if middle in (low, high):  # neighbouring floats
            return at
        if holds(middle):
            at = middle
        else:
            fails = middle
