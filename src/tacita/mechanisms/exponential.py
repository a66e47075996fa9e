r"""Rényi divergences of exponential families, in closed form, with the condition under which each is finite.

For densities p_1, p_2 and order α > 1, D_α(1‖2) = log ∫ p_1^α p_2^{1-α} / (α - 1). The closed forms are
those collected by Gil, Alajaji and Linder (Information Sciences 249, 2013); all are instances of one identity, so
that is what the code holds. Where the integral diverges, infinity is returned. A new family is one entry of `families`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import gammaln

from tacita import _check
from tacita.mechanisms.gaussian import renyi_order

if TYPE_CHECKING:
    from tacita._check import Floats


@dataclass(frozen=True)
class ExponentialFamily:
    """An exponential family p(x) = h(x) exp(θ·T(x) - F(θ)).

    Attributes:
        parameters: Names of the usual parameters, in order. The last may be "...", for any number of them.
        natural: Maps valid ones to θ.
        log_partition: F of θ's components, infinite outside the natural parameter space.
        real: How many of the first parameters may be any number; the others must be positive.
    """

    parameters: tuple[str, ...]
    natural: Callable[..., Sequence[float]]
    log_partition: Callable[..., float]
    real: int = 0


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
    mixed = chosen.log_partition(*(alpha * theta1 + (1.0 - alpha) * theta2))
    if math.isinf(mixed):
        return math.inf
    total = mixed - alpha * chosen.log_partition(*theta1) - (1.0 - alpha) * chosen.log_partition(*theta2)
    return max(0.0, total / (alpha - 1.0))


def _natural(family: ExponentialFamily, name: str, values: Sequence[float]) -> Floats:
    numbers = [_check.number(f"a parameter of {name}", v) for v in values]
    fits = len(numbers) == len(family.parameters) or (numbers and family.parameters[-1] == "...")
    theta = np.array(np.nan)
    if fits and all(x > 0.0 for x in numbers[family.real :]):
        with suppress(ValueError, ArithmeticError):
            theta = np.array(family.natural(*numbers))
    if not np.isfinite(theta).all():
        raise ValueError(f"{name} takes valid values of ({', '.join(family.parameters)}), got {tuple(values)}.")
    return theta


def _log_rate(theta: float) -> float:
    return -math.log(-theta) if theta < 0.0 else math.inf


def _chi_square_partition(half: float) -> float:
    return float(gammaln(half) + half * math.log(2.0)) if half > 0.0 else math.inf


def _gamma_partition(first: float, second: float) -> float:
    shape, rate = first + 1.0, -second
    return float(gammaln(shape) - shape * math.log(rate)) if shape > 0.0 and rate > 0.0 else math.inf


def _dirichlet_partition(*theta: float) -> float:
    a = np.array(theta) + 1.0
    return float(gammaln(a).sum() - gammaln(a.sum())) if (a > 0.0).all() else math.inf


def _gaussian_partition(linear: float, quadratic: float) -> float:
    return -(linear**2) / (4.0 * quadratic) - 0.5 * math.log(-2.0 * quadratic) if quadratic < 0.0 else math.inf


def _inverse_gaussian_partition(first: float, second: float) -> float:
    """Return F for the coefficients of x and 1/x."""
    if first > 0.0 or second >= 0.0:
        return math.inf
    return -2.0 * math.sqrt(first * second) - 0.5 * math.log(-2.0 * second)


_dirichlet: dict[str, Any] = {"natural": lambda *a: np.array(a) - 1.0, "log_partition": _dirichlet_partition}
_gamma: dict[str, Any] = {"natural": lambda shape, rate: (shape - 1.0, -rate), "log_partition": _gamma_partition}
_normal: dict[str, Any] = {
    "natural": lambda m, s: (m / s**2, -0.5 / s**2),
    "log_partition": _gaussian_partition,
    "real": 1,
}

families: dict[str, ExponentialFamily] = {
    "bernoulli": ExponentialFamily(
        ("p",), lambda p: [math.log(p / (1.0 - p))], lambda theta: float(np.logaddexp(0.0, theta))
    ),
    "beta": ExponentialFamily(("a", "b"), **_dirichlet),
    "dirichlet": ExponentialFamily(("a1", "a2", "..."), **_dirichlet),
    "exponential": ExponentialFamily(("rate",), lambda rate: [-rate], _log_rate),
    "gamma": ExponentialFamily(("shape", "rate"), **_gamma),
    "inverse_gamma": ExponentialFamily(("shape", "scale"), **_gamma),
    "chi_square": ExponentialFamily(("degrees",), lambda k: [k / 2.0], _chi_square_partition),
    "half_normal": ExponentialFamily(("stddev",), lambda s: [-0.5 / s**2], lambda theta: 0.5 * _log_rate(theta)),
    "inverse_gaussian": ExponentialFamily(
        ("mean", "shape"), lambda m, k: (-k / (2.0 * m**2), -k / 2.0), _inverse_gaussian_partition
    ),
    "log_normal": ExponentialFamily(("mean_log", "stddev_log"), **_normal),
    "normal": ExponentialFamily(("mean", "stddev"), **_normal),
    "pareto": ExponentialFamily(("index",), lambda a: [-a], _log_rate),
    "poisson": ExponentialFamily(("mean",), lambda mean: [math.log(mean)], math.exp),
    "rayleigh": ExponentialFamily(("scale",), lambda s: [-0.5 / s**2], _log_rate),
}
