"""The order of a Rényi divergence, checked."""

from __future__ import annotations

import math

from tacita import _check


def renyi_order(order: float) -> float:
    """Return α if it is a finite number above 1."""
    alpha = _check.number("order", order)
    if not 1.0 < alpha < math.inf:
        raise ValueError(f"order must be a finite number above 1, got {alpha:g}.")
    return alpha
