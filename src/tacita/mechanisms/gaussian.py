r"""One Gaussian release, exactly: its whole curve of (ε, δ).

A release f(D) + N(0, s² I), where neighbours move f by at most Δ, is (ε, δ)-DP exactly for

    δ(ε) = Φ(μ/2 - ε/μ) - e^ε Φ(-μ/2 - ε/μ),  μ = Δ / s

(Balle & Wang 2018, Theorem 8). Several such releases, chosen adaptively, are one with μ² added up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr

from tacita import _check

if TYPE_CHECKING:
    from tacita._check import Floats

_ROUND_OFF = 1e-14  # of a logarithm, and of everything that it is computed from
_TINY = 1e-300
_COARSE = 1e5  # beyond this epsilon the subtracted term is lost in round-off and left out


def renyi_order(order: float) -> float:
    """Return α if it is a finite number above 1."""
    alpha = _check.number("order", order)
    if not 1.0 < alpha < math.inf:
        raise ValueError(f"order must be a finite number above 1, got {alpha:g}.")
    return alpha


def gaussian_renyi(order: float, *, ratio: float) -> float:
    """Return D_α(N(d, s²) ‖ N(0, s²)) = α r² / 2 with r = |d| / s; the same in both directions.

    Examples:
        >>> gaussian_renyi(2.0, ratio=1.0)
        1.0
    """
    alpha = renyi_order(order)
    r = _check.in_range("ratio", ratio, 0.0, math.inf)
    return alpha * r * r / 2.0


def gaussian_delta(epsilon: float | Floats, *, distance: float | Floats) -> Floats:
    """Return δ(ε) of Gaussian releases at distances μ, rounded up by the round-off of the larger term.

    Args:
        epsilon: ε in [0, 1e15]; one, or an array.
        distance: μ in [0, 1e9); one, or an array that goes with `epsilon` by broadcasting.

    Returns:
        δ, at least one-dimensional.

    Examples:
        >>> gaussian_delta(1.0, distance=1.0).round(6)
        array([0.126937])
    """
    eps, mu = (np.atleast_1d(np.asarray(value, dtype=np.float64)) for value in (epsilon, distance))
    if not np.all((eps >= 0.0) & (eps <= 1e15)):
        raise ValueError("epsilon must be in [0, 1e15].")
    if not np.all((mu >= 0.0) & (mu < 1e9)):
        raise ValueError("distance must be in [0, 1e9).")
    safe = np.where(mu > 0.0, np.maximum(mu, 1e-9), 1.0)
    first = log_ndtr(safe / 2.0 - eps / safe)
    second = eps + log_ndtr(-safe / 2.0 - eps / safe)
    slack = _ROUND_OFF * (1.0 + eps + np.abs(np.maximum(first, -1e300)))
    gap = np.where(np.isfinite(first), second - np.maximum(first, -1e300), 0.0)
    share = np.where(eps > _COARSE, 0.0, np.exp(np.minimum(gap, 0.0)))
    delta = np.exp(first) * np.minimum(1.0 + slack, 1.0 - share + slack)
    return np.where(mu > 0.0, np.clip(delta, _TINY, 1.0), 0.0)


def gaussian_epsilon(delta: float, *, distance: float) -> float:
    """Return the smallest ε with δ(ε) ≤ delta, rounded up; 0 if none is needed.

    Examples:
        >>> round(gaussian_epsilon(1e-5, distance=1.0), 4)
        4.3772
    """
    dlt = _check.probability("delta", delta)
    return smallest_epsilon(lambda eps: float(gaussian_delta(eps, distance=distance)[0]), dlt)


def smallest_epsilon(curve: Callable[[float], float], delta: float) -> float:
    """Return the smallest ε at which a falling curve δ(ε) is at most `delta`, rounded up."""
    if curve(0.0) <= delta:
        return 0.0
    high = 1.0
    while curve(high) > delta:
        high *= 2.0
        if high > 1e14:
            return math.inf
    found = brentq(lambda eps: math.log(max(curve(eps), 1e-300) / delta), 0.0, high, xtol=1e-12, rtol=1e-12)
    for slack in (1e-10, 1e-8, 1e-6, 1e-3):
        if curve(found * (1.0 + slack)) <= delta:
            return float(found * (1.0 + slack))
    return high
