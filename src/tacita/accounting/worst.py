"""Worst-case differential privacy of Poisson-sampled Gaussian steps, by dp-accounting.

The only module that imports dp-accounting. It builds events and asks; nothing is computed by hand.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal

import dp_accounting
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from tacita import _check
from tacita._check import PrivacyError
from tacita.accounting.curves import worst_curve
from tacita.accounting.gaussian import least_noise
from tacita.accounting.losses import largest_loss, loss_spread
from tacita.accounting.profiles import worst_profile
from tacita.assumptions import assume
from tacita.guarantee import SMALLEST_EPSILON, Guarantee
from tacita.profile import Profile

SampledSteps = tuple[float, float, int]  # sample rate, noise multiplier, steps

_ASSUMPTIONS = tuple(map(assume, ("sampling", "clipping", "public-constants", "gaussian-noise")))
_PLD_LIMIT = 500.0  # beyond this epsilon a loss grid says nothing that moments do not
_PLD_STEPS = 2_000_000  # beyond this many steps it takes minutes and its round-off matters
_UNIT = 2.0**-53
_PROFILE_POINTS = 200
_NOISE_RANGE = (0.01, 1e4)


def worst_case(
    *,
    sample_rate: float,
    noise_multiplier: float,
    steps: int,
    delta: float,
    method: Literal["pld", "rdp"] = "pld",
) -> Guarantee:
    """Return the worst-case guarantee of `steps` Poisson-sampled Gaussian steps.

    Args:
        sample_rate: Chance q in (0, 1] with which each record enters a step.
        noise_multiplier: σ in [0.01, 1e4]; noise standard deviation over the clip norm.
        steps: Number of steps, fixed beforehand.
        delta: δ in (0, 1).
        method: `pld` (tight, the headline) or `rdp` (moments, as in the papers' comparisons). Above
            epsilon 500, beyond two million steps, or where delta is below its round-off (3e-15 a step), where
            dp-accounting's loss distribution does not fit, `pld` takes the smaller of `rdp` and `worst_profile`.

    Returns:
        The guarantee; its `method` says which bound it is: `pld`, `rdp` or `profile`.

    Guarantee:
        For every dataset and every one record added or removed.

    Examples:
        >>> g = worst_case(sample_rate=0.01, noise_multiplier=1.0, steps=2000, delta=1e-5)
        >>> round(g.epsilon, 2)
        2.58
    """
    q, sigma, count = check_mechanism(sample_rate, noise_multiplier, steps)
    dlt = _check.probability("delta", delta)
    _check.one_of("method", method, ("pld", "rdp"))
    epsilon, used = _epsilon(q, sigma, count, dlt, method)
    profile = worst_profile(sample_rate=q, noise_multiplier=sigma, steps=count) if method == "pld" else None
    return Guarantee(
        kind="worst_case",
        epsilon=epsilon,
        delta=dlt,
        method=used,
        mechanism=(("noise_multiplier", sigma), ("sample_rate", q), ("steps", count)),
        assumptions=_ASSUMPTIONS,
        publishable=True,
        profile=profile and profile & Profile.of_pair(epsilon, dlt),
    )


def calibrate(
    *, epsilon: float, delta: float, sample_rate: float, steps: int, method: Literal["pld", "rdp"] = "pld"
) -> Guarantee:
    """Return the guarantee of the least noise that stays within (epsilon, delta).

    The noise multiplier is in the result's `mechanism`, rounded up to five digits; the result's epsilon is
    recomputed from that and never exceeds the target.

    Args:
        epsilon: The target, from 1e-4 to 500.
        delta: δ in (0, 1).
        sample_rate: q, the chance in (0, 1] with which each record enters a step.
        steps: Number of steps, fixed beforehand.
        method: `pld` or `rdp`, as in `worst_case`.

    Returns:
        The guarantee, with an epsilon of at most the target.

    Raises:
        PrivacyError: If no noise in the range reaches the target.

    Guarantee:
        As of `worst_case`.

    Examples:
        >>> g = calibrate(epsilon=2.0, delta=1e-5, sample_rate=0.01, steps=2000)
        >>> g.epsilon <= 2.0
        True
        >>> g.noise_multiplier
        1.1494
    """
    target = _check.in_range("epsilon", epsilon, 1e-4, _PLD_LIMIT)
    q, _, count = check_mechanism(sample_rate, 1.0, steps)
    dlt = _check.probability("delta", delta)
    _check.one_of("method", method, ("pld", "rdp"))

    def excess(log_noise: float) -> float:
        sigma = math.exp(log_noise)
        found = _quick_epsilon(q, sigma, count, dlt) if method == "pld" else _rdp_epsilon(((q, sigma, count),), dlt)
        return math.log(found / target)

    low, high = (math.log(limit) for limit in _NOISE_RANGE)
    if excess(high) > 0.0:
        raise PrivacyError(
            f"No noise multiplier up to {_NOISE_RANGE[1]:g} reaches epsilon {target:g} at delta {dlt:g}; "
            "use fewer steps, a lower sample rate, or a larger epsilon."
        )
    log_noise = brentq(excess, low, high, xtol=1e-6) if excess(low) > 0.0 else low
    slope = min(-0.1, (excess(log_noise + 1e-3) - excess(log_noise)) / 1e-3)
    for _ in range(5):  # Newton steps from the quick answer to the exact one
        gap = math.log(_epsilon(q, math.exp(log_noise), count, dlt, method)[0] / target)
        if -1e-4 < gap <= 0.0:
            break
        log_noise = max(low, log_noise + min(max(-(gap + 5e-5) / slope, -0.1), 0.1))
    noise = least_noise(math.exp(log_noise), lambda noise: _epsilon(q, noise, count, dlt, method)[0] <= target)
    return worst_case(sample_rate=q, noise_multiplier=noise, steps=count, delta=dlt, method=method)


def composed(parts: Sequence[SampledSteps], *, delta: float) -> Guarantee:
    """Return the worst case of several mechanisms on the same records, one after the other.

    Args:
        parts: (sample rate, noise multiplier, steps) of each; any number of them, chosen beforehand.
        delta: δ in (0, 1), for all of them together.

    Guarantee:
        For every dataset and every one record added or removed.

    Examples:
        >>> both = composed([(0.01, 1.0, 1000), (0.02, 2.0, 500)], delta=1e-5)
        >>> alone = [worst_case(sample_rate=q, noise_multiplier=s, steps=t, delta=1e-5).epsilon
        ...     for q, s, t in ((0.01, 1.0, 1000), (0.02, 2.0, 500))]
        >>> max(alone) < both.epsilon < sum(alone)
        True
    """
    checked = tuple(check_mechanism(*part) for part in parts)
    if not checked:
        raise ValueError("parts must hold at least one mechanism.")
    dlt = _check.probability("delta", delta)
    if len(checked) == 1:
        (q, sigma, steps), *_ = checked
        return worst_case(sample_rate=q, noise_multiplier=sigma, steps=steps, delta=dlt)
    moments, epsilon = _rdp_epsilon(checked, dlt), _composed(checked, dlt)
    return Guarantee(
        kind="worst_case",
        epsilon=epsilon,
        delta=dlt,
        method="pld" if epsilon < moments else "rdp",
        mechanism=tuple(
            (f"{name}_{i}", float(value))
            for i, part in enumerate(checked, 1)
            for name, value in zip(("sample_rate", "noise_multiplier", "steps"), part, strict=True)
        ),
        assumptions=_ASSUMPTIONS,
        publishable=True,
        profile=_composed_profile(checked, epsilon, dlt),
    )


def calibrate_composed(parts: Sequence[SampledSteps], *, epsilon: float, delta: float) -> tuple[SampledSteps, ...]:
    """Return the mechanisms with all noise scaled by one factor, the least that keeps them within (epsilon, delta).

    Args:
        parts: (sample rate, noise multiplier, steps) of each mechanism; only the ratios of the noises matter.
        epsilon: The target, from 1e-4 to 500.
        delta: δ in (0, 1), for all of them together.

    Returns:
        The mechanisms with their noise scaled.

    Examples:
        >>> parts = calibrate_composed([(1.0, 1.0, 2), (1.0, 2.0, 1)], epsilon=2.0, delta=1e-5)
        >>> 1.97 < composed(parts, delta=1e-5).epsilon <= 2.0
        True
    """
    target = _check.in_range("epsilon", epsilon, 1e-4, _PLD_LIMIT)

    def scaled(log_factor: float) -> tuple[SampledSteps, ...]:
        factor = math.exp(log_factor)
        return tuple((q, float(f"{sigma * factor:.6g}"), steps) for q, sigma, steps in parts)

    def excess(log_factor: float) -> float:
        return math.log(_composed(scaled(log_factor), delta) / target)

    limits = [(math.log(_NOISE_RANGE[0] / sigma), math.log(_NOISE_RANGE[1] / sigma)) for _, sigma, _ in parts]
    low, high = max(pair[0] for pair in limits) + 1e-6, min(pair[1] for pair in limits) - 1e-6
    least = _rdp_epsilon(scaled(high), delta)
    if least > target:
        raise ValueError(
            f"epsilon {target:g} cannot be kept to by any noise up to {_NOISE_RANGE[1]:g} times the clip norm, which "
            f"leaves {least:.3g}. Ask for a larger epsilon, or for fewer steps."
        )
    if _rdp_epsilon(scaled(low), delta) <= target:
        return scaled(low)
    factor = brentq(lambda x: math.log(_rdp_epsilon(scaled(x), delta) / target), low, high, xtol=1e-3)
    slope = -1.0
    for _ in range(6):  # secant steps from the answer by moments to the one by loss distributions
        gap = excess(factor)
        if -5e-3 < gap <= 0.0:
            break
        ahead = factor - (gap + 2e-3) / slope
        slope = min(-0.5, (excess(ahead) - gap) / (ahead - factor))
        factor = ahead
    while excess(factor) > 0.0:
        factor += 2e-3
    return scaled(factor)


def renyi_divergences(
    orders: Sequence[float], *, sample_rate: float, noise_multiplier: float, steps: int
) -> NDArray[np.float64]:
    """Return the Rényi divergences of Poisson-sampled Gaussian steps, in the larger of both directions.

    Args:
        orders: Orders above 1.
        sample_rate: q in (0, 1].
        noise_multiplier: σ in [0.01, 1e4].
        steps: How many, fixed beforehand.

    Returns:
        One for each order; infinite where dp-accounting's series for fractional orders does not converge.
    """
    q, sigma, count = check_mechanism(sample_rate, noise_multiplier, steps)
    accountant = dp_accounting.rdp.RdpAccountant(list(orders))
    with _quiet():
        accountant.compose(_event(q, sigma), count)
    return np.asarray(accountant.rdp, dtype=np.float64)


def check_mechanism(sample_rate: object, noise_multiplier: object, steps: object) -> tuple[float, float, int]:
    """Return the three numbers that describe a run, checked.

    Args:
        sample_rate: A number in (0, 1].
        noise_multiplier: A number in [0.01, 1e4].
        steps: A whole number from 1.

    Returns:
        The three as float, float and int.
    """
    return (
        _check.rate("sample_rate", sample_rate),
        _check.in_range("noise_multiplier", noise_multiplier, *_NOISE_RANGE, hint="It is noise stddev / clip_norm."),
        _check.count("steps", steps),
    )


def _epsilon(q: float, sigma: float, steps: int, delta: float, method: Literal["pld", "rdp"]) -> tuple[float, str]:
    found = [(_rdp_epsilon(((q, sigma, steps),), delta), "rdp")]
    resolved = delta - _round_off(steps)
    if (
        method == "pld"
        and steps <= _PLD_STEPS
        and resolved > 0.0
        and _quick_epsilon(q, sigma, steps, delta) <= _PLD_LIMIT
    ):
        found.append((float(_pld(q, sigma, steps).get_epsilon_for_delta(resolved)), "pld"))
    elif method == "pld":
        found.append((worst_profile(sample_rate=q, noise_multiplier=sigma, steps=steps).epsilon(delta), "profile"))
    epsilon, used = min(found)
    return max(epsilon, SMALLEST_EPSILON), used


@lru_cache(maxsize=256)
def _rdp_epsilon(parts: tuple[SampledSteps, ...], delta: float) -> float:
    accountant = dp_accounting.rdp.RdpAccountant()
    with _quiet():
        for q, sigma, steps in parts:
            accountant.compose(_event(q, sigma), steps)
        return max(float(accountant.get_epsilon(delta)), SMALLEST_EPSILON)


@lru_cache(maxsize=64)
def _composed(parts: tuple[SampledSteps, ...], delta: float) -> float:
    steps = sum(part[2] for part in parts)
    epsilon, resolved = _rdp_epsilon(parts, delta), delta - _round_off(steps)
    if epsilon > _PLD_LIMIT or steps > _PLD_STEPS or resolved <= 0.0:
        return epsilon
    return max(min(epsilon, float(_pld_of_parts(parts, epsilon).get_epsilon(resolved))), SMALLEST_EPSILON)


def _composed_profile(parts: tuple[SampledSteps, ...], epsilon: float, delta: float) -> Profile | None:
    """Return the curve of the composed loss distribution, through a pair on it; None where there is no such grid."""
    steps, reach = sum(part[2] for part in parts), _rdp_epsilon(parts, delta)
    if reach > _PLD_LIMIT or steps > _PLD_STEPS or delta <= _round_off(steps):
        return None
    grid = 2.0 * reach * np.linspace(0.0, 1.0, _PROFILE_POINTS) ** 1.5
    found = np.array([_pld_of_parts(parts, reach).get_delta(float(eps)) for eps in grid])
    return Profile.of_curve(lambda _: found + _round_off(steps), grid) & Profile.of_pair(epsilon, delta)


@lru_cache(maxsize=4)
def _pld_of_parts(parts: tuple[SampledSteps, ...], reach: float) -> Any:
    widest = max(largest_loss(q, 1.0 / sigma) for q, sigma, _ in parts)
    interval = max(min(1e-4, 1e-3 * reach), reach / 1e5, widest / 1e5)
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=interval)
    for q, sigma, steps in parts:
        accountant.compose(_event(q, sigma), steps)
    return accountant


def _round_off(steps: int) -> float:
    """Return what dp-accounting's transforms may lose of δ; as much as is allowed for our own curves.

    Against contour integrals they lost up to 1.5 units in the last place for every step, and even went below zero.
    """
    return (24.0 * steps + 384.0) * _UNIT


@contextmanager
def _quiet() -> Iterator[None]:
    log = logging.getLogger("absl")  # it warns of fractional orders it leaves out; the bound stays valid
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _event(q: float, sigma: float) -> Any:
    gaussian = dp_accounting.GaussianDpEvent(sigma)
    return gaussian if q == 1.0 else dp_accounting.PoissonSampledDpEvent(q, gaussian)


@lru_cache(maxsize=256)
def _quick_epsilon(q: float, sigma: float, steps: int, delta: float) -> float:
    """Return about the same epsilon as PLD, some ten times faster: it starts searches and sizes grids."""
    curve = worst_curve(steps, sample_rate=q, noise_multiplier=sigma)
    return max(SMALLEST_EPSILON, min(float(curve.epsilon(delta)[0]), _rdp_epsilon(((q, sigma, steps),), delta)))


@lru_cache(maxsize=16)
def _pld(q: float, sigma: float, steps: int) -> Any:
    """Return the composed privacy loss distribution on a grid that suits it.

    dp-accounting's default interval is 1e-4. Small losses need a finer one (else the discretisation is
    most of the answer), large ones a coarser one (else the grid does not fit).
    """
    spread = float(loss_spread(q, np.array([1.0 / sigma]))[0])
    widest = largest_loss(q, 1.0 / sigma)
    if q == 1.0:  # composes into one Gaussian, so only the whole spread matters
        spread = 1e-3 * math.sqrt(steps) / sigma
    reach = min(_rdp_epsilon(((q, sigma, steps),), 1e-10), 2.0 * _quick_epsilon(q, sigma, steps, 1e-6))
    interval = max(min(1e-4, 0.1 * spread), widest / 1e5, reach / 2e5)
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=interval)
    accountant.compose(_event(q, sigma), steps)
    return accountant._pld  # its public face answers one delta at a time
