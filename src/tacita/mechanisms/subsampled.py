r"""What one Poisson-sampled step costs: log moments of the privacy loss.

A step releases a sum over a Poisson sample (each record enters with probability q) plus noise. For a
record whose clipped contribution has norm s, and noise of standard deviation σC, write r = s / (σC). The
cost of order λ is a_λ = λ D_{λ+1}, for the worse of the two directions (record added, record removed).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammaln, logsumexp

from tacita import _check

if TYPE_CHECKING:
    from tacita._check import Floats

_BLOCK = 1 << 21  # elements of one temporary; bounds memory, not accuracy


def sampled_gaussian_cost(order: int, *, sample_rate: float, ratio: float | Floats) -> Floats:
    r"""Return the cost a_λ of one Poisson-sampled Gaussian step, exactly.

    a_λ(r) = log E_{k ~ Bin(λ+1, q)} exp((k² - k) r² / 2), the left side of Theorem 3 of Triastcyn &
    Faltings 2020. It covers both directions: removing never costs less than adding (Mironov, Talwar &
    Zhang 2019, Theorem 5). The theorem's right side, an upper bound on the other direction that is never
    below the left one, is `sampled_gaussian_reverse`.

    The k = 0 and k = 1 terms are constant, so the sum is log1p(Σ_{k≥2} pmf(k) expm1(·)), which keeps its
    relative accuracy when r is tiny.

    Args:
        order: λ, a whole number from 1.
        sample_rate: q in (0, 1].
        ratio: r ≥ 0, a number or an array.

    Returns:
        An array of costs, of the shape of `ratio`. Relative error below 1e-9, checked against mpmath.

    Examples:
        >>> round(float(sampled_gaussian_cost(1, sample_rate=1.0, ratio=1.0)), 12)
        1.0
    """
    lam, q, u = _arguments(order, sample_rate, ratio)
    k = np.arange(2, lam + 2, dtype=np.float64)
    return _log1p_sum(_log_binomial(lam + 1, k, q), (k * k - k) / 2.0, u)


def sampled_gaussian_reverse(order: int, *, sample_rate: float, ratio: float | Floats) -> Floats:
    """Return the right side of Theorem 3: log E_{k ~ Bin(λ, q)} exp((k² + k) r² / 2).

    A convexity bound on the direction that never decides. Kept for comparison with the papers.
    """
    lam, q, u = _arguments(order, sample_rate, ratio)
    k = np.arange(1, lam + 1, dtype=np.float64)
    return _log1p_sum(_log_binomial(lam, k, q), (k * k + k) / 2.0, u)


def sampled_gaussian_cost_papers(order: int, *, sample_rate: float, ratio: float | Floats) -> Floats:
    """Return max{left, right} of Theorem 3, as the papers print it. Sound, and loose at small q."""
    left = sampled_gaussian_cost(order, sample_rate=sample_rate, ratio=ratio)
    return np.maximum(left, sampled_gaussian_reverse(order, sample_rate=sample_rate, ratio=ratio))


def subsampled_cost(
    order: int,
    *,
    sample_rate: float,
    forward: Callable[[int], float],
    reverse: Callable[[int], float],
) -> float:
    r"""Return the cost of one Poisson-sampled step of any mechanism with known Rényi divergences.

    With B' the batch that holds the record and B the batch without it (Theorem 4 of Triastcyn & Faltings
    2020, corrected: E_{w~B}[(p_{B'}/p_B)^k] is e^{(k-1) D_k(B'‖B)}, not e^{k D_{k+1}(B'‖B)}):

        with the record vs without:  log E_{k~Bin(λ+1,q)} exp((k-1) D_k(B'‖B))
        without vs with:  the smaller of  log E_{k~Bin(λ,q)} exp(k D_{k+1}(B‖B'))  and  -λ log(1 - q)

    and the cost is the larger of the two. The last term holds because p_B / ((1-q) p_B + q p_{B'}) never
    exceeds 1/(1-q); it keeps the direction finite where the divergence is not.

    Args:
        order: λ, a whole number from 1.
        sample_rate: q in (0, 1].
        forward: k -> D_k(B'‖B), called for k = 2, ..., λ+1.
        reverse: k -> D_k(B‖B'), called for k = 2, ..., λ+1.

    Returns:
        The cost, infinite if it is infinite.
    """
    lam = _check.count("order", order, high=100_000)
    q = _check.rate("sample_rate", sample_rate)
    with_record = _mixture(lam + 1, q, {k: (k - 1) * _divergence(forward, k) for k in range(2, lam + 2)})
    bounded = -lam * math.log1p(-q) if q < 1.0 else math.inf
    printed = _mixture(lam, q, {k: k * _divergence(reverse, k + 1) for k in range(1, lam + 1)})
    return max(with_record, min(printed, bounded))


def subsampled_forward_as_printed(order: int, *, sample_rate: float, forward: Callable[[int], float]) -> float:
    """Return Theorem 4's left side as the papers print it, e^{k D_{k+1}} under the expectation.

    For comparison only: it disagrees with Theorem 3 for the Gaussian mechanism.
    """
    lam = _check.count("order", order, high=100_000)
    q = _check.rate("sample_rate", sample_rate)
    return _mixture(lam + 1, q, {k: k * _divergence(forward, k + 1) for k in range(1, lam + 2)})


def _divergence(divergence: Callable[[int], float], order: int) -> float:
    value = _check.number(f"the divergence of order {order}", divergence(order))
    if not value >= 0.0:
        raise ValueError(f"the divergence of order {order} must be non-negative, got {value:g}.")
    return value


def _mixture(n: int, q: float, exponents: dict[int, float]) -> float:
    """Return log E_{k~Bin(n,q)} exp(exponents.get(k, 0))."""
    if any(math.isinf(e) for e in exponents.values()):
        return math.inf
    k = np.array(list(exponents), dtype=np.float64)
    values = np.array(list(exponents.values()))
    return float(_log1p_sum(_log_binomial(n, k, q), values, np.array(1.0)))


def _arguments(order: int, sample_rate: float, ratio: float | Floats) -> tuple[int, float, Floats]:
    lam = _check.count("order", order, high=100_000)
    q = _check.rate("sample_rate", sample_rate)
    r = np.asarray(ratio, dtype=np.float64)
    if not (np.isfinite(r) & (r >= 0.0)).all():
        raise ValueError("ratio must be finite and non-negative.")
    return lam, q, r * r


def _log_binomial(n: int, k: Floats, q: float) -> Floats:
    """Return the log pmf of Bin(n, q) at k."""
    if q == 1.0:
        return np.where(k == n, 0.0, -np.inf)
    choose = gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)
    return np.asarray(choose + k * math.log(q) + (n - k) * math.log1p(-q))


def _log1p_sum(log_weights: Floats, slopes: Floats, u: Floats) -> Floats:
    """Return log(1 + Σ_k w_k expm1(slope_k u)) for every u, without overflow or cancellation."""
    flat = np.atleast_1d(u).ravel()
    out = np.empty_like(flat)
    block = max(1, _BLOCK // len(slopes))
    for start in range(0, len(flat), block):
        exponent = flat[start : start + block, None] * slopes
        with np.errstate(divide="ignore"):
            log_expm1 = np.where(
                exponent > 30.0,
                exponent + np.log1p(-np.exp(-np.maximum(exponent, 1.0))),
                np.log(np.expm1(np.minimum(exponent, 30.0))),
            )
        log_sum = logsumexp(log_weights + log_expm1, axis=1)
        out[start : start + block] = np.logaddexp(0.0, log_sum)
    return out.reshape(np.shape(u))
