r"""Rényi divergences of common families, in closed form, with the condition under which each is finite.

For densities p_1, p_2 and order α > 1, D_α(1‖2) = log ∫ p_1^α p_2^{1-α} / (α - 1). The closed forms are
those collected by Gil, Alajaji and Linder (Information Sciences 249, 2013). All but the Laplace one are
instances of one identity for exponential families, so that is what the code holds. Where the integral
diverges the value is infinity, and infinity is what is returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln

from tacita import _check

if TYPE_CHECKING:
    from tacita._check import Floats


def gaussian_renyi(order: float, *, ratio: float) -> float:
    """Return D_α(N(d, s²) ‖ N(0, s²)) = α r² / 2 with r = |d| / s; the same in both directions.

    Examples:
        >>> gaussian_renyi(2.0, ratio=1.0)
        1.0
    """
    alpha = _order(order)
    r = _check.in_range("ratio", ratio, 0.0, math.inf)
    return alpha * r * r / 2.0


def diagonal_gaussian_renyi(
    order: float,
    *,
    mean1: Sequence[float] | Floats,
    stddev1: Sequence[float] | Floats,
    mean2: Sequence[float] | Floats,
    stddev2: Sequence[float] | Floats,
) -> float:
    """Return D_α between two Gaussians with diagonal covariances.

    Finite only where α s_2² + (1 - α) s_1² > 0 in every dimension, that is where
    s_1² / s_2² < α / (α - 1); otherwise the value is infinity. The two directions differ.
    """
    alpha = _order(order)
    m1, s1, m2, s2 = (np.atleast_1d(np.asarray(a, dtype=np.float64)) for a in (mean1, stddev1, mean2, stddev2))
    if not m1.shape == s1.shape == m2.shape == s2.shape or m1.ndim != 1:
        raise ValueError(
            f"means and stddevs must be vectors of one length, got {m1.shape}, {s1.shape}, {m2.shape}, {s2.shape}."
        )
    if not (np.isfinite(m1) & np.isfinite(m2)).all():
        raise ValueError("mean1 and mean2 must be finite.")
    if not ((s1 > 0) & (s2 > 0) & np.isfinite(s1) & np.isfinite(s2)).all():
        raise ValueError("stddev1 and stddev2 must be positive and finite.")
    mixed = alpha * s2**2 + (1.0 - alpha) * s1**2
    if not (mixed > 0.0).all():
        return math.inf
    spread = np.log(s2 / s1) + np.log(s2**2 / mixed) / (2.0 * (alpha - 1.0))
    return max(0.0, float(np.sum(spread + alpha * (m1 - m2) ** 2 / (2.0 * mixed))))


def laplace_renyi(order: float, *, distance: float, scale1: float, scale2: float | None = None) -> float:
    """Return D_α(Lap(0, b_1) ‖ Lap(distance, b_2)); `scale2` defaults to `scale1`.

    Finite only where α / b_1 > (α - 1) / b_2; with equal scales it always is.

    Examples:
        >>> round(laplace_renyi(2.0, distance=1.0, scale1=1.0), 6)
        0.619124
    """
    alpha = _order(order)
    d = _check.in_range("distance", distance, 0.0, math.inf)
    b1 = _positive("scale1", scale1)
    b2 = b1 if scale2 is None else _positive("scale2", scale2)
    first, second = alpha / b1, (alpha - 1.0) / b2  # ∫ exp(-first |x| + second |x - d|) dx
    if first <= second:
        return math.inf
    if math.isinf(d):
        return math.inf
    outer, inner = 1.0 / (first - second), 1.0 / (first + second)
    tail = math.exp(-(first + second) * d)
    log_integral = second * d + math.log(outer * (1.0 + tail) + inner * (1.0 - tail))
    log_constant = -alpha * math.log(2.0 * b1) + (alpha - 1.0) * math.log(2.0 * b2)
    return max(0.0, (log_integral + log_constant) / (alpha - 1.0))


@dataclass(frozen=True)
class Family:
    """An exponential family p(x) = h(x) exp(θ·T(x) - F(θ)).

    Attributes:
        parameters: Names of the usual parameters, in order.
        natural: Maps them to θ, or to None where they are not valid.
        log_partition: F(θ), infinite outside the natural parameter space.
    """

    parameters: tuple[str, ...]
    natural: Callable[..., Floats | None]
    log_partition: Callable[[Floats], float]


def exponential_family_renyi(order: float, *, family: str, first: Sequence[float], second: Sequence[float]) -> float:
    """Return D_α between two members of an exponential family.

    D_α = [F(α θ_1 + (1 - α) θ_2) - α F(θ_1) - (1 - α) F(θ_2)] / (α - 1), finite exactly when
    α θ_1 + (1 - α) θ_2 is in the natural parameter space.

    Args:
        order: α > 1.
        family: A key of `families`.
        first: Parameters of the first distribution, in the family's order.
        second: Parameters of the second.

    Examples:
        >>> round(exponential_family_renyi(2.0, family="exponential", first=[1.0], second=[1.5]), 6)
        0.287682
        >>> exponential_family_renyi(2.0, family="exponential", first=[1.0], second=[2.5])
        inf
    """
    alpha = _order(order)
    _check.one_of("family", family, tuple(families))
    chosen = families[family]
    theta1, theta2 = (_natural(chosen, family, p) for p in (first, second))
    if theta1.shape != theta2.shape:
        raise ValueError(f"first and second must have one length, got {len(first)} and {len(second)}.")
    mixed = chosen.log_partition(alpha * theta1 + (1.0 - alpha) * theta2)
    if math.isinf(mixed):
        return math.inf
    total = mixed - alpha * chosen.log_partition(theta1) - (1.0 - alpha) * chosen.log_partition(theta2)
    return max(0.0, total / (alpha - 1.0))


def _natural(family: Family, name: str, values: Sequence[float]) -> Floats:
    numbers = [_check.number(f"a parameter of {name}", v) for v in values]
    wrong_count = len(numbers) != len(family.parameters) and family.parameters[-1] != "..."
    theta = None if wrong_count or not numbers else family.natural(*numbers)
    if theta is None or not np.isfinite(theta).all():
        raise ValueError(f"{name} takes valid values of ({', '.join(family.parameters)}), got {tuple(values)}.")
    return theta


def _one(name: str, to_theta: Callable[[float], float], log_partition: Callable[[float], float]) -> Family:
    """Build a family with one positive parameter."""
    return Family(
        (name,),
        lambda v: np.array([to_theta(v)]) if v > 0.0 else None,
        lambda theta: log_partition(float(theta[0])),
    )


def _log_rate(theta: float) -> float:
    return -math.log(-theta) if theta < 0.0 else math.inf


def _half_log_rate(theta: float) -> float:
    return -0.5 * math.log(-theta) if theta < 0.0 else math.inf


def _gamma_partition(theta: Floats) -> float:
    shape, rate = theta[0] + 1.0, -theta[1]
    return float(gammaln(shape) - shape * math.log(rate)) if shape > 0.0 and rate > 0.0 else math.inf


def _dirichlet_partition(theta: Floats) -> float:
    a = theta + 1.0
    return float(gammaln(a).sum() - gammaln(a.sum())) if (a > 0.0).all() else math.inf


def _gaussian_partition(theta: Floats) -> float:
    linear, quadratic = float(theta[0]), float(theta[1])
    if quadratic >= 0.0:
        return math.inf
    return -(linear**2) / (4.0 * quadratic) - 0.5 * math.log(-2.0 * quadratic)


def _inverse_gaussian_partition(theta: Floats) -> float:
    first, second = float(theta[0]), float(theta[1])  # coefficients of x and 1/x
    if first > 0.0 or second >= 0.0:
        return math.inf
    return -2.0 * math.sqrt(first * second) - 0.5 * math.log(-2.0 * second)


def _positive_or_none(*theta: float, valid: bool) -> Floats | None:
    return np.array(theta) if valid else None


_normal_theta = lambda m, s: _positive_or_none(m / s**2, -0.5 / s**2, valid=True) if s > 0.0 else None  # noqa: E731
_dirichlet_theta = lambda *a: np.array(a) - 1.0 if min(a) > 0.0 else None  # noqa: E731
_gamma_theta = lambda shape, rate: _positive_or_none(shape - 1.0, -rate, valid=shape > 0.0 and rate > 0.0)  # noqa: E731

families: dict[str, Family] = {
    "bernoulli": Family(
        ("p",),
        lambda p: np.array([math.log(p / (1.0 - p))]) if 0.0 < p < 1.0 else None,
        lambda theta: float(np.logaddexp(0.0, theta[0])),
    ),
    "beta": Family(("a", "b"), _dirichlet_theta, _dirichlet_partition),
    "dirichlet": Family(("a1", "a2", "..."), _dirichlet_theta, _dirichlet_partition),
    "exponential": _one("rate", lambda rate: -rate, _log_rate),
    "gamma": Family(("shape", "rate"), _gamma_theta, _gamma_partition),
    "inverse_gamma": Family(("shape", "scale"), _gamma_theta, _gamma_partition),
    "chi_square": _one(
        "degrees", lambda k: k / 2.0, lambda h: float(gammaln(h) + h * math.log(2.0)) if h > 0.0 else math.inf
    ),
    "half_normal": _one("stddev", lambda s: -0.5 / s**2, _half_log_rate),
    "inverse_gaussian": Family(
        ("mean", "shape"),
        lambda m, k: _positive_or_none(-k / (2.0 * m**2), -k / 2.0, valid=k > 0.0) if m > 0.0 else None,
        _inverse_gaussian_partition,
    ),
    "log_normal": Family(("mean_log", "stddev_log"), _normal_theta, _gaussian_partition),
    "normal": Family(("mean", "stddev"), _normal_theta, _gaussian_partition),
    "pareto": _one("index", lambda a: -a, _log_rate),
    "poisson": _one("mean", math.log, lambda theta: math.exp(theta)),
    "rayleigh": _one("scale", lambda s: -0.5 / s**2, _log_rate),
}


def _order(order: float) -> float:
    alpha = _check.number("order", order)
    if not 1.0 < alpha < math.inf:
        raise ValueError(f"order must be a finite number above 1, got {alpha:g}.")
    return alpha


def _positive(name: str, value: float) -> float:
    x = _check.number(name, value)
    if not 0.0 < x < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {x:g}.")
    return x
