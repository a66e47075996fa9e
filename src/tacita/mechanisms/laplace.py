"""Laplace noise: its Rényi divergence (Gil, Alajaji & Linder, Information Sciences 249, 2013)."""

from __future__ import annotations

import math

from tacita import _check
from tacita.mechanisms.gaussian import renyi_order


def laplace_renyi(order: float, *, distance: float, scale1: float, scale2: float | None = None) -> float:
    """Return D_α(Lap(0, b_1) ‖ Lap(distance, b_2)); `scale2` defaults to `scale1`.

    Finite only where α / b_1 > (α - 1) / b_2; with equal scales it always is.

    Args:
        order: α > 1.
        distance: How far apart the centres are, at least 0.
        scale1: b_1.
        scale2: b_2.

    Returns:
        The divergence, infinite where it does not exist.

    Raises:
        ValueError: If an argument is out of range.

    Examples:
        >>> round(laplace_renyi(2.0, distance=1.0, scale1=1.0), 6)
        0.619124
    """
    alpha = renyi_order(order)
    d = _check.in_range("distance", distance, 0.0, math.inf)
    b1 = _scale("scale1", scale1)
    b2 = b1 if scale2 is None else _scale("scale2", scale2)
    first, second = alpha / b1, (alpha - 1.0) / b2  # ∫ exp(-first |x| + second |x - d|) dx
    if first <= second or math.isinf(d):
        return math.inf
    outer, inner = 1.0 / (first - second), 1.0 / (first + second)
    tail = math.exp(-(first + second) * d)
    log_integral = second * d + math.log(outer * (1.0 + tail) + inner * (1.0 - tail))
    log_constant = -alpha * math.log(2.0 * b1) + (alpha - 1.0) * math.log(2.0 * b2)
    return max(0.0, (log_integral + log_constant) / (alpha - 1.0))


def _scale(name: str, value: float) -> float:
    x = _check.number(name, value)
    if not 0.0 < x < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {x:g}.")
    return x
