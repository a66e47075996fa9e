r"""Rényi divergences of exponential families, in closed form, with the condition under which each is finite.

For densities p_1, p_2 and order α > 1, D_α(1‖2) = log ∫ p_1^α p_2^{1-α} / (α - 1). The closed forms are
those collected by Gil, Alajaji and Linder (Information Sciences 249, 2013); all are instances of one identity, so
that is what the code holds. Where the integral diverges, infinity is returned. A new family is one entry of `families`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln

from tacita import _check
from tacita.mechanisms._order import renyi_order

if TYPE_CHECKING:
    from tacita._check import Floats


@dataclass(frozen=True)
class ExponentialFamily:
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

    Returns:
        The divergence, infinite where it does not exist.

    Raises:
        ValueError: If the family is unknown, or the parameters are not valid for it.

    Examples:
        >>> round(exponential_family_renyi(2.0, family="exponential", first=[1.0], second=[1.5]), 6)
        0.287682
        >>> exponential_family_renyi(2.0, family="exponential", first=[1.0], second=[2.5])
        inf
    """
    alpha = renyi_order(order)
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


def _natural(family: ExponentialFamily, name: str, values: Sequence[float]) -> Floats:
    numbers = [_check.number(f"a parameter of {name}", v) for v in values]
    wrong_count = len(numbers) != len(family.parameters) and family.parameters[-1] != "..."
    theta = None if wrong_count or not numbers else family.natural(*numbers)
    if theta is None or not np.isfinite(theta).all():
        raise ValueError(f"{name} takes valid values of ({', '.join(family.parameters)}), got {tuple(values)}.")
    return theta


def _one(name: str, to_theta: Callable[[float], float], log_partition: Callable[[float], float]) -> ExponentialFamily:
    """Build a family with one positive parameter."""
    return ExponentialFamily(
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

families: dict[str, ExponentialFamily] = {
    "bernoulli": ExponentialFamily(
        ("p",),
        lambda p: np.array([math.log(p / (1.0 - p))]) if 0.0 < p < 1.0 else None,
        lambda theta: float(np.logaddexp(0.0, theta[0])),
    ),
    "beta": ExponentialFamily(("a", "b"), _dirichlet_theta, _dirichlet_partition),
    "dirichlet": ExponentialFamily(("a1", "a2", "..."), _dirichlet_theta, _dirichlet_partition),
    "exponential": _one("rate", lambda rate: -rate, _log_rate),
    "gamma": ExponentialFamily(("shape", "rate"), _gamma_theta, _gamma_partition),
    "inverse_gamma": ExponentialFamily(("shape", "scale"), _gamma_theta, _gamma_partition),
    "chi_square": _one(
        "degrees", lambda k: k / 2.0, lambda h: float(gammaln(h) + h * math.log(2.0)) if h > 0.0 else math.inf
    ),
    "half_normal": _one("stddev", lambda s: -0.5 / s**2, _half_log_rate),
    "inverse_gaussian": ExponentialFamily(
        ("mean", "shape"),
        lambda m, k: _positive_or_none(-k / (2.0 * m**2), -k / 2.0, valid=k > 0.0) if m > 0.0 else None,
        _inverse_gaussian_partition,
    ),
    "log_normal": ExponentialFamily(("mean_log", "stddev_log"), _normal_theta, _gaussian_partition),
    "normal": ExponentialFamily(("mean", "stddev"), _normal_theta, _gaussian_partition),
    "pareto": _one("index", lambda a: -a, _log_rate),
    "poisson": _one("mean", math.log, lambda theta: math.exp(theta)),
    "rayleigh": _one("scale", lambda s: -0.5 / s**2, _log_rate),
}
