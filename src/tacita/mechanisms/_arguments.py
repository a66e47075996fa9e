"""Checks of arguments that several divergences share."""

from __future__ import annotations

import math

from tacita import _check


def renyi_order(order: float) -> float:
    """Return α if it is a finite number above 1."""
    alpha = _check.number("order", order)
    if not 1.0 < alpha < math.inf:
        raise ValueError(f"order must be a finite number above 1, got {alpha:g}.")
    return alpha


def positive(name: str, value: float) -> float:
    """Return `value` if it is positive and finite."""
    x = _check.number(name, value)
    if not 0.0 < x < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {x:g}.")
    return x
